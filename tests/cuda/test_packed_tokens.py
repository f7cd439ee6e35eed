"""Padding that a GPU does not compute: which rows kernels work on, and that bits stay."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.passes import TargetKind, phases_of
from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.schedules.cuda import attention_parts
from ibert_tvm.schedules.cuda.attention_tile import AttentionSizes, AttentionTile
from ibert_tvm.schedules.cuda.serial import SerialRule
from ibert_tvm.schedules.row_guard import ROW_COUNT
from ibert_tvm.schedules.rule import kernel_name
from ibert_tvm.targets import Gpu, get_target
from tests.arm.tools import needs
from tests.cuda.gpu_models import as_model, build, check_mixes
from tests.cuda.stand_in_gpu import Kernel, load, run_kernel
from tests.examples import examples
from tests.lowering import lowered
from tests.passes.models import ENCODERS, encoder_program
from tests.passes.small import small_program
from tests.passes.test_pack_tokens import masks_of
from tests.schedules.machine import refusal


@pytest.fixture(autouse=True)
def _compiler():
    needs("g++")
    yield
    load().reset()


# One token, fewer than a warp, several turns of the largest block.
@pytest.mark.parametrize(
    ("shape", "selected"),
    examples([((1, 1), ""), ((3, 17), "0"), ((5, 500), "0,499")], ((3, 17), "0"), unpack=True),
    ids=str,
)
def test_a_block_of_threads_counts_as_loops_do(shape: tuple[int, int], selected: str) -> None:
    def body(p, i):
        slots = p.emit(integer.token_slots(i["attention_mask"], name="slots", selected=selected))
        made = integer.slot_tokens(slots, name="tokens"), integer.slot_starts(slots, name="starts")
        return [slots, *map(p.emit, made)]

    program = small_program(body)
    target = get_target("t4")
    made = lowered(program, target, [shape], phases_of(TargetKind.GPU)).program.module
    kernels = {kernel_name(f): f for f in made.functions.values() if "ibert.kernel" in f.attrs}
    compiled = {
        kind: Kernel(SerialRule().schedule(func, target), observed=True)
        for kind, func in kernels.items()
    }
    for name, mask in masks_of(*shape).items():
        inputs = {"input_ids": mask, "attention_mask": mask}
        slots, tokens, starts = evaluate(program.module, inputs, program.parameters)
        for kind, read, expected in (
            ("token_slots", mask, slots),
            ("slot_tokens", slots.astype("int32"), tokens),
            ("slot_starts", slots.astype("int32"), starts),
        ):
            blank = np.full(expected.shape, 77, "int32")
            *_, got = compiled[kind]([read, blank])
            np.testing.assert_array_equal(got, expected, f"{kind}, {name}")


@pytest.mark.parametrize("hidden", [384, 768])
def test_rows_of_a_table_are_loaded_by_vectors_where_tokens_are_packed(hidden: int) -> None:
    program = encoder_program(hidden=hidden, heads=12, feed_forward=16, masked=True)
    target = get_target("t4")
    made = lowered(program, target, [(2, 8)], phases_of(TargetKind.GPU)).program.module
    (norm,) = (f for f in made.functions.values() if f.attrs.get("ibert.layer") == "embedding_norm")
    copies = re.findall(r"copy_bytes<\d+>.*", schedule_kernel("norm", norm, target).script())
    tables = [var.name for var in norm.params if str(var.ty.dtype) == "int8"][:2]
    assert len(tables) == 2
    for table in tables:
        assert any(f"({table}[" in line for line in copies), table


def test_stages_are_left_to_other_rules() -> None:
    program = encoder_program(masked=True)
    target = get_target("t4")
    made = lowered(program, target, [(1, 4)], phases_of(TargetKind.GPU)).program.module
    add = next(f for f in made.functions.values() if kernel_name(f) == "linear")
    expected = "the kernel is made of stages, not of loops in one block"
    assert refusal(SerialRule(), add, target) == expected


@pytest.mark.slow
def test_rows_without_a_token_are_not_written() -> None:
    """What a kernel leaves alone costs nothing: its result keeps what was there."""
    target, tokens = get_target("t4"), [0, 3, 3, 40]
    batch, length = len(tokens) - 1, 64
    program = encoder_program(hidden=32, masked=True)
    made = lowered(program, target, [(batch, length)], phases_of(TargetKind.GPU)).program.module
    skipping = set()
    for function in made.functions.values():
        if ROW_COUNT not in (function.attrs or {}):
            continue
        written = schedule_kernel("kernel", function, target)
        arrays = [
            np.full([int(n) for n in buffer.shape], 1, str(buffer.dtype))
            for buffer in function.params
        ]
        for array in arrays:
            if array.shape == (batch + 1,):
                array[:] = tokens
        arrays[-1][:] = 77
        *_, result = run_kernel(written, arrays)
        assert (result[:40] != 77).any(), kernel_name(function)
        assert (result[128:] == 77).all(), kernel_name(function)  # no tile has more rows
        skipping.add(kernel_name(function))
    assert {"linear", "layer_norm", "attention", "layer_norm_short"} <= skipping


def _cut(keys: int, held: bool, sizes: AttentionSizes, _gpu: Gpu) -> list[AttentionTile]:
    """A tile with so many keys to a step."""
    steps = -(-sizes.run_keys(16) // keys)
    return [AttentionTile(1, 1, keys, steps, held, False)]


CUTS = {"default": None, "steps": (32, True), "steps twice": (32, False)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "target", "shape", "cut", "runtime"),
    [
        ("odd", "t4", (3, 17), "default", "tvm"),
        ("whole", "a100", (4, 32), "default", "none"),
        ("paper", "t4", (3, 33), "default", "none"),
        ("relu_roberta", "a100", (3, 17), "default", "tvm"),
        *(
            (model, target, (3, 61), cut, "tvm")
            for model, target in (("even", "t4"), ("paper", "a100"))
            for cut in ("steps", "steps twice")
        ),
    ],
)
def test_every_mix_of_lengths_gives_the_bits_of_the_specification(
    model: str, target: str, shape: tuple[int, int], cut: str, runtime: str, tmp_path: Path
) -> None:
    quantised = as_model(encoder_program(**ENCODERS[model], seed=3, masked=True))
    choose = CUTS[cut]
    chosen = attention_parts.candidate_tiles
    if choose is not None:
        chosen = functools.partial(_cut, *choose)
    with mock.patch.object(attention_parts, "candidate_tiles", chosen):
        path = tmp_path / "model.so"
        library = build(quantised, target, [shape], path, observed=True, runtime=runtime)
    assert all(function.packed for function in library.metadata.functions)
    check_mixes(library, quantised, shape)
