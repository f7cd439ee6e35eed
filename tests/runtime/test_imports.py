"""The room's modules import each other one way, inside of functions too."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import ibert_tvm.runtime

_ROOM = "ibert_tvm.runtime"
_FOLDER = Path(ibert_tvm.runtime.__file__).parent
# What the room is built on; nothing of it imports the room.
_BELOW = {"common", "model", "targets"}


def _imported(source: str) -> set[str]:
    """Modules of `ibert_tvm` that a module imports anywhere, for types only too."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # One dot is the room, two are what holds it.
            base = ["", f"{_ROOM}.", "ibert_tvm."][node.level] + (node.module or "")
            names |= {f"{base.rstrip('.')}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "ibert_tvm"}


def _graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Which modules of the room each of them imports; what is no module is the package's."""

    def module_of(name: str) -> str:
        first = name.removeprefix(_ROOM).lstrip(".").partition(".")[0]
        return first if first in sources else "__init__"

    return {
        module: {
            module_of(name) for name in _imported(source) if f"{name}.".startswith(f"{_ROOM}.")
        }
        for module, source in sources.items()
    }


def _sources() -> dict[str, str]:
    return {path.stem: path.read_text("utf-8") for path in _FOLDER.glob("*.py")}


def test_there_are_no_circles() -> None:
    graph = _graph(_sources())
    assert graph["loading"] >= {"library", "plain_engine"}, "no imports were found"
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("name", ["a", "Library"], ids=["a module", "the package"])
def test_a_circle_through_a_function_is_found(name: str) -> None:
    sources = {
        "__init__": f"from {_ROOM}.a import Library\n",
        "a": f"from {_ROOM}.b import something\n",
        "b": f"def later():\n    from {_ROOM} import {name}\n",
    }
    with pytest.raises(CycleError):
        TopologicalSorter(_graph(sources)).prepare()


def test_the_room_is_built_on_few_others() -> None:
    rooms = {name.split(".")[1] for source in _sources().values() for name in _imported(source)}
    assert rooms - {"runtime"} <= _BELOW
