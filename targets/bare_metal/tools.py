"""The programs of a cross toolchain besides its compiler."""

from __future__ import annotations

import shutil
import subprocess

from ..description import TargetDescription
from ..errors import TargetError
from ..toolchain import find_linker


def binary_tool(description: TargetDescription, name: str) -> str:
    """Path of a program of binutils, such as ``objdump``, that belongs to the target's compiler.

    Raises
    ------
    TargetError
        If the compiler or the program is not installed; the message names the Debian package.
    """
    compiler = find_linker(description)
    command = [*compiler, f"-print-prog-name={name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    path = shutil.which(done.stdout.strip() or name)
    if path is None:
        package = description.toolchain.package if description.toolchain else "binutils"
        raise TargetError(
            what=f"no {name} for target {description.name!r}",
            where=f"PATH (asked {compiler[0]})",
            why="packages are put together, and checked, with the toolchain's own programs",
            todo=f"install it (Debian: apt-get install {package})",
        )
    return path
