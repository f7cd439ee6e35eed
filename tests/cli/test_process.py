"""Start-up, streams, exit codes and signals of the command line."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ibert_tvm
from ibert_tvm.cli import process
from ibert_tvm.cli.result import CommandResult
from ibert_tvm.cli.tables import Table
from ibert_tvm.common.errors import UsageError
from tests.commands import Ibert
from tests.processes import PATIENCE, start_captured

_MODULES = (
    "import sys, {module}, ibert_tvm\n"
    "ibert_tvm.IbertError\n"
    "print([name for name in ('tvm', 'torch', 'transformers', 'numpy') if name in sys.modules])\n"
)


def _python(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,  # type: ignore[call-overload]
    )


@pytest.mark.representatives(1)
@pytest.mark.parametrize("module", ["ibert_tvm", "ibert_tvm.cli", "ibert_tvm.cli.app"])
def test_import_loads_no_heavy_package(module: str) -> None:
    assert _python("-c", _MODULES.format(module=module)).stdout == "[]\n"


@pytest.mark.representatives(1)
@pytest.mark.parametrize("flags", [(), ("-OO",)], ids=str)
def test_help_loads_no_heavy_package(flags: tuple[str, ...]) -> None:
    """That is what it takes to start at once; without docstrings there is less help."""
    script = "from ibert_tvm.cli import main; main(['--help']); main(['run', '--help'])\n"
    done = _python(*flags, "-c", script + _MODULES.format(module="ibert_tvm"))
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.stdout.count("--integers") == 1


@pytest.mark.parametrize(("given", "expected"), [(None, "0"), ("7", "7")])
def test_threads_of_tvm_sleep_at_once(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    """Else processes take minutes to end where many others run; who sets it knows better."""
    name = "TVM_THREAD_POOL_SPIN_COUNT"
    monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv(name, given)
    done = _python("-c", f"import ibert_tvm, os; print(os.environ['{name}'])")
    assert done.stdout == f"{expected}\n"


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    script = (
        "import ibert_tvm\n"
        "assert set(ibert_tvm.__all__) <= set(dir(ibert_tvm))\n"
        "try:\n"
        "    ibert_tvm.nothing\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
    )
    done = _python("-c", script)
    assert done.stderr == ""
    assert done.stdout == "module 'ibert_tvm' has no attribute 'nothing'\n"


def test_modules_are_found_by_their_former_names() -> None:
    script = (
        "import sys, ibert_tvm\n"
        "from ibert_tvm.tokenization import Tokenizer\n"
        "from ibert_tvm.model import tokenization\n"
        "import ibert_tvm.errors\n"
        "print(Tokenizer is tokenization.Tokenizer, ibert_tvm.errors.IbertError.__module__)\n"
        "import importlib\n"
        "for names in ibert_tvm._MOVED.values():\n"
        "    for name in names:\n"
        "        importlib.import_module(sys.modules['ibert_tvm.' + name].__doc__)\n"
    )
    done = _python("-c", script)
    assert (done.stdout, done.stderr) == ("True ibert_tvm.common.errors\n", "")


def test_every_public_name_resolves() -> None:
    assert [name for name in ibert_tvm.__all__ if not hasattr(ibert_tvm, name)] == []


def test_help_lists_the_commands(ibert: Ibert) -> None:
    outcome = ibert("--help")
    assert outcome.code == 0
    for name in (
        "quantize",
        "compile",
        "run",
        "eval",
        "inspect",
        "verify",
        "sign",
        "targets",
        "doctor",
        "demo",
    ):
        assert f" {name} " in outcome.stdout


def test_version(ibert: Ibert) -> None:
    import ibert_tvm

    outcome = ibert("--version")
    assert (outcome.code, outcome.stdout) == (0, f"ibert_tvm {ibert_tvm.__version__}\n")


def test_unknown_command(ibert: Ibert) -> None:
    outcome = ibert("quantise")
    assert outcome.code == 2
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("error: No such command 'quantise'.")
    assert outcome.stderr.endswith("  what to do: see `ibert --help`\n")


def test_missing_option_is_json_too(ibert: Ibert) -> None:
    outcome = ibert("compile", "a.ibert", "--json")
    assert outcome.code == 2
    assert outcome.error["kind"] == "UsageError"
    assert outcome.error["todo"] == "see `ibert compile --help`"


def _replace_targets(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Let `ibert targets` call `act` instead of listing targets."""
    from ibert_tvm import targets

    def listing() -> list[object]:
        act()
        return []

    monkeypatch.setattr(targets, "list_targets", listing)


def test_stdout_is_one_document_whatever_libraries_print(
    ibert: Ibert, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chatter() -> None:
        print("a library greets")
        os.write(1, b"a C library greets\n")

    _replace_targets(monkeypatch, chatter)
    outcome = ibert("targets", "--json")
    assert (outcome.code, outcome.document) == (0, {"targets": []})
    assert "a library greets" in outcome.stderr
    assert "a C library greets" in outcome.stderr


def test_ctrl_c_ends_with_130(ibert: Ibert, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    _replace_targets(monkeypatch, interrupt)
    outcome = ibert("targets")
    assert (outcome.code, outcome.stdout, outcome.stderr) == (130, "", "error: interrupted\n")


def test_an_interrupt_that_arrives_as_another_exception_is_one(
    ibert: Ibert, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a signal arrives while TVM runs a Python callback."""

    def interrupt() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        except BaseException:
            raise RuntimeError("") from None

    _replace_targets(monkeypatch, interrupt)
    outcome = ibert("targets")
    assert (outcome.code, outcome.stdout, outcome.stderr) == (130, "", "error: interrupted\n")


def test_defects_are_reported_as_such(ibert: Ibert, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError("by nothing")

    _replace_targets(monkeypatch, fail)
    outcome = ibert("targets")
    assert (outcome.code, outcome.stdout) == (1, "")
    assert outcome.stderr == (
        "error: internal error: ZeroDivisionError: by nothing\n"
        "  what to do: run again with -v for the traceback, and please report it\n"
    )
    assert "Traceback" in ibert("targets", "-v").stderr


def test_what_comes_with_a_model_cannot_command_a_terminal(
    ibert: Ibert, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in results and tables, nor in errors, logs and tracebacks."""
    hostile = "\x1b[2J\x9b1A\u202efdp\rlabel"

    def warn_and_fail() -> None:
        logging.getLogger("ibert_tvm").warning("left out: %s", hostile)
        raise UsageError(hostile, where=hostile)

    shown = CommandResult({}, [hostile, Table(("name",), [(hostile,)])])
    monkeypatch.setattr(process, "_invoke", lambda words: shown)
    printed = ibert("anything").stdout
    monkeypatch.undo()
    _replace_targets(monkeypatch, warn_and_fail)
    printed += ibert("targets", "-v").stderr
    assert printed.count("label") == 5 and "\\x1b[2J" in printed and "\\u202efdp" in printed
    assert not set("\x1b\x9b\u202e\r") & set(printed)


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("signal_number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_a_signal_leaves_no_partial_output(
    tmp_path: Path, signal_number: signal.Signals, code: int
) -> None:
    """The process is stopped while it writes; the old output stays, temporary files go."""
    output = tmp_path / "out.npz"
    output.write_bytes(b"old: mark")
    script = (
        "import sys, time\n"
        "from ibert_tvm import targets\n"
        "from ibert_tvm.cli import main\n"
        "from ibert_tvm.common.files import marked, write_file\n"
        "def write():\n"
        f"    with write_file({str(output)!r}, marked('', b'mark')) as path:\n"
        "        path.write_bytes(b'half')\n"
        "        print('writing', file=sys.stderr, flush=True)\n"
        "        time.sleep(60)\n"
        "targets.list_targets = write\n"
        "sys.exit(main(['targets', '--json']))\n"
    )
    process = start_captured([sys.executable, "-c", script])
    assert process.stderr is not None
    assert process.stderr.readline() == "writing\n"
    process.send_signal(signal_number)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stdout) == (code, "")
    assert json.loads(stderr)["error"]["exit_code"] == code
    assert output.read_bytes() == b"old: mark"
    assert list(tmp_path.iterdir()) == [output]


def test_a_reader_that_leaves_is_not_an_error() -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m ibert_tvm targets --json | true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_result_is_rendered_only_without_json(
    ibert: Ibert, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> CommandResult:
        raise AssertionError

    outcome = ibert("targets")
    assert outcome.code == 0
    assert outcome.stdout.splitlines()[0].startswith("target ")
    assert "host" in outcome.stdout
