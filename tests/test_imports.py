"""No circles of imports between modules, and no function that shares its name with a module."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.closure import import_source, imported_names, modules
from tests.syntax import syntax_tree


def _packages(name: str) -> set[str]:
    """The packages that hold a module."""
    parts = name.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts))}


def imports(files: Mapping[str, Path]) -> dict[str, set[str]]:
    """Which of the modules each imports, anywhere in it: in functions, and for types alone, too.

    Importing a module imports the packages that hold it, unless the importer is inside of them.
    """
    graph = {}
    for name, path in files.items():
        nodes = ast.walk(syntax_tree(path))
        named = imported_names(nodes, name, path)
        found = {each if each in files else each.rpartition(".")[0] for each in named}
        holding = set().union(*map(_packages, found)) - _packages(name)
        graph[name] = (found | holding) & set(files) - {name}
    return graph


def circle(graph: Mapping[str, set[str]]) -> set[str]:
    """Modules of a circle, or none where there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return set(error.args[1])
    return set()


def shadowed(files: Mapping[str, Path]) -> set[str]:
    """Names that a package makes public, or imports from a module, and that are modules of it."""
    found = set()
    for package, path in files.items():
        if path.stem != "__init__":
            continue
        names = set()
        for node in syntax_tree(path).body:
            if isinstance(node, ast.ImportFrom):
                names |= {
                    alias.name
                    for alias in node.names
                    if f"{import_source(node, package, path)}.{alias.name}" not in files
                }
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOME":
                names |= set(ast.literal_eval(node.value))
        found |= {f"{package}.{name}" for name in names} & set(files)
    return found


def test_modules_do_not_import_each_other() -> None:
    graph = imports(modules())
    assert len(graph) > 300
    assert sum(map(len, graph.values())) > 1000
    assert circle(graph) == set()


def test_no_function_has_the_name_of_a_module_beside_it() -> None:
    assert shadowed(modules()) == set()


@pytest.fixture
def planted(tmp_path: Path) -> dict[str, Path]:
    """Packages with a circle through a function and a folder, and a function behind a module."""
    texts = {
        "ibert_tvm/__init__.py": "_HOME = {'run': 'ibert_tvm.engine', 'load': 'ibert_tvm.engine'}",
        "ibert_tvm/engine.py": "def run():\n    from ibert_tvm.targets import cpu\ndef load(): ...",
        "ibert_tvm/load.py": "import ibert_tvm.engine",
        "ibert_tvm/alone.py": "from ibert_tvm import engine, load",
        "targets/__init__.py": "from . import parts\nfrom .tune import tune",
        "targets/cpu.py": "if TYPE_CHECKING:\n    from .parts.memory import Memory",
        "targets/tune.py": "from .cpu import measure",
        "targets/parts/__init__.py": "",
        "targets/parts/memory.py": "from ...engine import run",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return modules(tmp_path)


def test_a_planted_circle_is_found(planted: dict[str, Path]) -> None:
    """One through a function, and one through the folder that holds what the function imports."""
    graph = imports(planted)
    short = {f"ibert_tvm.{name}" for name in ("engine", "targets.cpu", "targets.parts.memory")}
    long = short | {"ibert_tvm.targets", "ibert_tvm.targets.tune"}
    for cut, expected in (("targets", short), ("targets.cpu", long)):
        engine = graph["ibert_tvm.engine"] - {f"ibert_tvm.{cut}"}
        assert circle({**graph, "ibert_tvm.engine": engine}) == expected


def test_a_planted_shadow_is_found(planted: dict[str, Path]) -> None:
    assert shadowed(planted) == {"ibert_tvm.load", "ibert_tvm.targets.tune"}
