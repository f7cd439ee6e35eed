"""The command line, `ibert`. One file per command; this one only starts it.

Importing it imports neither TVM nor torch: every command imports what it needs when it runs.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Sequence

# New objects between two looks of the collector. Importing torch and TVM makes a million that stay:
# at Python's 700 a fifth of that time is spent on looking through them.
_NEW_OBJECTS = 200_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    arguments
        The arguments after the program's name; by default those of the process.

    Returns
    -------
    int
        The exit code: see `ibert_tvm.common.errors.ExitCode`.
    """
    from .process import run

    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
    # The interpreter would look through all that torch and TVM leave before it ends.
    atexit.register(gc.freeze)
    return run(arguments)
