"""Environments of the processes that tests start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_HIDDEN = Path(__file__).with_name("without_torch")


def without_torch(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment in which torch cannot be imported, as on a board.

    TVM imports torch where it is installed, which takes two of the three seconds that a process
    needs to start.

    Parameters
    ----------
    environment
        The variables otherwise; by default those of this process.
    """
    variables = dict(os.environ if environment is None else environment)
    path = [str(_HIDDEN), str(ROOT), variables.get("PYTHONPATH", "")]
    return {**variables, "PYTHONPATH": os.pathsep.join(filter(None, path))}
