"""Finding the C toolchain that assembles and links a library."""

from __future__ import annotations

import os
import shutil

from .description import TargetDescription
from .errors import TargetError


def find_linker(description: TargetDescription) -> tuple[str, ...]:
    """Command of the compiler driver that links for `description`.

    The environment variable ``CC`` is honoured first, as make and every build tool do; it may hold
    arguments or a wrapper (``ccache gcc``).

    Returns
    -------
    tuple of str
        Path of the program, and arguments that every call of it starts with.

    Raises
    ------
    TargetError
        If none is installed; the message names the Debian package that has it.
    """
    cross = description.toolchain
    if cross is not None:
        candidates = [cross.compiler]
    else:
        candidates = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "cc", "clang"]
    for candidate in candidates:
        program, *arguments = candidate.split() or [""]
        path = shutil.which(program)
        if path is not None:
            return (path, *arguments, *(cross.flags if cross else ()))
    raise TargetError(
        what=f"no C compiler to link for target {description.name!r}",
        where=f"PATH (looked for {', '.join(candidates)})",
        why="the library's weights are assembled and linked by the system's C compiler",
        todo=f"install it (Debian: apt-get install {cross.package})"
        if cross
        else "install one (Debian: apt-get install gcc binutils), or set CC",
    )
