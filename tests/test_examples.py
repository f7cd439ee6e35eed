"""Which cases of a test are in which set."""

from __future__ import annotations

from typing import Any

import pytest

from tests.examples import examples, spread


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


def test_representatives_are_spread_over_the_cases() -> None:
    assert spread(9, 1) == {0}
    assert spread(9, 3) == {0, 4, 8}
    assert spread(2, 2) == spread(2, 5) == {0, 1}


@pytest.mark.representatives(2)
@pytest.mark.slow_cases(2)
@pytest.mark.parametrize("case", range(7))
def test_the_other_cases_are_slow_and_of_these_the_others_for_records(
    request: pytest.FixtureRequest, case: int
) -> None:
    alone = sum("the_other_cases" in item.name for item in request.session.items) == 1
    found = [name for name in ("slow", "record") if request.node.get_closest_marker(name)]
    assert alone or found == {0: [], 6: [], 1: ["slow"], 5: ["slow"]}.get(case, ["slow", "record"])
