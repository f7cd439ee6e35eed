"""The arena: whatever lives at the same time never shares a byte."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.targets.aot.graph import ArenaPlan, Request, plan_arena


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    """Values of a random program: sizes from small to large, some of them equal."""
    count = draw(st.integers(0, 24))
    result = []
    for key in range(count):
        first = draw(st.integers(0, 12))
        last = draw(st.integers(first, 14))
        nbytes = draw(st.one_of(st.integers(0, 5000), st.sampled_from([64, 128, 1024])))
        result.append(Request(key, nbytes, first, last))
    return result


def check(wanted: list[Request], plan: ArenaPlan, alignment: int) -> None:
    """What must hold of every plan."""
    assert set(plan.offsets) == {request.key for request in wanted}
    assert plan.nbytes % alignment == 0
    assert plan.lower_bound <= plan.nbytes <= sum(r.nbytes + alignment for r in wanted)
    for request in wanted:
        offset = plan.offsets[request.key]
        assert offset % alignment == 0
        assert 0 <= offset <= offset + request.nbytes <= plan.nbytes
    for step in range(20):
        living = sorted(
            (plan.offsets[r.key], r.nbytes)
            for r in wanted
            if r.first <= step <= r.last and r.nbytes
        )
        for (offset, nbytes), (following, _) in itertools.pairwise(living):
            assert offset + nbytes <= following


@given(requests(), st.sampled_from([1, 4, 16, 64]))
def test_values_that_live_together_are_apart(wanted: list[Request], alignment: int) -> None:
    check(wanted, plan_arena(wanted, alignment), alignment)


@pytest.mark.slow
@given(requests(), st.sampled_from([1, 4, 16, 64]), st.data())
def test_what_may_share_bytes_begins_early_enough(
    wanted: list[Request], alignment: int, data: st.DataObject
) -> None:
    pairs = [(a, b) for a in wanted for b in wanted if a.last == b.first and a.first < b.first]
    leads = {(a.key, b.key): data.draw(st.integers(-6000, 6000)) for a, b in pairs}
    plan = plan_arena(wanted, alignment, leads)
    assert plan.lower_bound <= plan.nbytes
    for one, other in itertools.combinations((r for r in wanted if r.nbytes), 2):
        begin, end = (plan.offsets[r.key] for r in (one, other))
        apart = begin + one.nbytes <= end or end + other.nbytes <= begin
        if apart or not one.overlaps(other):
            continue
        pair = (one.key, other.key) if one.last <= other.first else (other.key, one.key)
        assert pair in plan.shared
        assert plan.offsets[pair[1]] - plan.offsets[pair[0]] <= leads[pair]
    assert plan.shared <= {*leads}


@pytest.mark.parametrize(
    ("argument", "result", "lead", "nbytes"),
    [(640, 320, 0, 640), (320, 640, -320, 640), (640, 640, -64, 704), (640, 320, -330, 960)],
)
def test_a_result_over_an_argument_takes_no_bytes(
    argument: int, result: int, lead: int, nbytes: int
) -> None:
    wanted = [Request("argument", argument, 0, 1), Request("result", result, 1, 2)]
    plan = plan_arena(wanted, 64, {("argument", "result"): lead})
    assert plan.nbytes == plan.lower_bound == nbytes
    assert bool(plan.shared) == (nbytes < argument + result)


def test_a_chain_needs_two_places() -> None:
    """Each value is read by the next step only: two of them alternate."""
    chain = [Request(step, 1000, step, step + 1) for step in range(20)]
    plan = plan_arena(chain, 16)
    check(chain, plan, 16)
    assert plan.nbytes == plan.lower_bound == 2 * 1008


def test_a_gap_is_filled_by_what_fits_best() -> None:
    wanted = [
        Request("long", 64, 0, 9),
        Request("large", 640, 0, 1),
        Request("first", 320, 2, 9),
        Request("second", 320, 2, 9),
    ]
    plan = plan_arena(wanted, 64)
    check(wanted, plan, 64)
    assert plan.nbytes == plan.lower_bound == 704


def test_the_plan_of_an_encoder_is_as_small_as_can_be() -> None:
    """Residuals live long, feed-forward values are large, workspaces live for a step."""
    hidden, wide = 128 * 384, 128 * 1536
    wanted = []
    for layer in range(6):
        step = 8 * layer
        wanted += [
            Request(f"{layer} residual", 2 * hidden, step, step + 4),
            Request(f"{layer} qkv", 3 * hidden, step + 1, step + 2),
            Request(f"{layer} scratch", 3 * 128 * 128 * 4, step + 2, step + 2),
            Request(f"{layer} context", hidden, step + 2, step + 3),
            Request(f"{layer} attended", 2 * hidden, step + 4, step + 7),
            Request(f"{layer} wide", wide, step + 5, step + 6),
        ]
    plan = plan_arena(wanted, 16)
    check(wanted, plan, 16)
    assert plan.nbytes == plan.lower_bound


def test_nothing_needs_nothing() -> None:
    assert plan_arena([], 16) == ArenaPlan({}, 0, 0)
    assert plan_arena([Request("empty", 0, 0, 3)], 16) == ArenaPlan({"empty": 0}, 0, 0)


@pytest.mark.parametrize("alignment", [0, -16, 3, 24])
def test_an_alignment_is_a_power_of_two(alignment: int) -> None:
    with pytest.raises(ValueError, match=f"^alignment {alignment} is not a power of two$"):
        plan_arena([], alignment)


def test_keys_are_unique() -> None:
    with pytest.raises(ValueError, match=r"^a key occurs twice$"):
        plan_arena([Request("a", 1, 0, 0), Request("a", 2, 1, 1)], 16)


@pytest.mark.parametrize(("nbytes", "first", "last"), [(-1, 0, 0), (1, -1, 0), (1, 2, 1)])
def test_a_request_makes_sense(nbytes: int, first: int, last: int) -> None:
    with pytest.raises(ValueError, match=f"^request a: {nbytes} bytes, {first}..{last}$"):
        Request("a", nbytes, first, last)
