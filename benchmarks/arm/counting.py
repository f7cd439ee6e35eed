"""Count the instructions that an ARM program executes, under QEMU with our own plugin.

    python -m benchmarks.arm.counting PROGRAM --target cortex-m4 --function NAME

The program is linked at fixed addresses (firmware; ``-static -no-pie`` under Linux), so that its
symbols say where everything runs. The plugin counts; this module tells it where functions begin
and calls return, and turns counted addresses into symbols and mnemonics.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ibert_tvm.targets import TargetDescription

from .disassembly import Program, read_program
from .errors import CountingError

__all__ = ["Call", "Counting", "Counts", "build_plugin", "count", "emulator_command"]

_SOURCE = Path(__file__).with_name("plugin") / "count.c"
_CACHE = Path(__file__).resolve().parent.parent.parent / "build" / "counting"


@dataclass(frozen=True)
class Call:
    """One call of a watched function.

    Attributes
    ----------
    function
        Its name.
    level
        Number of other watched functions that it was called from.
    instructions
        Executed from its first instruction to its return, what it called included.
    """

    function: str
    level: int
    instructions: int


@dataclass(frozen=True)
class Counts:
    """What was executed while recording.

    Attributes
    ----------
    instructions
        All of them.
    floating_point
        Those of them that compute in floating point, and all within functions of a
        floating-point library: 0 for a compiled model.
    unknown
        Those that the disassembler does not know, or which are in no section of the program:
        nothing is said about them.
    calls
        Calls of the watched functions, in the order in which they returned.
    by_symbol
        Instructions of each function itself, without what it calls.
    by_mnemonic
        Instructions by mnemonic.
    floating_point_mnemonics
        The same for those that count as floating point.
    status
        Exit status of the emulator.
    """

    instructions: int
    floating_point: int
    unknown: int
    calls: tuple[Call, ...]
    by_symbol: dict[str, int]
    by_mnemonic: dict[str, int]
    floating_point_mnemonics: dict[str, int]
    status: int

    def of(self, function: str) -> int:
        """Instructions of all calls of a watched function together, what it called included."""
        return sum(call.instructions for call in self.calls if call.function == function)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; calls as ``[function, level, instructions]``."""
        rows = [[call.function, call.level, call.instructions] for call in self.calls]
        return {**self.__dict__, "calls": rows}


def build_plugin(cache: Path = _CACHE) -> Path:
    """Compile the plugin for this machine; again only when its source has changed.

    Parameters
    ----------
    cache
        Folder that keeps it.

    Returns
    -------
    pathlib.Path
        The shared library.

    Raises
    ------
    CountingError
        If there is no C compiler, or it fails.
    """
    source = _SOURCE.read_bytes()
    library = cache / f"count-{hashlib.sha256(source).hexdigest()[:16]}.so"
    if library.exists():
        return library
    cache.mkdir(parents=True, exist_ok=True)
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    scratch = library.with_suffix(f".{os.getpid()}")
    command = [compiler or "cc", "-shared", "-fPIC", "-O2", "-fvisibility=hidden"]
    try:
        done = subprocess.run(
            [*command, "-o", str(scratch), str(_SOURCE)],
            capture_output=True,
            text=True,
            check=False,
        )
        reason = done.stderr.strip()[-1000:] if done.returncode else ""
    except OSError as error:
        reason = str(error)
    if reason:
        raise CountingError(
            what="cannot compile the plugin that counts",
            where=" ".join(command),
            why=reason,
            todo="install a C compiler for this machine (Debian package gcc), or set CC",
        )
    scratch.replace(library)  # at once: others may be building it too
    return library


def emulator_command(description: TargetDescription, program: Path) -> list[str]:
    """Command that runs a program of a target under QEMU.

    A board gets semihosting (console, files, exit status) and no display.

    Raises
    ------
    CountingError
        If the target needs no emulator: there is nothing to count with.
    """
    emulator = description.emulator
    if emulator is None:
        raise CountingError(
            what=f"instructions of target {description.name!r} cannot be counted",
            where="counting instructions",
            why="its programs run on this machine, without an emulator",
            todo="choose an ARM target",
        )
    if not emulator.board:
        return [emulator.program, "-cpu", emulator.processor, str(program)]
    return emulator.on_board(program)


class Counting:
    """The plugin's side of one run of a program, for callers that start the emulator themselves.

    Use as a context; give the emulator ``-plugin`` with `argument`, and ask for `counts` behind its
    end.

    Parameters
    ----------
    path
        ELF executable at fixed addresses, with symbols.
    description
        Target that it was compiled for.
    functions
        Functions whose calls are reported one by one.
    within
        Function to record in: from its first instruction to its return, what it calls included.
        It is watched as well.
    between
        Two symbols: recorded is from the first one's instruction on, up to the second one's,
        which is not counted itself. Without either, everything is recorded.

    Raises
    ------
    CountingError
        If the program cannot be read or lacks a symbol, or the plugin cannot be built.
    """

    def __init__(
        self,
        path: Path,
        description: TargetDescription,
        functions: Sequence[str] = (),
        within: str | None = None,
        between: tuple[str, str] | None = None,
    ) -> None:
        self._program = read_program(path, description)
        self._watched = list(dict.fromkeys([*functions, *([within] if within else [])]))
        self._description = description
        self._plugin = build_plugin()
        self._folder = tempfile.TemporaryDirectory(prefix="counting.")
        self._result = Path(self._folder.name, "result.json")
        self._config = Path(self._folder.name, "config")
        self._config.write_text(
            _configuration(self._program, self._watched, within, between, self._result)
        )

    def __enter__(self) -> Counting:
        """Return the object itself."""
        return self

    def __exit__(self, *_exception: object) -> None:
        """Remove the files that the plugin reads and writes."""
        self._folder.cleanup()

    @property
    def argument(self) -> str:
        """What follows ``-plugin`` on the emulator's command line."""
        return f"{self._plugin},config={self._config}"

    def counts(self, status: int = 0) -> Counts:
        """Read what the plugin wrote at the end of the run.

        Raises
        ------
        CountingError
            If there is nothing, or the program did something that cannot be counted: it ran
            threads, or left a watched function in another way than by its return.
        """
        path = self._program.path
        if not self._result.exists():
            raise CountingError(
                what=f"no counts of {path.name}",
                where="counting instructions",
                why="the emulator ended without the plugin's result",
                todo="use qemu-user (not qemu-user-static) or qemu-system-arm, which take plugins",
            )
        document = json.loads(self._result.read_text())
        _check(document, path, self._watched)
        calls = tuple(
            Call(self._watched[index], level, number) for index, level, number in document["calls"]
        )
        return _summarise(self._program, document["runs"], calls, status, self._description)


def count(
    path: Path,
    description: TargetDescription,
    functions: Sequence[str] = (),
    within: str | None = None,
    between: tuple[str, str] | None = None,
    command: Sequence[str] | None = None,
    arguments: Sequence[str] = (),
    statuses: Sequence[int] = (0,),
    timeout: float = 600,
) -> Counts:
    """Run a program to its end and count what it executes.

    Parameters
    ----------
    path, description, functions, within, between
        As `Counting` takes them.
    command
        Emulator and its arguments, where `emulator_command` does not serve; the program is in it.
    arguments
        More arguments at the end of the command.
    statuses
        Exit statuses that are no error.
    timeout
        Seconds after which the emulator is stopped.

    Returns
    -------
    Counts

    Raises
    ------
    CountingError
        As `Counting`; or if the program fails or does not end.
    """
    command = [*(command or emulator_command(description, path)), *arguments]
    with Counting(path, description, functions, within, between) as counting:
        run = [command[0], "-plugin", counting.argument, *command[1:]]
        return counting.counts(_run(run, statuses, timeout))


def _configuration(
    program: Program,
    watched: Sequence[str],
    within: str | None,
    between: tuple[str, str] | None,
    result: Path,
) -> str:
    lines = [f"out {result}"]
    for index, name in enumerate(watched):
        lines.append(f"entry {program.address(name):x} {index} {int(name == within)}")
    if watched:
        lines += [f"call {address:x} {behind:x}" for address, behind in program.calls()]
    if between is not None:
        start, stop = map(program.address, between)
        lines += [f"start {start:x}", f"stop {stop:x}"]
    return "\n".join(lines) + "\n"


def _run(command: Sequence[str], statuses: Sequence[int], timeout: float) -> int:
    text = " ".join(command)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
        )
    except FileNotFoundError as error:
        raise CountingError(
            what=f"{command[0]} is missing",
            where=text,
            why="counting runs programs under QEMU",
            todo="install the Debian packages qemu-user and qemu-system-arm",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise CountingError(
            what="the program did not end",
            where=text,
            why=f"it was stopped after {timeout:g} s",
            todo="give it more time, or less work",
        ) from error
    if done.returncode not in statuses:
        raise CountingError(
            what=f"the program ended with status {done.returncode}",
            where=text,
            why=(done.stderr or done.stdout).strip()[-1000:] or "it printed nothing",
            todo="make it run without counting first",
        )
    return done.returncode


def _check(document: dict[str, Any], path: Path, watched: Sequence[str]) -> None:
    reason = ""
    if document["vcpus"] != 1:
        reason = f"it ran {document['vcpus']} threads, and only one can be counted"
    elif document["overflow"]:
        reason = "calls were nested deeper than the plugin follows"
    elif document["open"]:
        names = ", ".join(watched[index] for index in document["open"])
        reason = f"no return from {names} was seen"
    elif document["recording"]:
        reason = "it ended between the symbols that begin and end recording"
    if reason:
        raise CountingError(
            what=f"the counts of {path.name} would be wrong",
            where="counting instructions",
            why=reason,
            todo="watch functions that return, in a program of one thread",
        )


def _summarise(
    program: Program,
    runs: Sequence[tuple[int, int, int]],
    calls: tuple[Call, ...],
    status: int,
    description: TargetDescription,
) -> Counts:
    machine = description.machine
    by_symbol: Counter[str] = Counter()
    by_mnemonic: Counter[str] = Counter()
    floating: Counter[str] = Counter()
    unknown = 0
    for address, length, executions in runs:
        name = program.symbol_at(address)
        by_symbol[name] += length * executions
        instructions = program.run(address, length)
        unknown += (length - len(instructions)) * executions
        for instruction in instructions:
            mnemonic, operands = instruction.mnemonic, instruction.operands
            by_mnemonic[mnemonic] += executions
            if mnemonic.startswith(("<unknown>", ".")):
                unknown += executions
            elif machine.is_float_function(name) or machine.is_floating_point(
                mnemonic.lower(), operands, description.has_float_registers
            ):
                floating[mnemonic] += executions
    return Counts(
        instructions=sum(by_symbol.values()),
        floating_point=sum(floating.values()),
        unknown=unknown,
        calls=calls,
        by_symbol=dict(by_symbol.most_common()),
        by_mnemonic=dict(by_mnemonic.most_common()),
        floating_point_mnemonics=dict(floating.most_common()),
        status=status,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Count one program and print the result; returns the exit code."""
    import argparse

    from ibert_tvm.targets import get_target

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.arm.counting",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("program", type=Path, help="ELF executable at fixed addresses")
    parser.add_argument("--target", required=True, help="target that it was compiled for")
    parser.add_argument("--function", action="append", default=[], help="function to watch")
    parser.add_argument("--within", help="function to record in (default: the whole program)")
    parser.add_argument("--between", nargs=2, metavar=("START", "STOP"), help="symbols to record")
    parser.add_argument("--top", type=int, default=12, help="rows of each table")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("arguments", nargs="*", help="more arguments of the emulator's command")
    options = parser.parse_args(arguments)
    try:
        counts = count(
            options.program,
            get_target(options.target),
            options.function,
            options.within,
            tuple(options.between) if options.between else None,
            arguments=options.arguments,
        )
    except CountingError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(
        json.dumps(counts.to_json(), indent=1) + "\n"
        if options.json
        else _table(counts, options.top)
    )
    return 0


def _table(counts: Counts, top: int) -> str:
    lines = [
        f"instructions    {counts.instructions:15,}",
        f"floating point  {counts.floating_point:15,}",
        f"unknown         {counts.unknown:15,}",
    ]
    calls: dict[str, list[int]] = {}
    for call in counts.calls:
        calls.setdefault(call.function, []).append(call.instructions)
    for name, numbers in calls.items():
        lines.append(f"{sum(numbers):15,}  in {len(numbers)} calls of {name}")
    for title, numbers in (("symbol", counts.by_symbol), ("mnemonic", counts.by_mnemonic)):
        lines.append(f"by {title}")
        lines += [f"{number:15,}  {name}" for name, number in list(numbers.items())[:top]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
