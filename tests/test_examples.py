"""Which cases of a test are in which set."""

from __future__ import annotations

from typing import Any

import pytest

from tests.examples import examples


def sets(cases: list[Any]) -> list[tuple[Any, list[str]]]:
    """Each case with its markers."""
    return [
        (case.values, [mark.name for mark in case.marks]) if hasattr(case, "marks") else (case, [])
        for case in cases
    ]


def test_what_is_not_kept_is_slow_or_for_the_record() -> None:
    assert sets(examples("ab", "a")) == [("a", []), (("b",), ["slow"])]
    assert sets(examples("ab", "a", otherwise="record")) == [("a", []), (("b",), ["record"])]
    pairs = [(0, "a"), (1, "b"), (2, "c")]
    assert sets(examples(pairs, (0, "a"), otherwise="record", slow=[(1, "b")], unpack=True)) == [
        ((0, "a"), []),
        ((1, "b"), ["slow"]),
        ((2, "c"), ["record"]),
    ]


@pytest.mark.parametrize("named", [{"slow": "c"}, {}])
def test_a_name_that_is_no_case_is_refused(named: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no such cases: \['c'\]"):
        examples("ab", *("" if named else "c"), **named)
