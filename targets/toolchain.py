"""Finding the C compiler that assembles, compiles and links for a target.

A cross-compiler is believed only after it has said, to ``-dumpmachine``, that it compiles for the
target's system: a ``CC`` that a build environment sets for its own board is then used for targets
of that board and for no other.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator

from ibert_tvm.common.errors import TargetError

from .catalogue import CATALOGUE
from .description import TargetDescription
from .machines.record import Toolchain
from .programs import run

_NATIVE = ("gcc", "cc", "clang")
_PURPOSE = "the library's weights are assembled and linked by the {} C compiler"
_ANSWER_SECONDS = 20


def compiler_variable(description: TargetDescription) -> str:
    """Name of the environment variable that chooses a target's compiler.

    Parameters
    ----------
    description
        The target.

    Returns
    -------
    str
        For example ``IBERT_CC_ARMV7_NEON``.
    """
    return "IBERT_CC_" + re.sub(r"[^A-Z0-9]", "_", description.name.upper())


def find_linker(description: TargetDescription) -> tuple[str, ...]:
    """Command of the compiler driver that compiles and links for `description`.

    The first of these that there is, each with arguments or a wrapper (``ccache gcc``) if need be:

    1. what the variable `compiler_variable` names, which must be right;
    2. what ``CC`` names, as make and every build tool take it; for a target that has a toolchain
       of its own only if it compiles for that machine;
    3. the target's own toolchain; else ``gcc``, ``cc`` or ``clang``, which on a board are the
       board's own.

    Returns
    -------
    tuple of str
        Path of the program, and arguments that every call of it starts with.

    Raises
    ------
    TargetError
        If none is installed; the message names the Debian packages that have it.
    """
    chosen = os.environ.get(compiler_variable(description))
    if chosen:
        return _chosen(description, chosen)
    if description.toolchain is None:
        return _native(description)
    return _cross(description, description.toolchain)


def compiles_for(answer: str, machine: str) -> bool:
    """Tell whether a compiler that answers `answer` compiles for `machine`.

    What is compared is the processor family, the system and its ABI; vendors, and the revision of
    a 32-bit ARM, are left to the flags.

    Parameters
    ----------
    answer, machine
        Machines as GCC and Clang name them: ``aarch64-linux-gnu``, ``armv7l-unknown-linux-gnu``.
    """
    return bool(answer) and _parts(answer) == _parts(machine)


def machine_of(command: tuple[str, ...]) -> str:
    """What a compiler says that it compiles for; empty if it does not say.

    Parameters
    ----------
    command
        Program and arguments.

    Returns
    -------
    str
        Its answer to ``-dumpmachine``.
    """
    done = run([*command, "-dumpmachine"], seconds=_ANSWER_SECONDS)
    return done.stdout.strip() if done.returncode == 0 else ""


def _parts(machine: str) -> tuple[str, str, str]:
    """Processor family, system and ABI of a machine's name."""
    processor, *rest = machine.split("-")
    families = (one.triples.pattern for one in CATALOGUE.machines())
    processor = next((one for one in families if re.fullmatch(one, processor)), processor)
    if "linux" in rest:
        return processor, "linux", "-".join(rest[rest.index("linux") + 1 :]) or "gnu"
    return processor, "none", rest[-1] if rest else ""


def _resolve(words: str) -> tuple[str, ...] | None:
    """Path and arguments of a command; None where there is no such program."""
    program, *arguments = words.split() or [""]
    path = shutil.which(program)
    return None if path is None else (path, *arguments)


def _chosen(description: TargetDescription, words: str) -> tuple[str, ...]:
    """The compiler that the target's variable names; anything wrong with it is an error."""
    variable = compiler_variable(description)
    where = f"environment variable {variable}={words!r}"
    command = _resolve(words)
    if command is None:
        raise TargetError(
            what=f"no C compiler to link for target {description.name!r}",
            where=where,
            why="there is no such program",
            todo=f"name a compiler for {description.name}, or unset {variable}",
        )
    cross = description.toolchain
    if cross is None:
        return command
    answer = machine_of(command)
    if not compiles_for(answer, cross.machine):
        says = repr(answer) if answer else "nothing"
        raise TargetError(
            what=f"the C compiler for target {description.name!r} is one for another machine",
            where=where,
            why=f"asked -dumpmachine it says {says}; the target is {cross.machine}",
            todo=f"name a compiler for {cross.machine}, or unset {variable}",
        )
    return (*command, *cross.flags)


def _native(description: TargetDescription) -> tuple[str, ...]:
    """The host's compiler."""
    candidates = [os.environ["CC"]] if os.environ.get("CC") else list(_NATIVE)
    for candidate in candidates:
        command = _resolve(candidate)
        if command is not None:
            return command
    raise TargetError(
        what=f"no C compiler to link for target {description.name!r}",
        where=f"PATH (looked for {', '.join(candidates)})",
        why=_PURPOSE.format("system's"),
        todo="install one (Debian: apt-get install gcc binutils), or set CC",
    )


def _cross(description: TargetDescription, cross: Toolchain) -> tuple[str, ...]:
    """The first compiler that says that it compiles for the target's machine."""
    others = []
    for words, command in _candidates(cross):
        answer = machine_of(command)
        if compiles_for(answer, cross.machine):
            return (*command, *cross.flags)
        others.append(f"{words} compiles for {answer or 'an unknown machine'}")
    found = f"; {', '.join(others)}" if others else ""
    raise TargetError(
        what=f"no C compiler to link for target {description.name!r}",
        where=f"PATH (looked for {cross.compiler})",
        why=_PURPOSE.format("target's") + found,
        todo=f"install it (Debian: apt-get install {cross.package}), "
        f"or set {compiler_variable(description)}",
    )


def _candidates(cross: Toolchain) -> Iterator[tuple[str, tuple[str, ...]]]:
    for words in (os.environ.get("CC"), cross.compiler, *_NATIVE):
        command = _resolve(words) if words else None
        if words and command is not None:
            yield words, command
