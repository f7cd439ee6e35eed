"""The search for the cheapest recipe within a drop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ibert_tvm.common.errors import ExitCode, UsageError, VerificationError
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.quantization import search as searching
from ibert_tvm.quantization.fidelity import options_of
from ibert_tvm.quantization.post_training import quantize
from ibert_tvm.quantization.search import hold_back, multiplies_short, search, work_per_token
from ibert_tvm.targets import TargetError
from tests.quantization.models import random_batches, random_model
from tests.snapshots import Messages

MODEL = "bert"
BYTES = "x86-avx512-vnni"
"""A target that multiplies bytes, where columns and operands of 16 bits are further products."""
SHORT = "cortex-m4"
"""One that multiplies 16 bits as they are."""


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
    assert found.trials[1].work == work_per_token(found.model.program, multiplies_short("host"))


def test_where_none_holds_the_bound_all_drops_are_named(messages: Messages, three: None) -> None:
    model = random_model(MODEL)
    with messages.raises(VerificationError) as caught:
        search(model, random_batches(model, 1), 0.01, drops(0.2, 0.0314, 0.04))
    assert caught.value.exit_code == ExitCode.VERIFICATION


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bound_is_positive(messages: Messages, bound: float) -> None:
    model = random_model(MODEL)
    with messages.raises(UsageError):
        search(model, random_batches(model, 1), bound, drops())


def columns(model: QuantizedModel) -> dict[str, int]:
    """Columns of the matrix of every dense layer, by name."""
    shapes = {name: array.shape for name, array in model.parameters.items()}
    return {
        name: shape[1]
        for name, shape in shapes.items()
        if name.endswith("dense.weight") and len(shape) == 2 and "pooler" not in name
    }


@pytest.mark.slow
def test_recipes_are_mixed_by_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {"alphas": (0.5,), "balance": (), "compensate": False, "sample_tokens": 256}
    split = {"split_share": 1 / 4, "copied_share": 1 / 4}
    recipes = {"few": ("default", quick), "many": ("default", {**quick, **split})}
    monkeypatch.setattr(searching, "_RECIPES", recipes)
    model, tried = random_model("wide bert"), []
    batches = random_batches(model, 2)
    few, many = (
        columns(quantize(model, batches, options=options_of(level, **changes)))
        for level, changes in recipes.values()
    )
    measured = []

    def measure(result: QuantizedModel) -> float:
        """As if every operand of the dearer form took as much off the drop."""
        measured.append(columns(result))
        others = result.quantization["calibration"].get("others", {"operands": ()})
        return 0.1 if measured[-1] == few else 0.04 + 0.01 * len(others["operands"])

    found = search(model, batches, 0.07, measure, target=BYTES, begin=tried.append)
    labels = ["few", "many", *(f"many, for {n} of 6 operands" for n in (3, 1, 2))]
    assert tried == labels == [trial.recipe for trial in found.trials]
    assert [trial.holds for trial in found.trials] == [False, True, True, False, False]
    assert found.recipe == labels[2]
    works = {trial.recipe: trial.work for trial in found.trials}
    assert works["few"] < works[labels[3]] < works[labels[4]] < works[labels[2]] < works["many"]
    # A mix consists of operands of the one and of the other.
    assert measured[0] == few
    assert measured[1] == many
    mixed = columns(found.model)
    assert few != mixed != many
    assert all(mixed[name] in (few[name], many[name]) for name in mixed)
    record = found.model.quantization["calibration"]
    assert len(record["others"]["operands"]) == 3
    assert record["options"]["split_share"] == 1 / 4 > record["others"]["options"]["split_share"]


@pytest.mark.slow
def test_no_operand_may_be_enough_where_values_are_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {"alphas": (0.5,), "balance": (), "compensate": False, "sample_tokens": 64}
    recipes = {
        "few": ("default", {**quick, "split_share": 0.0, "wide_values": False}),
        "many": ("default", {**quick, "split_share": 1 / 4}),
    }
    monkeypatch.setattr(searching, "_RECIPES", recipes)
    model = random_model("wide bert")
    measured = drops(0.2, 0.01, 0.01, 0.01)
    found = search(model, random_batches(model, 1), 0.01, measured, target=BYTES)
    assert [trial.recipe for trial in found.trials] == [
        *("few", "many", "many, for 0 of 2 operands")
    ]
    assert found.recipe == "many, for 0 of 2 operands"
    assert set(columns(found.model).values()) == {96, 128}
    values = found.model.program.steps
    wide = [step.type.dtype for step in values if step.name.endswith("self.value.matmul")]
    assert wide == ["int16", "int16"]


@pytest.mark.slow
def test_what_differs_in_more_is_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {"alphas": (0.5,), "balance": (), "compensate": False, "sample_tokens": 64}
    recipes = {
        "first": ("default", quick),
        "second": ("default", {**quick, "observer": "mse", "split_share": 1 / 4}),
    }
    monkeypatch.setattr(searching, "_RECIPES", recipes)
    model = random_model("wide bert")
    found = search(model, random_batches(model, 1), 0.01, drops(0.2, 0.01), target=BYTES)
    assert [trial.recipe for trial in found.trials] == ["first", "second"]


@pytest.fixture
def narrow_and_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {"alphas": (0.5,), "balance": (), "compensate": False, "sample_tokens": 64}
    few = {**quick, "split_share": 0.0}
    recipes = {
        "narrow": ("default", few),
        "columns": ("default", {**quick, "split_share": 1 / 4}),
        "wide": ("best", few),
    }
    monkeypatch.setattr(searching, "_RECIPES", recipes)


@pytest.mark.slow
def test_operands_of_16_bits_are_twice_the_products_of_bytes(narrow_and_wide: None) -> None:
    """So as few have them as will do, and columns come before."""
    model = random_model("wide bert")
    measured = drops(0.2, 0.1, 0.001, 0.02, 0.009, 0.001)
    found = search(model, random_batches(model, 1), 0.01, measured, target=BYTES)
    tried = [trial.recipe for trial in found.trials]
    assert tried[:3] == ["narrow", "columns", "wide"]
    assert [trial.split(" of ")[0] for trial in tried[3:]] == [f"wide, for {n}" for n in (4, 6, 5)]
    narrow, columns, wide = (trial.work for trial in found.trials[:3])
    assert narrow < columns < wide < 2 * narrow
    assert all(narrow < trial.work < wide for trial in found.trials[3:])
    kinds = {
        step.operands["x"]: step.operator.TRAITS.matrix_product
        for step in found.model.program.steps
        if "x" in step.operands
    }
    types = {step.name: step.type.dtype for step in found.model.program.steps}
    read = [types[name] for name, product in kinds.items() if product and name in types]
    assert read.count("int16") == 5 < len(read)


@pytest.mark.slow
def test_where_16_bits_are_multiplied_columns_are_not_tried(narrow_and_wide: None) -> None:
    model = random_model("wide bert")
    measured = drops(0.2, 0.001, *(0.02,) * 4)
    found = search(model, random_batches(model, 1), 0.01, measured, target=SHORT)
    assert [trial.recipe for trial in found.trials[:2]] == ["narrow", "wide"]
    narrow, wide = (trial.work for trial in found.trials[:2])
    assert narrow < wide < 1.03 * narrow


def test_which_targets_multiply_16_bits() -> None:
    short = ["x86-64-v3", "cortex-m4", "cortex-m3", "cortex-m0"]
    others = ["x86-avx512-vnni", "x86-64", "aarch64-dotprod", "t4", "cortex-m55"]
    assert [multiplies_short(name) for name in short + others] == [True] * 4 + [False] * 5
    with pytest.raises(TargetError):
        multiplies_short("z80")


def test_every_fifth_text_is_held_back() -> None:
    kept, held = hold_back([str(number) for number in range(11)])
    assert held == ["4", "9"]
    assert kept == ["0", "1", "2", "3", "5", "6", "7", "8", "10"]


def test_few_texts_are_not_split(messages: Messages) -> None:
    with messages.raises(UsageError):
        hold_back(["a"] * 9)


@pytest.mark.slow
def test_scales_per_token_and_further_columns_are_work() -> None:
    model = random_model(MODEL)
    quick = {"alphas": (0.5,), "compensate": False, "sample_tokens": 64}
    plain, columns, rows = (
        work_per_token(
            quantize(
                model, random_batches(model, 1), options=options_of("fast", **quick, **changes)
            ).program,
            short=False,
        )
        for changes in ({}, {"split_share": 1 / 6}, {"row_scales": "always"})
    )
    # Two layers: 16 rows more of the first matrix, 16 columns more of the second, and the gather.
    assert columns - plain >= 2 * 2 * 16 * 48
    assert rows > plain
