"""Loading a library as its board would, before it is said to be done.

A small C program, compiled for the target and run under its emulator, opens the library with every
symbol resolved and looks up what a runtime will ask it for. Where that cannot be done, because the
emulator is not installed, the result says so and names the package; it is never taken for done.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ibert_tvm.common.errors import TargetError

from .description import TargetDescription
from .elf import is_undefined, opened, symbols
from .emulation import emulator_command, run_program, runs_here
from .linking import Tools
from .machines.record import FloatUse, Machine
from .toolchain import find_linker

# Whether a linked file is for the processor that it was meant for: its ELF header and attributes.
#
# A linker takes objects of a wrong kind more often than one would think (a soft-float object in a
# hard-float library, a C library without its float ABI), and the board's own loader may refuse the
# result without a word, so the header is read before anything is promised.


@dataclass(frozen=True)
class ElfFacts:
    """What a file's headers say about the machine that it is for.

    Attributes
    ----------
    machine
        ``e_machine``, for example ``EM_AARCH64``.
    bits
        32 or 64.
    little_endian
        Order of bytes.
    floats
        Convention and units of floating point; empty for machines whose files do not tell.
    """

    machine: str
    bits: int
    little_endian: bool
    floats: FloatUse = field(default_factory=FloatUse)


def elf_facts(path: Path, expected: Machine) -> ElfFacts:
    """Read the facts of an ELF file.

    Parameters
    ----------
    path
        A relocatable object, a library or a program.
    expected
        What it should be for; of files for other machines, `floats` is not read.

    Raises
    ------
    elftools.common.exceptions.ELFError
        If it is none of them.
    """
    with opened(path) as elf:
        facts = ElfFacts(elf["e_machine"], elf.elfclass, elf.little_endian)
        if facts.machine != expected.elf_machine or expected.float_use is None:
            return facts
        return replace(facts, floats=expected.float_use(elf))


def check_elf(path: Path, description: TargetDescription) -> None:
    """Refuse a linked file that is for another processor, or for another way of passing floats.

    Parameters
    ----------
    path
        The file.
    description
        What it was linked for.

    Raises
    ------
    TargetError
        With the first thing that the file says and that was not expected.
    """
    why = next(_differences(elf_facts(path, description.machine), description), None)
    if why is not None:
        raise TargetError(
            what="the linked library is for another processor",
            where=f"target {description.name!r}, {path.name}",
            why=why,
            todo="set CC to the compiler of the target, or unset it",
        )


def _differences(facts: ElfFacts, description: TargetDescription) -> Iterator[str]:
    if facts.machine != description.elf_machine:
        yield f"its ELF machine is {facts.machine}, expected {description.elf_machine}"
    if facts.bits != description.machine.bits:
        yield f"its ELF class is {facts.bits} bits, expected {description.machine.bits}"
    if not facts.little_endian:
        yield "its bytes are in big-endian order, expected little-endian"
    floats = facts.floats
    if floats.abi != description.float_abi:
        yield f"its float ABI is {floats.abi}, expected {description.float_abi}"
    if description.float_abi == "soft" and (floats.unit or floats.vectors):
        unit = "a floating-point unit" if floats.unit else "a vector unit"
        yield f"its attributes ask for {unit}, which the target does not have"


_LOADER = Path(__file__).with_name("loader.c")
_LOAD_SECONDS = 120
# The functions of TVM's runtime that compiled code may call: its C interface.
_RUNTIME_PREFIX = "TVM"


@dataclass(frozen=True)
class LibraryCheck:
    """What was found out about a library before it was put in its place.

    Attributes
    ----------
    checked
        Whether it was loaded and its symbols were found. A library that was loaded and failed is
        an error, not a result.
    by
        What loaded it: the emulator with its processor, or ``this machine``; empty if nothing did.
    wanted
        How many symbols were looked up.
    reason, todo
        Why it was not loaded, and what would make it possible; empty if it was.
    """

    checked: bool
    by: str = ""
    symbols: int = 0
    reason: str = ""
    todo: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON-serialisable dictionary."""
        return asdict(self)

    def __str__(self) -> str:
        if self.checked:
            return f"loaded on {self.by}, {self.symbols} symbols found"
        return f"NOT loaded: {self.reason}; {self.todo}"


def check_library(
    path: Path, description: TargetDescription, wanted: Sequence[str], *, required: bool = False
) -> LibraryCheck:
    """Check the headers of a library, load it, and look up its symbols.

    Parameters
    ----------
    path
        The linked library, in a folder that may be written to.
    description
        What it was linked for.
    wanted
        What a runtime looks up in it.
    required
        Whether it is an error if nothing here can load it.

    Raises
    ------
    TargetError
        If the library is for another processor, cannot be loaded, lacks a symbol, or leaves a
        symbol open that neither the target's C library nor TVM's runtime has; or, if `required`,
        if it could not be tried.
    """
    check_elf(path, description)
    try:
        prefix = emulator_command(description, sysroot_of(description))
    except TargetError as error:
        if required:
            raise
        return LibraryCheck(False, reason=f"{error.what}: {error.why}", todo=error.todo)
    # A file that a failing disk keeps is nothing against the library.
    with tempfile.TemporaryDirectory(
        prefix=".check.", dir=path.parent, ignore_cleanup_errors=True
    ) as folder:
        work = Path(folder).resolve()
        loader = _build_loader(work, path, description)
        done = run_program([*prefix, str(loader), str(path.resolve()), *wanted], _LOAD_SECONDS)
    by = _runner(description)
    if done.returncode != 0:
        raise TargetError(
            what="the linked library cannot be used on its target",
            where=f"target {description.name!r}, {path.name}, loaded on {by}",
            why=_complaint(done, path),
            todo="check that the C toolchain works for this target; see `ibert doctor`",
        )
    return LibraryCheck(True, by, len(wanted))


def sysroot_of(description: TargetDescription) -> Path | None:
    """Folder of the C library that the target's compiler links against, where it has its own.

    Parameters
    ----------
    description
        The target.

    Returns
    -------
    pathlib.Path or None
        None for the compilers of a distribution, whose libraries lie where the target says.
    """
    done = run_program([*find_linker(description), "-print-sysroot"], _LOAD_SECONDS)
    folder = Path(done.stdout.strip() or "/")
    return folder if folder != Path("/") and (folder / "lib").is_dir() else None


def _runner(description: TargetDescription) -> str:
    emulator = description.emulator
    if emulator is None or runs_here(description):
        return "this machine"
    return f"{emulator.program} -cpu {emulator.processor}"


def _complaint(done: subprocess.CompletedProcess[str], path: Path) -> str:
    """The loader's or the emulator's own words, without the path of a temporary file."""
    words = (done.stderr or done.stdout).strip().replace(f"{path.resolve()}: ", "")
    if done.returncode < 0:
        words = f"it was ended by signal {-done.returncode}; {words}"
    return words[-2000:].strip(" ;") or f"exit status {done.returncode}"


def _build_loader(work: Path, library: Path, description: TargetDescription) -> Path:
    """Compile the loader together with stand-ins for the functions of TVM that are left open."""
    (work / "loader.c").write_bytes(_LOADER.read_bytes())
    lines = ["#include <stdlib.h>", "int ibert_no_runtime;"]
    for name in _open_symbols(library):
        _check_runtime_has(name, library, description)
        lines.append(f"void {name}(void) {{ abort(); }}")
    (work / "runtime.c").write_text("\n".join(lines) + "\n", encoding="utf-8")
    arguments = ["-O1", "-rdynamic", "loader.c", "runtime.c", "-o", "loader", "-ldl"]
    Tools(description).compile(arguments, work, "cannot compile the loader")
    return work / "loader"


def _open_symbols(library: Path) -> list[str]:
    """Functions of TVM's C interface that the library expects of whoever loads it."""
    return sorted(
        {
            symbol.name
            for symbol in symbols(library, ".dynsym")
            if is_undefined(symbol)
            and symbol["st_info"]["bind"] == "STB_GLOBAL"
            and symbol.name.startswith(_RUNTIME_PREFIX)
        }
    )


def _check_runtime_has(name: str, library: Path, description: TargetDescription) -> None:
    """The same release of TVM runs on the board, so its library here tells what it exports."""
    import tvm_ffi

    if not hasattr(ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi()), name):
        raise TargetError(
            what="the linked library cannot be used on its target",
            where=f"target {description.name!r}, {library.name}",
            why=f"it calls {name}, which TVM's runtime does not have",
            todo="install the version of TVM that constraints.txt names",
        )
