"""One base class of errors: everything raised on purpose, its exit code, its text."""

from __future__ import annotations

import ast
import builtins
import errno
import pickle
from collections.abc import Iterable
from pathlib import Path

import pytest

import ibert_tvm
from ibert_tvm.common.errors import (
    DeviceError,
    ErrorReport,
    ExitCode,
    IbertError,
    InputError,
    TargetError,
    UsageError,
    describe,
)
from tests.syntax import syntax_tree

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("ibert_tvm", "relay_passes", "schedules", "targets")
FOUR = {"what": "no linker", "where": "PATH", "why": "gcc is missing", "todo": "install gcc"}


def strays(trees: Iterable[ast.Module]) -> set[str]:
    """Classes of exceptions that some modules define and that do not derive from IbertError."""
    bases: dict[str, set[str]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                named = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                bases.setdefault(node.name, set()).update(named)

    def ancestors(name: str) -> set[str]:
        return {name}.union(*map(ancestors, bases.get(name, ())))

    def is_exception(name: str) -> bool:
        found = getattr(builtins, name, None)
        if isinstance(found, type):
            return issubclass(found, Exception)
        return name.endswith(("Error", "Exception"))

    return {
        name
        for name in bases
        if any(map(is_exception, ancestors(name))) and "IbertError" not in ancestors(name)
    }


def test_every_exception_derives_from_the_one_base() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 300
    assert strays(map(syntax_tree, files)) == set()


def test_a_stray_base_is_found() -> None:
    sources = [
        "class IbertError(Exception): ...\nclass Fine(errors.IbertError, ValueError): ...",
        "class Stop(BaseException): ...\nclass Plain(Base): ...\nclass Odd(RuntimeError): ...",
        "class Odder(Odd): ...\nclass Foreign(onnx.checker.ValidationError): ...",
    ]
    assert strays(map(ast.parse, sources)) == {"Odd", "Odder", "Foreign"}


def test_the_base_is_public() -> None:
    assert ibert_tvm.IbertError is IbertError


def exit_codes() -> dict[type[IbertError], ExitCode]:
    from ibert_tvm.frontend.errors import UnsupportedModelError
    from ibert_tvm.relay_passes.canonical import CanonicalError
    from ibert_tvm.relay_passes.errors import IntegerOnlyError, PresetError, RangeError
    from ibert_tvm.relay_passes.quantization_table import QuantizationTableError
    from ibert_tvm.schedules import ScheduleError
    from ibert_tvm.schedules.tuning import DatabaseError
    from ibert_tvm.targets.rpc import BoardError

    return {
        BoardError: ExitCode.TARGET,
        CanonicalError: ExitCode.MODEL,
        DatabaseError: ExitCode.TARGET,
        DeviceError: ExitCode.TARGET,
        IntegerOnlyError: ExitCode.VERIFICATION,
        PresetError: ExitCode.MODEL,
        QuantizationTableError: ExitCode.MODEL,
        RangeError: ExitCode.MODEL,
        ScheduleError: ExitCode.TARGET,
        TargetError: ExitCode.TARGET,
        UnsupportedModelError: ExitCode.MODEL,
        InputError: ExitCode.USAGE,
    }


def test_errors_have_their_exit_codes() -> None:
    expected = exit_codes()
    reports = {kind: describe(kind(**FOUR)) for kind in expected}
    assert {kind: report and report.exit_code for kind, report in reports.items()} == expected


def test_a_report_has_the_parts_and_the_whole() -> None:
    assert describe(TargetError(**FOUR)) == ErrorReport(
        kind="TargetError",
        exit_code=4,
        message="no linker\n  where: PATH\n  why: gcc is missing\n  what to do: install gcc",
        **FOUR,
    )


def test_what_is_not_known_is_left_out() -> None:
    assert str(UsageError("no shape", todo="give one")) == "no shape\n  what to do: give one"


@pytest.mark.parametrize("error", [ValueError("a defect"), KeyboardInterrupt()])
def test_defects_have_no_report(error: BaseException) -> None:
    assert describe(error) is None


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (MemoryError(), "the system has no more memory"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "the system has no more space on the disk",
        ),
        (OSError(errno.EMFILE, "Too many open files"), "the system has no more open files"),
    ],
)
def test_a_system_without_something(error: BaseException, what: str) -> None:
    report = describe(error)
    assert report is not None and (report.what, report.exit_code) == (what, 4)
    assert report.message.startswith(f"{what}\n  why: ")
    assert describe(OSError(errno.EINVAL, "Invalid argument")) is None


def test_errors_pass_between_processes() -> None:
    error = pickle.loads(pickle.dumps(DeviceError(**FOUR)))
    assert (type(error), vars(error)) == (DeviceError, FOUR)


def test_errors_of_types_keep_their_text_through_tvm() -> None:
    """TVM's FFI makes a registered class anew from the text alone."""
    from ibert_tvm.relay_passes.canonical import CanonicalError

    text = str(CanonicalError(**FOUR))
    again = describe(CanonicalError(text))
    assert again is not None
    assert (again.message, again.what, again.exit_code) == (text, text, ExitCode.MODEL)
