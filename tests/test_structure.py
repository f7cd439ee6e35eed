"""What holds for the project as a whole: directions of imports, packaged texts, links, pins."""

import ast
import functools
import re
import sys
from pathlib import Path

import pytest

from ibert_tvm.common.extras import EXTRAS
from tests.syntax import syntax_tree

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("ibert_tvm", "relay_passes", "schedules", "targets")
# Errors, parsers of untrusted files, and the writing of outputs.
FOR_ALL = {"ibert_tvm.common"}
LOOSE = {"__init__", "__main__", "demo", "progress", "texts"}
# docs/architecture.md: imports point one way.
MAY_IMPORT = {
    "relay_passes": {*FOR_ALL, "tvm", "tvm_ffi", "numpy", "scipy", "typing_extensions"},
    "schedules": {*FOR_ALL, "ibert_tvm.targets", "tvm", "tvm_ffi", "numpy"},
    "targets": {*FOR_ALL, "tvm", "tvm_ffi", "numpy", "elftools", "jinja2"},
}


def _sources(package):
    return sorted((ROOT / package).rglob("*.py"))


def _room(module):
    """What of a module's name tells where it lives: "numpy", "ibert_tvm.targets", "ibert_tvm"."""
    top, *rest = module.split(".")
    rooms = (*PACKAGES, *(name.removeprefix("ibert_tvm.") for name in FOR_ALL))
    return f"{top}.{rest[0]}" if top == "ibert_tvm" and rest and rest[0] in rooms else top


@functools.cache
def _imports(path):
    """Rooms and foreign packages that a file imports absolutely."""
    names = set()
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Import):
            names |= {_room(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {_room(f"{node.module}.{alias.name}") for alias in node.names}
    return names - set(sys.stdlib_module_names) - {"__future__"}


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_imports_point_one_way(package):
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in _sources(package)
        for name in _imports(path) - MAY_IMPORT[package]
    }
    assert wrong == set()


def test_what_may_be_imported_by_all_imports_only_itself():
    for path in _sources("ibert_tvm/common"):
        assert _imports(path) <= {"numpy"}
        assert re.findall(r"^\s*from \.\.", path.read_text(), re.MULTILINE) == []


def test_every_module_is_in_a_room():
    assert {path.stem for path in (ROOT / "ibert_tvm").glob("*.py")} == LOOSE


def test_the_compiler_does_not_import_measurements():
    bench = re.compile(r"^\s*from (\.\.|ibert_tvm\.)bench\b", re.MULTILINE)
    assert [path for path in _sources("ibert_tvm/compiler") if bench.search(path.read_text())] == []


def test_torch_and_transformers_are_needed_by_the_frontend_only():
    outside = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in _sources(package)
        if "frontend" not in path.relative_to(ROOT).parts
        and _imports(path) & {"torch", "transformers"}
    }
    # What gives tensors to callers who ask for them, is itself a module of torch, or measures one.
    given = {
        "encoder/texts.py",
        "adapters/sentence_transformers.py",
        "adapters/transformers.py",
        "bench/measure.py",
    }
    trains = {path for path in outside if path.startswith("ibert_tvm/train/")}
    assert outside - trains == {f"ibert_tvm/{path}" for path in given}
    # Settings, and what is read of files before a training starts.
    plain = {"__init__", "examples", "settings"}
    assert trains.isdisjoint({f"ibert_tvm/train/{name}.py" for name in plain})


def test_every_module_says_what_it_is_for():
    silent = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in _sources(package)
        if ast.get_docstring(syntax_tree(path)) is None
    ]
    assert silent == []


def _classes():
    """All classes of the product by name, with their public methods that lack a docstring."""
    found = {}
    for package in PACKAGES:
        for path in _sources(package):
            for node in ast.walk(syntax_tree(path)):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append((path, node))
    return found


def _methods(node):
    return [n for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]


def _bases(node):
    names = {re.sub(r"\[.*", "", ast.unparse(base), flags=re.DOTALL) for base in node.bases}
    return {name.rsplit(".", 1)[-1] for name in names}


def _is_documented(name, classes, node):
    """Whether a base of a class, in this project or outside, describes a method."""
    return any(
        base not in classes
        or any(
            any(m.name == name and ast.get_docstring(m) for m in _methods(other))
            or _is_documented(name, classes, other)
            for _, other in classes[base]
        )
        for base in _bases(node)
    )


def test_public_methods_that_override_nothing_have_a_docstring():
    classes = _classes()
    silent = [
        f"{path.relative_to(ROOT)}: {name}.{method.name}"
        for name, definitions in classes.items()
        if not name.startswith("_")
        for path, node in definitions
        for method in _methods(node)
        if not method.name.startswith("_")
        and ast.get_docstring(method) is None
        and not any(ast.unparse(d).endswith((".setter", "overload")) for d in method.decorator_list)
        and not _is_documented(method.name, classes, node)
    ]
    assert silent == []


def test_tests_import_their_helpers_without_altering_the_path():
    """As `tests.folder.module`: two helpers of the same file name cannot be mistaken."""
    alters = re.compile(r"\bsys\.path(\[.*\])?( *\+?=|\.(append|extend|insert))")
    altered = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != Path(__file__) and alters.search(path.read_text(encoding="utf-8"))
    ]
    assert altered == []


def _lines(name):
    return (ROOT / "ibert_tvm" / "data" / name).read_text(encoding="utf-8").splitlines()


def _shingles(lines, length=7):
    words = [re.findall(r"\w+", line.lower()) for line in lines]
    return {tuple(w[i : i + length]) for w in words for i in range(len(w) - length + 1)}


def test_texts_are_many_distinct_and_held_out():
    calibration, heldout = _lines("calibration.txt"), _lines("heldout.txt")
    assert len(calibration) >= 256
    assert len(heldout) >= 200
    for lines in (calibration, heldout):
        assert len(set(lines)) == len(lines)
        assert all(line == line.strip() != "" for line in lines)
        words = sorted(len(line.split()) for line in lines)
        assert words[0] == 1
        assert words[-1] > 110  # fills 128 tokens
    assert _shingles(calibration) & _shingles(heldout) == set()
    assert len(_lines("demo_sentences.txt")) == 8


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "CONTRIBUTING.md",
        "benchmarks/README.md",
        "docs/targets.md",
        "docs/c-api.md",
        "docs/arm.md",
        "docs/cuda.md",
        "docs/performance.md",
        "docs/benchmarking.md",
        "docs/choosing.md",
        "docs/limitations.md",
        "examples/README.md",
    ],
)
def test_links_between_documents_lead_somewhere(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("http")]
    missing = [link for link in links if not (ROOT / document).parent.joinpath(link).exists()]
    assert missing == []


def test_constraints_pin_every_core_dependency():
    pins = {
        re.split("==", line)[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    }
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    core = re.search(r"^dependencies = \[(.*?)^\]", project, re.M | re.S).group(1)
    names = {
        re.split(r"[<>=\[]", entry)[0].lower().replace("_", "-")
        for entry in re.findall(r'"([^"]+)"', core)
    }
    for extra in ("compiler", "run", "torch"):
        names |= set(EXTRAS[extra].distributions)
    assert "numpy" in names
    assert names - pins == set()
