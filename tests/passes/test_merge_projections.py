"""MergeProjections: queries, keys and values in one matrix product."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.relay_passes.passes.fuse_epilogues import FuseEpilogues
from ibert_tvm.relay_passes.passes.merge_projections import MergeProjections
from ibert_tvm.relay_passes.passes.specialise_shapes import SpecialiseShapes
from tests.passes.models import ProgramBuilder, encoder_program
from tests.passes.small import CHANNELS, calls, kernels, outputs_of, small_program


def merge(program: IntegerProgram) -> IntegerProgram:
    """Apply the pass."""
    return MergeProjections()(program)


def attention(p: ProgramBuilder, inputs, name: str, q, k, v):
    """Attention of two heads on three 8-bit values."""
    factors = p.integers(f"{name}.multiplier", 2**14, 2**15 - 1, (CHANNELS,), "int16")
    return p.attention(name, [q, k, v], inputs["attention_mask"], factors)


def projections(
    p: ProgramBuilder, x, labels: str = "qkv", highs=(127, 127, 127), shared=None, widths=None
):
    """Linear layers of one value, each requantised; `shared` is a weight that the first reads."""
    results = []
    widths = widths or [CHANNELS] * len(labels)
    for place, (label, high) in enumerate(zip(labels, highs, strict=True)):
        if shared is not None and place == 0:
            bias = p.integers(f"{label}.bias", -99, 99, (CHANNELS,), "int32")
            layer = p.emit(integer.linear(x, shared, bias, name=label))
        else:
            layer = p.linear(label, x, widths[place])
        # One channel's constants for some of them: they are repeated.
        channels = 1 if place == 1 else widths[place]
        results.append(
            p.requantise_short(f"{label}_8", layer, 2.0**-8, high=high, channels=channels)
        )
    return results


def plain(p: ProgramBuilder, inputs):
    """Attention whose operands can be merged."""
    return [attention(p, inputs, "attention", *projections(p, inputs["x"]))]


def test_three_layers_become_one_and_attention_reads_runs_of_its_channels() -> None:
    before = small_program(plain, x="int8")
    after = merge(before)
    assert calls(after.module["main"]) == [
        ("linear", "attention.projections"),
        ("requantise_short", "attention.projections.matmul"),
        ("split_channels", "q_8"),
        ("split_channels", "k_8"),
        ("split_channels", "v_8"),
        ("attention", "attention"),
    ]
    np.testing.assert_array_equal(outputs_of(after)[0], outputs_of(before)[0])


def grouped(p: ProgramBuilder, inputs):
    """Attention whose two heads share one of keys and values."""
    widths = [CHANNELS, CHANNELS // 2, CHANNELS // 2]
    return [attention(p, inputs, "attention", *projections(p, inputs["x"], widths=widths))]


def test_layers_of_unequal_widths_become_one_too() -> None:
    before = small_program(grouped, x="int8")
    after = merge(before)
    assert calls(after.module["main"]) == [
        ("linear", "attention.projections"),
        ("requantise_short", "attention.projections.matmul"),
        ("channel_run", "q_8"),
        ("channel_run", "k_8"),
        ("channel_run", "v_8"),
        ("attention", "attention"),
    ]
    np.testing.assert_array_equal(outputs_of(after)[0], outputs_of(before)[0])
    assert merge(after) is after


def test_parameters_are_joined_and_the_old_ones_dropped() -> None:
    before = small_program(plain, x="int8")
    after = merge(before)
    names = [str(var.name) for var in after.module["main"].params[3:]]
    assert names == list(after.parameters)
    assert not any(name in after.parameters for name in ("q.weight", "k.bias", "v_8.multiplier"))
    joined = after.parameters["q.weight.with.2.more"]
    rows = [before.parameters[f"{label}.weight"] for label in "qkv"]
    np.testing.assert_array_equal(joined, np.concatenate(rows))
    shifts = after.parameters["q_8.pre_shift.with.2.more"]
    assert shifts.shape == (3 * CHANNELS,)
    assert set(shifts[CHANNELS : 2 * CHANNELS]) == {int(before.parameters["k_8.pre_shift"][0])}


def test_values_keep_their_intervals() -> None:
    before = small_program(plain, x="int8")
    old = analyse_ranges(before.module, before.parameters).values
    after = merge(before)
    new = analyse_ranges(after.module, after.parameters).values
    for name in ("q_8", "k_8", "v_8", "attention"):
        assert new[name] == old[name]


def test_a_second_application_changes_nothing() -> None:
    once = merge(small_program(plain, x="int8"))
    assert merge(once) is once


def test_only_operands_with_equal_settings_are_merged() -> None:
    def body(p, inputs):
        q, k, v = projections(p, inputs["x"], highs=(127, 100, 127))
        return [attention(p, inputs, "attention", q, k, v)]

    before = small_program(body, x="int8")
    after = merge(before)
    names = [name for op, name in calls(after.module["main"]) if op == "linear"]
    assert names == ["attention.projections", "k"]
    np.testing.assert_array_equal(outputs_of(after)[0], outputs_of(before)[0])


def test_layers_of_different_values_stay_apart() -> None:
    def body(p, inputs):
        (q,) = projections(p, inputs["x"], "q", (127,))
        k, v = projections(p, inputs["y"], "kv", (127, 127))
        return [attention(p, inputs, "attention", q, k, v)]

    before = small_program(body, x="int8", y="int8")
    after = merge(before)
    names = [name for op, name in calls(after.module["main"]) if op == "linear"]
    assert names == ["q", "attention.projections"]
    np.testing.assert_array_equal(outputs_of(after)[0], outputs_of(before)[0])


def test_a_value_with_another_reader_is_no_part_of_a_merged_layer() -> None:
    def body(p, inputs):
        q, k, v = projections(p, inputs["x"])
        return [attention(p, inputs, "attention", q, k, v), q, v]

    before = small_program(body, x="int8")
    assert merge(before) is before


def test_a_matrix_that_another_layer_reads_is_not_stored_twice() -> None:
    def body(p, inputs):
        shared = p.integers("shared", -99, 99, (CHANNELS, CHANNELS), "int8")
        q, k, v = projections(p, inputs["x"], shared=shared)
        bias = p.integers("other.bias", -99, 99, (CHANNELS,), "int32")
        other = p.emit(integer.linear(inputs["x"], shared, bias, name="other"))
        return [attention(p, inputs, "attention", q, k, v), other]

    before = small_program(body, x="int8")
    assert merge(before) is before


def test_layers_that_share_their_matrices_share_the_merged_one() -> None:
    def body(p, inputs):
        matrices = [
            p.integers(f"{label}.weight", -99, 99, (CHANNELS, CHANNELS), "int8") for label in "qkv"
        ]
        x, contexts = inputs["x"], []
        for layer in range(2):
            parts = []
            for label, matrix in zip("qkv", matrices, strict=True):
                bias = p.integers(f"{layer}.{label}.bias", -99, 99, (CHANNELS,), "int32")
                value = p.emit(integer.linear(x, matrix, bias, name=f"{layer}.{label}"))
                parts.append(p.requantise_short(f"{layer}.{label}_8", value, 2.0**-8))
            contexts.append(attention(p, inputs, f"{layer}.attention", *parts))
            x = contexts[-1]
        return contexts

    before = small_program(body, x="int8")
    after = merge(before)
    assert [name for name in after.parameters if after.parameters[name].dtype == np.int8] == [
        "q.weight.with.2.more"
    ]
    for got, want in zip(outputs_of(after), outputs_of(before), strict=True):
        np.testing.assert_array_equal(got, want)


def test_the_published_preset_has_a_scale_of_its_own_for_each_and_stays() -> None:
    program = encoder_program(preset="paper")
    assert merge(program) is program


def test_attention_takes_the_runs_into_its_kernel_as_arguments_of_their_own() -> None:
    program = SpecialiseShapes([(2, 4)])(merge(small_program(plain, x="int8")))
    fused = FuseEpilogues()(program).module
    assert kernels(fused) == {
        "attention.projections": [
            ("linear", "attention.projections"),
            ("requantise_short", "attention.projections.matmul"),
        ],
        "attention": [
            ("split_channels", "q_8"),
            ("split_channels", "k_8"),
            ("split_channels", "v_8"),
            ("attention", "attention"),
        ],
    }
    (function,) = (
        f
        for f in fused.functions.values()
        if "ibert.layer" in (f.attrs or {}) and str(f.attrs["ibert.layer"]) == "attention"
    )
    # The merged value three times, the mask, the multiplier.
    assert len(function.params) == 5


@pytest.mark.parametrize("hidden", [32, 20])
def test_the_merged_encoder_computes_what_the_program_says(hidden: int) -> None:
    before = encoder_program(hidden=hidden, heads=4)
    after = merge(before)
    assert after is not before
    for got, want in zip(outputs_of(after), outputs_of(before), strict=True):
        np.testing.assert_array_equal(got, want)


def gate(p: ProgramBuilder, inputs, width: int = CHANNELS, read_again: bool = False):
    """A gate whose sides are linear layers of the same value, with scales of their own."""
    x = inputs["x"]
    sides = [p.linear(label, x, width) for label in ("gate", "up")]
    rows = [
        p.requantise_short(f"{label}_8", side, 2.0**-gain, channels=width)
        for label, side, gain in zip(("gate", "up"), sides, (8, 9), strict=True)
    ]
    passed = p.emit(integer.relu(rows[0], name="relu"))
    product = p.emit(integer.multiply(passed, rows[1], name="z"))
    return [product, sides[1]] if read_again else [product]


def test_both_sides_of_a_gate_become_one_layer_whose_kernel_stores_neither() -> None:
    before = small_program(gate, x="int8")
    after = MergeProjections(CHANNELS)(before)
    made = [name for name, _ in calls(after.module["main"])]
    assert made.count("linear") == 1 and made.count("split_channels") == 2
    np.testing.assert_array_equal(outputs_of(after), outputs_of(before))
    static = SpecialiseShapes([(2, 4)])(after)
    assert list(kernels(FuseEpilogues(columns=CHANNELS)(static).module)) == ["z.projections"]
    for columns in (0, 2 * CHANNELS):  # such runs are copied
        apart = kernels(FuseEpilogues(columns=columns)(static).module)
        assert [op for op, _ in apart["z.projections"]] == ["linear"] and {"gate", "up"} <= {*apart}
    assert MergeProjections(CHANNELS)(after) is after


@pytest.mark.parametrize(
    ("columns", "options"),
    [(0, {}), (16, {"width": 24}), (CHANNELS, {"read_again": True})],
    ids=["no_kernel", "width", "another_reader"],
)
def test_sides_of_a_gate_stay_apart(columns: int, options: dict[str, object]) -> None:
    before = small_program(lambda p, inputs: gate(p, inputs, **options), x="int8")
    assert MergeProjections(columns)(before) is before
