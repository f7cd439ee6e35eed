"""The programs of a toolchain besides its compiler."""

from __future__ import annotations

import functools
import shutil

from ibert_tvm.common.errors import TargetError

from .description import TargetDescription
from .programs import run
from .toolchain import find_linker


def binary_tool(description: TargetDescription, name: str) -> str:
    """Path of a program of binutils, such as ``objdump``, that belongs to the target's compiler.

    Parameters
    ----------
    description
        The target.
    name
        The program, without a prefix.

    Raises
    ------
    TargetError
        If the compiler or the program is not installed; the message names the Debian package.
    """
    compiler = find_linker(description)
    path = shutil.which(_asked(compiler, name) or name)
    if path is None:
        package = description.toolchain.package if description.toolchain else "binutils"
        raise TargetError(
            what=f"no {name} for target {description.name!r}",
            where=f"PATH (asked {compiler[0]})",
            why="programs are put together, and checked, with the toolchain's own tools",
            todo=f"install it (Debian: apt-get install {package})",
        )
    return path


@functools.cache
def _asked(compiler: tuple[str, ...], name: str) -> str:
    """What the compiler answers: a path, or the name where it knows none."""
    return run([*compiler, f"-print-prog-name={name}"]).stdout.strip()
