"""One example of each kind in a faster set of tests; the other cases in a slower one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def examples(
    cases: Iterable[Any],
    *kept: Any,
    unpack: bool = False,
    otherwise: str = "slow",
    slow: Iterable[Any] = (),
) -> list[Any]:
    """Cases for `parametrize`.

    Parameters
    ----------
    cases
        All of them.
    kept
        Those that stay in the set of the test.
    unpack
        Each case is a tuple of several arguments.
    otherwise
        Marker of the others: ``slow``, or ``record`` for a test that is slow itself, or that has
        cases in all three sets.
    slow
        Of the latter: those that are slow.
    """
    cases, slow = list(cases), list(slow)
    missing = [case for case in (*kept, *slow) if case not in cases]
    if missing:
        raise ValueError(f"no such cases: {missing}; there are {cases}")
    return [
        case
        if case in kept
        else pytest.param(
            *(case if unpack else (case,)),
            marks=getattr(pytest.mark, "slow" if case in slow else otherwise),
        )
        for case in cases
    ]


def spread(cases: int, kept: int) -> set[int]:
    """Which of so many cases are the representatives: the first, the last, and some between."""
    if kept >= cases:
        return set(range(cases))
    return {round(one * (cases - 1) / max(kept - 1, 1)) for one in range(kept)}
