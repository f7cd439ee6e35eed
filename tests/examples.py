"""One example of each kind in the default tests; the other cases are slow ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def examples(cases: Iterable[Any], *kept: Any, unpack: bool = False) -> list[Any]:
    """Cases for `parametrize`.

    Parameters
    ----------
    cases
        All of them.
    kept
        Those that run by default; the others are marked ``slow``.
    unpack
        Each case is a tuple of several arguments.
    """
    cases = list(cases)
    missing = [case for case in kept if case not in cases]
    if missing:
        raise ValueError(f"no such cases: {missing}; there are {cases}")
    return [
        case
        if case in kept
        else pytest.param(*(case if unpack else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
