"""When this project's artefacts are built again, and when they are not."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.models import MODELS, Cell
from benchmarks.peers import PEERS, ibert
from tests.syntax import syntax_tree

ROOT = Path(__file__).resolve().parent.parent.parent
SPEC, CELL = MODELS["minilm"], Cell.parse("1x32")


def _imported(path: Path) -> set[str]:
    """Files of `ibert_tvm` that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            file = ROOT / (name.replace(".", "/") + ".py")
            if name.startswith("ibert_tvm.") and file.is_file():
                found.add(file.relative_to(ROOT).as_posix())
    return found


def test_everything_that_compilation_imports_invalidates_its_libraries():
    seen, new = set(), {"ibert_tvm/compiler/driver.py"}
    while new:
        seen |= new
        new = set().union(*(_imported(ROOT / name) for name in new)) - seen
    assert seen <= set(ibert.COMPILING), "add them to COMPILING in benchmarks/peers/ibert.py"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one source of each kind, and a model quantised by it."""
    for name in ("relay_passes/spec/gelu.py", "schedules/linear.py", "ibert_tvm/runtime.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("# first\n")
    for name in {*ibert.QUANTISING, *ibert.COMPILING}:
        if name.endswith(".py"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("# first\n")
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    return tmp_path


def _quantised(cache, monkeypatch, content):
    """Prepare with a quantisation that only writes `content`; returns how often it ran."""
    import ibert_tvm

    runs = []

    class Model:
        def save(self, path):
            runs.append(path)
            path.mkdir(parents=True, exist_ok=True)
            (path / "model.json").write_text(content)

    monkeypatch.setattr(ibert_tvm, "load", lambda source: None)
    monkeypatch.setattr(ibert_tvm, "quantize", lambda model, calibration: Model())
    PEERS["ibert"].prepare(SPEC, cache, cache)
    return len(runs)


def test_libraries_are_built_again_when_the_compiler_or_the_model_changes(
    checkout, tmp_path, monkeypatch
):
    peer, cache = PEERS["ibert"], tmp_path / "cache"
    key_file = cache / "artefacts" / "minilm" / "quantised.json"
    key_file.parent.mkdir(parents=True)
    key_file.write_text("[]")  # as an earlier version of the benchmark wrote it
    assert _quantised(cache, monkeypatch, "one") == 1
    assert _quantised(cache, monkeypatch, "one") == 0  # still valid
    first = peer.fingerprint(SPEC, CELL, cache)
    assert first != peer.fingerprint(SPEC, Cell.parse("8x32"), cache)

    (checkout / "ibert_tvm/runtime.py").write_text("# second\n")  # runs libraries, makes none
    assert _quantised(cache, monkeypatch, "one") == 0
    assert peer.fingerprint(SPEC, CELL, cache) == first

    (checkout / "schedules/linear.py").write_text("# second\n")
    assert _quantised(cache, monkeypatch, "one") == 0
    second = peer.fingerprint(SPEC, CELL, cache)
    assert second != first

    frontend = checkout / "ibert_tvm/frontend/loader.py"
    frontend.parent.mkdir()
    frontend.write_text("# new\n")
    assert _quantised(cache, monkeypatch, "one") == 1  # quantised again, to the same integers
    assert peer.fingerprint(SPEC, CELL, cache) == second
    frontend.write_text("# newer\n")
    assert _quantised(cache, monkeypatch, "two") == 1
    assert peer.fingerprint(SPEC, CELL, cache) != second


def test_a_quantisation_that_fails_is_not_taken_for_done(checkout, tmp_path, monkeypatch):
    import ibert_tvm

    cache = tmp_path / "cache"
    _quantised(cache, monkeypatch, "one")
    (checkout / "relay_passes/spec/gelu.py").write_text("# second\n")

    def fail(source):
        raise RuntimeError("no memory")

    monkeypatch.setattr(ibert_tvm, "load", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        PEERS["ibert"].prepare(SPEC, cache, cache)
    assert not (cache / "artefacts" / "minilm" / "quantised.json").exists()


def test_other_peers_depend_on_their_versions_only():
    versions = json.loads(PEERS["onnxruntime-fp32"].fingerprint(SPEC, CELL, Path("/none")))
    assert set(versions) == {"revision", "versions"}
    assert set(versions["versions"]) == {"onnxruntime", "onnx", "torch", "transformers"}
