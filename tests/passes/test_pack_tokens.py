"""Packing the tokens of a padded batch: what is packed, what is skipped, and that bits stay."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.emit import KernelLayout
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.passes import IntegerProgram, lower_to_kernels
from ibert_tvm.relay_passes.passes.pack_tokens import PackTokens
from ibert_tvm.relay_passes.passes.program import bindings
from ibert_tvm.schedules import schedule_module
from ibert_tvm.targets import get_target
from tests.examples import examples
from tests.passes.execution import Compiled, reference
from tests.passes.models import ENCODERS, VOCABULARY, encoder_program
from tests.passes.small import calls, small_program

WHOLE, ODD = [(1, 16), (3, 32)], [(1, 17), (3, 33)]


def masks_of(batch: int, seq_len: int) -> dict[str, np.ndarray]:
    """Masks of every kind that a caller may give."""
    random = np.random.default_rng(batch * seq_len)
    lengths = random.integers(1, seq_len + 1, (batch, 1))
    one = np.zeros((batch, seq_len), "int32")
    one[-1, -1] = 1
    holes = random.integers(0, 2, (batch, seq_len)).astype("int32")
    left = (np.arange(seq_len) >= seq_len - lengths).astype("int32")
    empty_row = (np.arange(seq_len) < lengths).astype("int32")
    empty_row[0] = 0
    return {
        "no padding": np.ones((batch, seq_len), "int32"),
        "lengths": (np.arange(seq_len) < lengths).astype("int32"),
        "padding first": left,
        "holes": holes,
        "a row of padding": empty_row,
        "one token": one,
        "nothing": np.zeros((batch, seq_len), "int32"),
    }


def _ids(batch: int, seq_len: int) -> np.ndarray:
    random = np.random.default_rng(seq_len)
    return random.integers(2, VOCABULARY, (batch, seq_len)).astype("int32")


@pytest.mark.representatives(1)
@pytest.mark.parametrize("model", ENCODERS)
def test_packed_program_evaluates_to_the_same_integers(model: str) -> None:
    program = encoder_program(**ENCODERS[model], seed=3, masked=True)
    packed = PackTokens()(program)
    assert "ibert.packed" in packed.module["main"].attrs
    for name, mask in masks_of(3, 17).items():
        ids = _ids(3, 17)
        expected = reference(program, ids, mask)
        for got, want in zip(reference(packed, ids, mask), expected, strict=True):
            np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "target", "shapes"),
    examples(
        [
            *((m, "x86-avx512-vnni", WHOLE if m == "whole" else ODD) for m in ENCODERS),
            ("odd", "x86-64-v3", ODD),
            ("whole", "x86-64-v3", WHOLE),
            ("odd", "x86-avx-vnni", ODD),
            ("odd", "x86-amx", ODD),
            ("relu_roberta", "x86-64", ODD),
            ("relu_roberta", "x86-64", ODD[1:]),
        ],
        ("relu_roberta", "x86-64", ODD[1:]),
        unpack=True,
    ),
)
def test_compiled_packed_program_equals_the_unpacked_evaluation(
    model: str, target: str, shapes: list[tuple[int, int]]
) -> None:
    program = encoder_program(**ENCODERS[model], seed=5, masked=True)
    compiled = Compiled(program, target, shapes)
    for batch, seq_len in shapes:
        ids = _ids(batch, seq_len)
        for name, mask in masks_of(batch, seq_len).items():
            expected = reference(program, ids, mask)
            for got, want in zip(compiled(ids, mask), expected, strict=True):
                np.testing.assert_array_equal(got, want, err_msg=f"{batch}x{seq_len}, {name}")


def test_values_of_padding_are_zero_in_outputs_per_token() -> None:
    program = encoder_program(seed=1, masked=True)
    for name, mask in masks_of(3, 9).items():
        last, *_ = reference(program, _ids(3, 9), mask)
        assert not last[mask == 0].any(), name
        assert last[mask == 1].any() or not mask.any(), name


def test_ranges_are_those_of_the_unpacked_program() -> None:
    program = encoder_program(seed=2, masked=True)
    before = analyse_ranges(program.module, program.parameters).values
    after = analyse_ranges(PackTokens()(program).module, program.parameters).values
    assert {name: after[name] for name in before} == before


def test_operators_of_a_packed_program() -> None:
    program = encoder_program(masked=True)
    main = PackTokens()(program).module["main"]
    added = [item for item in calls(main) if item not in calls(program.module["main"])]
    assert added == [
        ("token_slots", "packing.slots"),
        ("slot_tokens", "packing.tokens"),
        ("slot_starts", "packing.starts"),
        ("pack_tokens", "packing.operand.0"),
        ("pack_tokens", "packing.operand.1"),
        ("pack_tokens", "packing.operand.2"),
    ]
    attention = next(b.value for b in bindings(main) if b.value.op.name == "integer.attention")
    assert len(attention.args) == 6


def test_packing_twice_changes_nothing() -> None:
    once = PackTokens()(encoder_program(masked=True))
    assert PackTokens()(once) is once


def _refused() -> dict[str, IntegerProgram]:
    """Programs that stay as they are."""

    def norm(p, x):
        return p.layer_norm("norm", x)

    def output_per_token(p, i):
        ids = p.integers("table", -9, 9, (50, 8), "int8"), p.integers("m", 1, 9, (1,), "int32")
        x = norm(p, p.emit(integer.embedding(i["input_ids"], *ids, name="e", shift=2)))
        return [p.emit(integer.mean_pool(x, i["attention_mask"], name="mean")), x]

    def no_attention(p, i):
        return output_per_token(p, i)[:1]

    def tokens_come_in(p, i):
        x = p.emit(integer.mask_tokens(i["x"], i["attention_mask"], name="masked"))
        return [x]

    def behind_an_output(p, i):
        _, x = output_per_token(p, i)
        masked = p.emit(integer.mask_tokens(x, i["attention_mask"], name="masked"))
        return [norm(p, masked)]

    return {
        "an output per token is not masked": encoder_program(masked=False),
        "no attention": small_program(no_attention),
        "values per token come in": small_program(tokens_come_in, x="int32"),
        "an operator behind a masked value": small_program(behind_an_output),
    }


@pytest.mark.parametrize("case", _refused())
def test_programs_that_cannot_be_packed_stay_as_they_are(case: str) -> None:
    program = _refused()[case]
    assert PackTokens()(program) is program


@pytest.mark.slow
def test_every_kernel_on_packed_rows_is_guarded() -> None:
    program = encoder_program(masked=True)
    target = get_target("x86-avx512-vnni")
    layout = KernelLayout("uint8", 16, 4, 8)
    lowered = lower_to_kernels(program, layout, [(2, 16)]).program
    module = schedule_module(lowered.module, target)
    guarded, other = set(), set()
    for function in module.functions.values():
        if "ibert.kernel" in function.attrs:
            has_guard = "if " in function.script() and "ibert.row_count" in function.attrs
            (guarded if has_guard else other).add(str(function.attrs["ibert.kernel"]))
    assert {"linear", "layer_norm", "add", "attention"} <= guarded
    assert "mask_tokens" in other


@pytest.mark.slow
def test_rows_without_a_token_are_not_written() -> None:
    """What a kernel leaves alone costs nothing: its result keeps what was there."""
    import tvm

    program = encoder_program(hidden=32, masked=True)
    layout = KernelLayout("uint8", 16, 4, 8)
    lowered = lower_to_kernels(program, layout, [(2, 16)]).program
    module = schedule_module(lowered.module, get_target("x86-64"))
    name = next(
        var
        for var, f in module.functions_items()
        if f.attrs.get("ibert.kernel") == "linear" and f.attrs["ibert.layer"] == "outer"
    )
    function = module[name].with_attr("global_symbol", "kernel")
    built = tvm.compile(tvm.IRModule({"kernel": function}), target="llvm")
    arrays = [
        np.full([int(n) for n in buffer.shape], 77, str(buffer.dtype)) for buffer in function.params
    ]
    arrays[int(function.attrs["ibert.row_count"])][-1] = 9
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    built["kernel"](*tensors)
    result = tensors[-1].numpy()
    assert (result[16:] == 77).all()  # two tiles of eight rows
    assert (result[:9] != 77).any()


def test_evaluation_of_the_index_operators() -> None:
    def body(p, i):
        slots = p.emit(integer.token_slots(i["attention_mask"], name="slots", selected="0"))
        tokens = p.emit(integer.slot_tokens(slots, name="tokens"))
        return [
            slots,
            tokens,
            p.emit(integer.slot_starts(slots, name="starts")),
            p.emit(integer.pack_tokens(i["input_ids"], tokens, name="ids")),
            p.emit(integer.mask_tokens(i["x"], i["attention_mask"], slots, name="masked")),
            p.emit(integer.select_token(i["x"], slots, name="second", index=1)),
        ]

    program = small_program(body, x="int16")
    x = np.arange(1, 65, dtype="int16").reshape(2, 4, 8)
    rows = x.reshape(8, 8)
    mask = np.array([[1, 1, 0, 1], [0, 1, 1, 0]], "int32")
    ids = np.arange(10, 18, dtype="int32").reshape(2, 4)
    inputs = {"input_ids": ids, "attention_mask": mask, "x": x}
    results = evaluate(program.module, inputs, program.parameters)
    slots, tokens, starts, packed_ids, masked, second = results
    assert slots.tolist() == [[0, 1, -1, 2], [3, 4, 5, -1]]
    assert tokens.tolist() == [[0, 1, 3, 4], [5, 6, 0, 0]]
    assert starts.tolist() == [0, 3, 6]
    assert packed_ids.tolist() == [[10, 11, 13, 14], [15, 16, 10, 10]]
    zero = np.zeros(8, "int16")
    expected = [[rows[0], rows[1], zero, rows[2]], [zero, rows[4], rows[5], zero]]
    np.testing.assert_array_equal(masked, expected)
    np.testing.assert_array_equal(second, rows[[1, 4]])
