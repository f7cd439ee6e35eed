"""What CONTRIBUTING claims of a new target, approximation and frontend, as tests of structure."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.closure import imported_names
from tests.syntax import syntax_tree

ROOT = Path(__file__).resolve().parent.parent
# What schedules may know of a target: what it can do, not which one it is.
CAPABILITIES = {"DotInstruction", "Gpu", "TargetDescription"}
# A frontend hands over a canonical module and, for a model that came quantised, what its source
# says of quantisation; the exponential of a checkpoint's training says how it has to be read. Names
# are restricted where they come in.
OUTLETS = {
    "ibert_tvm.relay_passes.canonical",
    "ibert_tvm.relay_passes.names",
    "ibert_tvm.relay_passes.quantization_table",
    "ibert_tvm.relay_passes.spec.released.exponential",
}
# Folders of the top level, and what they are called installed.
HOMES = ("relay_passes", "schedules", "targets")
# Words of emission that schedules use for their own ends: kinds of reductions and names of rules,
# operands in the descriptions of instructions, registers of a GPU, a field of the database.
SHARED_WORDS = {
    "schedules/": {"sum", "max", "linear", "attention", "rows"},
    "schedules/intrinsics/": {"lhs", "rhs", "packed", "add"},
    "schedules/cuda/attention_parts.py": {"scores", "row_max", "row_sum", "context"},
    "schedules/tuning/database.py": {"kind"},
}

# Methods of domains that define a stage, by its name first.
DEFINITIONS = {"define", "sum", "square_sum", "per_key", "per_row", "per_score", "weights"} | {
    "row_max",
    "row_sum",
    "number",
}


def _module(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "ibert_tvm" else ("ibert_tvm", *parts))


def _sources(root: Path, *folders: str) -> Iterator[tuple[str, Path, ast.Module]]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            where = str(path.relative_to(root))
            yield where, path, syntax_tree(path)


def _imports(root: Path, path: Path, tree: ast.Module) -> set[str]:
    """Dotted names of all that a file imports, relative imports resolved."""
    return {*imported_names(ast.walk(tree), _module(root, path), path)}


def _below(name: str, *packages: str) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def _words(tree: ast.AST, names: bool = True) -> set[str]:
    """Texts and names in a file's code; what it says in docstrings and comments is not code."""
    documents = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documents
    }
    if not names:
        return texts
    called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return texts | called | {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}


def _target_words() -> set[str]:
    from ibert_tvm.targets import get_target, target_names

    targets = [get_target(name) for name in target_names() if name != "host"]
    return {target.name for target in targets} | {
        target.dot.name for target in targets if target.dot.name != "none"
    }


def targets_known_to_passes(root: Path) -> set[str]:
    """Places where a pass or a schedule knows a target by name, or imports more than it may."""
    found = set()
    known = re.compile(
        "|".join(rf"(?<![\w-]){re.escape(word)}(?![\w-])" for word in sorted(_target_words()))
    )
    for where, path, tree in _sources(root, "relay_passes", "schedules"):
        passes = where.startswith("relay_passes")
        for name in _imports(root, path, tree):
            allowed = {f"ibert_tvm.targets.{each}" for each in CAPABILITIES}
            if _below(name, "ibert_tvm.targets") and (passes or name not in allowed):
                found.add(f"{where} imports {name}")
        for word in _words(tree):
            named = known.search(word)
            if named and (passes or not where.startswith("schedules/intrinsics")):
                found.add(f"{where} knows {named[0]}")
    return found


def _operators() -> set[str]:
    """Operators of the integer dialect, with and without their prefix."""
    from ibert_tvm.relay_passes.integer import OPERATORS

    return {*OPERATORS, *(name.removeprefix("integer.") for name in OPERATORS)}


def _stages(root: Path) -> set[str]:
    """Names of stages: what bodies of operators define, and what emission adds to them."""
    found = set()
    for where, _path, tree in _sources(root, "relay_passes/integer", "relay_passes/emit"):
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call):
                continue
            given: list[ast.expr] = []
            named = isinstance(call.func, ast.Name) and where.startswith("relay_passes/emit")
            if isinstance(call.func, ast.Attribute) and call.func.attr == "compute":
                given = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
            elif named or (isinstance(call.func, ast.Attribute) and call.func.attr in DEFINITIONS):
                given = call.args[:1]
            found |= {node.value for node in given if isinstance(node, ast.Constant)}
    return {text for text in found if isinstance(text, str) and text.isidentifier()}


def _texts(tree: ast.Module) -> set[str]:
    """Texts in a file's code that are one word."""
    return {word for word in _words(tree, names=False) if re.fullmatch(r"[\w.]+", word)}


def approximations_known_to_schedules(root: Path) -> set[str]:
    """Places where a schedule names an operator, or a stage of one, or asks for a kind."""
    known = _operators() | _stages(root)
    found = set()
    for where, _path, tree in _sources(root, "schedules"):
        shared = {
            w for part, words in SHARED_WORDS.items() if where.startswith(part) for w in words
        }
        found |= {f"{where} knows {word}" for word in _texts(tree) & known - shared}
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and "kernel_name" in _words(node):
                found.add(f"{where} compares the kind of a kernel")
    return found


def frontends_known_to_others(root: Path) -> set[str]:
    """Places where a frontend reaches past the canonical dialect, or is reached."""
    found = set()
    homes = [f"ibert_tvm.{home}" for home in HOMES]
    for where, path, tree in _sources(root, "ibert_tvm/frontend"):
        for name in _imports(root, path, tree):
            if _below(name, *homes) and not _below(name, *OUTLETS):
                found.add(f"{where} imports {name}")
    for where, path, tree in _sources(root, *HOMES):
        for name in _imports(root, path, tree):
            if _below(name, "ibert_tvm.frontend"):
                found.add(f"{where} imports {name}")
    return found


PASS = "relay_passes/passes/fuse_epilogues.py"
ROWS, GPU_ROWS = "schedules/rows.py", "schedules/cuda/rows.py"
FRONTEND = "ibert_tvm/frontend/verify.py"
STAGES = "relay_passes/integer/operators/norms.py"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A few of the sources, to plant violations in."""
    for file in (PASS, ROWS, GPU_ROWS, FRONTEND, STAGES):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def _plant(root: Path, file: str, line: str) -> None:
    path = root / file
    path.write_text(path.read_text(encoding="utf-8") + f"\n{line}\n", encoding="utf-8")


CHECKS = (targets_known_to_passes, approximations_known_to_schedules, frontends_known_to_others)
TARGETS, APPROXIMATIONS, FRONTENDS = CHECKS
PLANTED = [
    (TARGETS, PASS, 'fast = name == "cortex-m4"', "knows cortex-m4"),
    (TARGETS, PASS, "fast = dot.vpdpbusd_512", "knows vpdpbusd_512"),
    (TARGETS, PASS, "from ibert_tvm.targets import Gpu", "imports ibert_tvm.targets.Gpu"),
    (TARGETS, PASS, "from ...targets import Gpu", "imports ibert_tvm.targets.Gpu"),
    (TARGETS, PASS, "import ibert_tvm.targets.host", "imports ibert_tvm.targets.host"),
    (TARGETS, ROWS, "from ibert_tvm.targets import get", "imports ibert_tvm.targets.get"),
    (TARGETS, GPU_ROWS, 'slow = target.name == "t4"', "knows t4"),
    (APPROXIMATIONS, ROWS, 'KEPT = ("half_bits",)', "knows half_bits"),
    (APPROXIMATIONS, ROWS, 'wanted = "layer_norm"', "knows layer_norm"),
    (APPROXIMATIONS, GPU_ROWS, 'wanted = "integer.gelu"', "knows integer.gelu"),
    (APPROXIMATIONS, GPU_ROWS, 'kernel_name(f) == "any"', "compares the kind of a kernel"),
    (FRONTENDS, FRONTEND, "import ibert_tvm.targets", "imports ibert_tvm.targets"),
    (FRONTENDS, FRONTEND, "from ..schedules import rule", "imports ibert_tvm.schedules.rule"),
    (FRONTENDS, PASS, "from ibert_tvm.frontend import model", "imports ibert_tvm.frontend.model"),
    (
        FRONTENDS,
        FRONTEND,
        "from ibert_tvm.relay_passes.lower import driver",
        "imports ibert_tvm.relay_passes.lower.driver",
    ),
]


@pytest.mark.parametrize("check", CHECKS)
def test_adding_one_touches_nothing_else(check: Callable[[Path], set[str]]) -> None:
    assert check(ROOT) == set()


@pytest.mark.parametrize(("check", "file", "line", "violation"), PLANTED)
def test_planted_knowledge_is_found(
    tree: Path, check: Callable[[Path], set[str]], file: str, line: str, violation: str
) -> None:
    _plant(tree, file, line)
    assert check(tree) == {f"{file} {violation}"}
