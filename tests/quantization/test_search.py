"""The search for the cheapest recipe within a drop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ibert_tvm.errors import ExitCode, UsageError, VerificationError
from ibert_tvm.quantization import search as searching
from ibert_tvm.quantization.fidelity import options_of
from ibert_tvm.quantization.post_training import quantize
from ibert_tvm.quantization.search import hold_back, search, work_per_token
from tests.quantization.models import random_batches, random_model

MODEL = "bert"


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes that take little time."""
    quick = {"alphas": (0.5,), "compensate": False, "sample_tokens": 64}
    recipes = {name: ("fast", quick) for name in ("first", "second", "third")}
    recipes["third"] = ("fast", {**quick, "row_scales": "always"})
    monkeypatch.setattr(searching, "_RECIPES", recipes)


def drops(*values: float) -> searching.Measure:
    left: Iterator[float] = iter(values)
    return lambda _model: next(left)


def test_the_first_recipe_within_the_bound_is_taken(three: None) -> None:
    model, tried = random_model(MODEL), []
    found = search(model, random_batches(model, 1), 0.01, drops(0.2, 0.01, 0.0), begin=tried.append)
    assert tried == ["first", "second"]
    assert found.recipe == "second"
    assert [(t["recipe"], t["drop"], t["holds"]) for t in found.to_json()] == [
        ("first", 0.2, False),
        ("second", 0.01, True),
    ]
    assert found.trials[1].work == work_per_token(found.model.program)


def test_where_none_holds_the_bound_all_drops_are_named(three: None) -> None:
    model = random_model(MODEL)
    with pytest.raises(VerificationError) as caught:
        search(model, random_batches(model, 1), 0.01, drops(0.2, 0.0314, 0.04))
    assert str(caught.value) == (
        "no recipe keeps within a drop of 0.01\n"
        "  where: --max-drop\n"
        "  why: first: 0.20000; second: 0.03140; third: 0.04000\n"
        "  what to do: accept 0.032, or calibrate on texts that are closer to those it is measured "
        "on"
    )
    assert caught.value.exit_code == ExitCode.VERIFICATION


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bound_is_positive(bound: float) -> None:
    model = random_model(MODEL)
    with pytest.raises(UsageError) as caught:
        search(model, random_batches(model, 1), bound, drops())
    assert str(caught.value) == (
        f"a drop of at most {bound}\n"
        "  why: rounding always costs something\n"
        "  what to do: use a positive number, 0.001 for example"
    )


def test_every_fifth_text_is_held_back() -> None:
    kept, held = hold_back([str(number) for number in range(11)])
    assert held == ["4", "9"]
    assert kept == ["0", "1", "2", "3", "5", "6", "7", "8", "10"]


def test_few_texts_are_not_split() -> None:
    with pytest.raises(UsageError) as caught:
        hold_back(["a"] * 9)
    assert str(caught.value) == (
        "9 texts are too few to hold some back\n"
        "  why: a drop is measured on texts that calibration does not see, every fifth\n"
        "  what to do: give 10 texts or more, or others to measure on (--heldout)"
    )


def test_scales_per_token_and_further_columns_are_work() -> None:
    model = random_model(MODEL)
    quick = {"alphas": (0.5,), "compensate": False, "sample_tokens": 64}
    plain, columns, rows = (
        work_per_token(
            quantize(
                model, random_batches(model, 1), options=options_of("fast", **quick, **changes)
            ).program
        )
        for changes in ({}, {"split_share": 1 / 6}, {"row_scales": "always"})
    )
    # Two layers: 16 rows more of the first matrix, 16 columns more of the second, and the gather.
    assert columns - plain >= 2 * 2 * 16 * 48
    assert rows > plain
