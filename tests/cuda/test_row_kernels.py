"""Row operations, and everything that is computed entry by entry, on a GPU: bit for bit."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from numpy.typing import NDArray
from tvm import tirx

from ibert_tvm.relay_passes.passes import TargetKind, phases_of
from ibert_tvm.schedules.cuda.columns import ColumnSumsRule
from ibert_tvm.schedules.cuda.elementwise import ElementwiseRule
from ibert_tvm.schedules.cuda.fallback import FallbackRule
from ibert_tvm.schedules.cuda.rows import RowsRule
from ibert_tvm.schedules.rule import kernel_name
from ibert_tvm.targets import get_target
from tests.arm import matrix_kernels
from tests.arm.row_kernels import KERNELS
from tests.arm.row_program import RowKernel
from tests.cuda.stand_in_gpu import run_kernel
from tests.examples import examples
from tests.passes import test_images as images
from tests.passes.models import encoder_program
from tests.passes.small import UNPACKED
from tests.schedules.everywhere import program_kernels
from tests.schedules.machine import refusal

RULES = {
    rule.name: rule for rule in (ElementwiseRule(), RowsRule(), ColumnSumsRule(), FallbackRule())
}
RULE_OF = {
    "gelu": "elementwise",
    "gelu_paper": "elementwise",
    "gate": "elementwise",
    "sigmoid": "elementwise",
    "residual_add": "elementwise",
    "rotate": "elementwise",
    "rotate_packed": "elementwise",
    "requantise": "elementwise",
    "embedding": "elementwise",
    "layer_norm": "rows",
    "layer_norm_wide": "rows",
    "norm_by_row": "rows",
    "quantise_rows": "rows",
    "rms_norm": "rows",
    "rms_norm_wide": "rows",
    "released_norm": "rows",
    "mean_pool": "column sums",
    "max_pool": "column sums",
    "last_token": "fallback",
    "weighted_mean_pool": "column sums",
    "sqrt_mean_pool": "column sums",
    "attention_pool": "fallback",
    "attention_pool_paper": "fallback",
    "concatenate": "elementwise",
    "log1p_relu": "elementwise",
    "position_ids": "column sums",
}
# Runs of 8, of 2 with idle threads, and of 1; in the last, squares are added up one by one.
SHAPES = [(5, 384), (7, 130), (3, 101)]


def check(
    name: str,
    func: tirx.PrimFunc,
    inputs: list[NDArray[np.integer]],
    outputs: list[NDArray[np.integer]],
    target: str,
    rule: str,
    observed: bool = False,
) -> None:
    """Write a kernel by the rule it should take, execute it, and compare."""
    written = RULES[rule].schedule(func, get_target(target))
    assert isinstance(written, tirx.PrimFunc), written
    unwritten = [np.full(output.shape, 77, output.dtype) for output in outputs]
    found = run_kernel(written, [*inputs, *unwritten], target, observed)
    for number, (got, want) in enumerate(zip(found[len(inputs) :], outputs, strict=True)):
        np.testing.assert_array_equal(got, want, f"result {number} of {name}")


@pytest.mark.slow_cases(8)
@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    "shape", examples(SHAPES, (7, 130)), ids=lambda shape: "x".join(map(str, shape))
)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_equal_the_specification(name: str, shape: tuple[int, int]) -> None:
    kernel = KERNELS[name](get_target("t4"), *shape)
    check(name, kernel.func, kernel.inputs, kernel.outputs, "t4", RULE_OF[name])


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        # Four rows in a block, the last of them half empty.
        ("layer_norm", (322, 384)),
        # Several warps for a row, two sums one after the other.
        ("layer_norm_wide", (2, 4096)),
        ("released_norm", (2, 4100)),
        ("norm_by_row", (2, 4096)),
        ("quantise_rows", (2, 4100)),
        ("layer_norm", (1, 7)),
        ("gelu", (1, 1)),
        # Runs of 16 bytes, and more than one block.
        ("requantise", (131, 768)),
        # Four channels for every lane.
        ("mean_pool", (3, 6400)),
    ],
)
def test_ways_to_share_work_out(name: str, shape: tuple[int, int]) -> None:
    kernel = KERNELS[name](get_target("t4"), *shape)
    check(name, kernel.func, kernel.inputs, kernel.outputs, "t4", RULE_OF[name])


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", ["layer_norm", "layer_norm_wide", "released_norm", "mean_pool"])
@pytest.mark.parametrize("target", examples(["a100", "h100"], "h100"))
def test_newer_gpus_add_up_in_one_instruction(name: str, target: str) -> None:
    kernel = KERNELS[name](get_target(target), 9, 260)
    check(name, kernel.func, kernel.inputs, kernel.outputs, target, RULE_OF[name])


def _no_product(func: tirx.PrimFunc) -> bool:
    return kernel_name(func) not in ("", "linear", "attention")


@functools.cache
def kernels_of(program: str) -> dict[str, RowKernel]:
    """Kernels of a small program by what they are."""
    model, shape, phases = {
        "images": (images.program("accurate"), (2, images.TOKENS), UNPACKED),
        "masked": (encoder_program(36, 3, 50, masked=True, seed=2), (3, 17), UNPACKED),
        "into norms": (encoder_program(36, 3, 50, seed=2), (3, 17), phases_of(TargetKind.GPU)),
        "roberta": (
            encoder_program(32, 2, 48, "paper", "relu", roberta=True, seed=2),
            (2, 33),
            phases_of(TargetKind.GPU),
        ),
    }[program]
    made = program_kernels(model, get_target("t4"), shape, _no_product, phases)
    # Of several norms that of the embeddings, which reads most.
    return {kernel_name(one.func): one for one in sorted(made, key=lambda one: len(one.inputs))}


PROGRAM_KERNELS = [
    ("masked", "add", "elementwise"),
    ("masked", "mask_tokens", "elementwise"),
    ("masked", "position_ids", "elementwise"),
    ("masked", "select_token", "elementwise"),
    ("masked", "mean_pool", "column sums"),
    ("into norms", "layer_norm", "rows"),
    ("roberta", "layer_norm", "rows"),
    ("roberta", "position_ids", "column sums"),
    ("images", "patches", "elementwise"),
    ("images", "prepend_tokens", "elementwise"),
    ("images", "mean_pool", "column sums"),
]


@pytest.mark.representatives(1)
@pytest.mark.parametrize(("program", "kind", "rule"), PROGRAM_KERNELS)
def test_kernels_of_programs_equal_the_specification(program: str, kind: str, rule: str) -> None:
    kernel = kernels_of(program)[kind]
    check(kernel.name, kernel.func, kernel.inputs, kernel.outputs, "t4", rule, observed=True)


def test_ids_outside_of_a_table_are_clamped() -> None:
    kernel = KERNELS["embedding"](get_target("t4"), 4, 32)
    ids, table, *others = kernel.inputs
    wild = np.array([[-1, 10**9, -(2**31), 49]], "int32")
    last = len(table) - 1
    written = ElementwiseRule().schedule(kernel.func, get_target("t4"))
    blank = np.zeros_like(kernel.outputs[0])
    *_, got = run_kernel(written, [wild, table, *others, blank])
    clamped = np.array([[0, last, 0, last]], ids.dtype)
    *_, want = run_kernel(written, [clamped, table, *others, blank])
    np.testing.assert_array_equal(got, want)
    assert np.unique(got).size > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layer_norm", "gelu", "embedding", "mean_pool"])
def test_every_access_is_inside_its_array(name: str) -> None:
    kernel = KERNELS[name](get_target("t4"), 3, 44)
    check(name, kernel.func, kernel.inputs, kernel.outputs, "t4", RULE_OF[name], observed=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layer_norm", "released_norm", "position_ids", "attention"])
def test_a_grid_per_stage_serves_any_kernel(name: str) -> None:
    target = get_target("t4")
    kernel = (
        matrix_kernels.attention(target, 2, 9, 2, 16, preset="paper", masked=2)
        if name == "attention"
        else KERNELS[name](target, 5, 36)
    )
    check(name, kernel.func, kernel.inputs, kernel.outputs, "t4", "fallback")


def test_rules_say_what_they_do_not_take() -> None:
    target = get_target("t4")
    norm = KERNELS["layer_norm"](target, 2, 16).func
    pool = KERNELS["mean_pool"](target, 2, 16).func
    assert refusal(RULES["elementwise"], norm, target) == "stage 'sum' is a reduction"
    assert (
        refusal(RULES["rows"], pool, target) == "stage 'count' adds up something else than channels"
    )
    assert refusal(RULES["column sums"], norm, target) == (
        "there is no reduction over one axis for every row and channel"
    )
    for name in ("elementwise", "rows", "column sums"):
        assert refusal(RULES[name], norm, get_target("x86-64")) == "target x86-64 is no GPU"
