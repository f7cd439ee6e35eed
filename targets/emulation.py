"""Running programs of a target: on this machine if it can, otherwise under an emulator.

QEMU's user emulation runs single Linux programs of another processor with the target's own C
library, which the cross-compiler's packages bring. It emulates a processor that has what the target
has and nothing more, so that an instruction too many ends in SIGILL here and not on the board.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ibert_tvm.common.errors import TargetError

from .description import TargetDescription
from .host import cpu_features, missing_features
from .machines.record import Emulator
from .programs import run


def runs_here(description: TargetDescription) -> bool:
    """Tell whether this machine's own processor runs programs of a target.

    Parameters
    ----------
    description
        The target.

    Returns
    -------
    bool
        False for a microcontroller, and where the processor lacks a feature that is required.
    """
    return description.machine.runs_on(platform.machine()) and not missing_features(
        description, cpu_features()
    )


def find_emulator(description: TargetDescription) -> str:
    """Path of the emulator that a target names.

    Parameters
    ----------
    description
        The target, for microcontrollers and boards alike.

    Returns
    -------
    str
        The program; a statically linked one, which is packaged apart, serves as well.

    Raises
    ------
    TargetError
        If it is not installed; the message names the Debian package that has it.
    """
    emulator = description.emulator
    if emulator is None:
        lacks = missing_features(description, cpu_features())
        same = description.machine.runs_on(platform.machine())
        raise TargetError(
            what=f"nothing runs code for target {description.name!r} here",
            where=f"this machine ({platform.machine()})",
            why=f"its processor lacks {', '.join(lacks)}" if same else "it is another processor",
            todo="run it on such a machine",
        )
    for program in (emulator.program, f"{emulator.program}-static"):
        path = shutil.which(program)
        if path is not None:
            return path
    raise TargetError(
        what=f"no emulator to run code for target {description.name!r}",
        where=f"PATH (looked for {emulator.program})",
        why=f"this machine ({platform.machine()}) cannot run it by itself",
        todo=f"install it (Debian: apt-get install {emulator.package})",
    )


def emulator_command(description: TargetDescription, sysroot: Path | None = None) -> list[str]:
    """Words before the name of a target's Linux program that make it run here.

    Parameters
    ----------
    description
        The target; its system is Linux.
    sysroot
        Folder with the target's ``lib/``; by default the one that the description names.

    Returns
    -------
    list of str
        Empty where the program runs by itself.

    Raises
    ------
    TargetError
        If the emulator or the target's C library is not installed.
    """
    if runs_here(description):
        return []
    path = find_emulator(description)
    emulator = description.emulator
    if emulator is None or emulator.board:
        raise TargetError(
            what=f"no program of target {description.name!r} can be run by itself",
            where=f"{path}",
            why="a microcontroller has no operating system; firmware is run instead",
            todo="see the example firmware in examples/",
        )
    libraries = _libraries(description, emulator, sysroot)
    return [path, "-cpu", emulator.processor, "-L", str(libraries)]


def run_program(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a program that may be one of another machine, with this process's environment.

    Parameters
    ----------
    command
        What `emulator_command` gives, then the program and its arguments.
    seconds
        When to give up.

    Returns
    -------
    subprocess.CompletedProcess
        As `ibert_tvm.targets.programs.run` gives it.
    """
    # LD_PRELOAD and its like name libraries of this machine, and QEMU_... would change the machine
    # that is emulated.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "QEMU_"))}
    return run(command, None, seconds, kept)


def _libraries(description: TargetDescription, emulator: Emulator, sysroot: Path | None) -> Path:
    """The folder of the target's C library."""
    folder = sysroot or Path(emulator.libraries)
    if (folder / "lib").is_dir():
        return folder
    packages = description.toolchain.package if description.toolchain else "the target's C library"
    raise TargetError(
        what=f"no C library to run code for target {description.name!r} with",
        where=str(folder / "lib"),
        why="a program under the emulator uses the target's own C library",
        todo=f"install it (Debian: apt-get install {packages})",
    )
