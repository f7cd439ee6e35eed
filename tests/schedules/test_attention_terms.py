"""Attention with windows, masks of pairs, terms of the scores and shared keys, on every family."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.targets import TargetDescription, get_target
from tests.arm.linux_kernels import BoardKernels
from tests.arm.row_program import RowKernel
from tests.arm.tools import board
from tests.cuda.attention_kernels import AttentionCase, AttentionKernel, attention_kernel
from tests.cuda.test_attention_kernels import run as run_on_gpu
from tests.examples import examples
from tests.schedules.everywhere import check_on_microcontroller
from tests.schedules.machine import TARGETS, Kernels, runnable

# Sizes that no tile divides, and sizes that all do; a padded sequence beside a whole one.
ODD = AttentionCase(seq_len=20, batch=2, head_dim=40, padded=(5,))
WHOLE = AttentionCase(seq_len=64, heads=1, head_dim=32, mask="")
# Several blocks of keys, of which a tile of queries sees some.
LONG = AttentionCase(seq_len=104, batch=2, heads=1, head_dim=40, padded=(50,))
CASES = {
    "causal": replace(ODD, after=0),
    "sliding": replace(ODD, before=3, after=2),
    "sliding_over_blocks": replace(LONG, before=20, after=9),
    "causal_over_blocks": replace(LONG, seq_len=128, head_dim=32, after=0, padded=()),
    "published_sliding_over_blocks": replace(LONG, preset="paper", before=20, after=9),
    "by_distance": replace(ODD, bias="distance"),
    "one_for_all_heads": replace(ODD, bias="shared", mask=""),
    "by_query_and_key": replace(ODD, bias="pairs"),
    "pairs_of_tokens": replace(ODD, pairs=True),
    "computed": replace(ODD, terms=("query_term", "key_term")),
    "computed_of_keys_in_a_window": replace(ODD, terms=("key_term",), before=4, bias="shared"),
    "computed_in_whole_tiles": replace(WHOLE, terms=("query_term", "key_term")),
    "published_computed": replace(ODD, preset="paper", terms=("query_term", "key_term")),
    "causal_by_distance_in_whole_tiles": replace(WHOLE, bias="distance", after=0),
    "capped": replace(ODD, cap=1.5, bias="distance", before=9),
    "capped_in_whole_tiles": replace(WHOLE, cap=1.5),
    "published_capped": replace(ODD, preset="paper", cap=1.5, after=3),
    "grouped": replace(ODD, heads=4, sharing=2),
    "grouped_in_whole_tiles": replace(WHOLE, heads=4, sharing=2),
    "grouped_operands_apart": replace(ODD, heads=4, sharing=2, merged=False),
    "one_head_of_keys": replace(ODD, heads=3, sharing=3, bias="distance"),
    "published_grouped": replace(ODD, preset="paper", heads=6, sharing=3),
    "wide": replace(ODD, wide=True, merged=False),
    "wide_in_whole_tiles": replace(WHOLE, wide=True),
    "wide_grouped": replace(ODD, wide=True, heads=4, sharing=2, bias="distance"),
    "wide_sliding": replace(WHOLE, wide=True, before=20, after=9),
    "wide_capped": replace(WHOLE, wide=True, cap=1.5, after=3),
    "published_causal": replace(ODD, preset="paper", after=0),
    "published_by_distance_and_window": replace(ODD, preset="paper", bias="distance", before=4),
}
FEW = (
    "causal",
    "by_distance",
    "computed",
    "capped",
    "grouped",
    "wide",
    "published_by_distance_and_window",
)
BY_BLOCKS = ("sliding_over_blocks", "causal_over_blocks", "published_sliding_over_blocks")
# What its kernels have of their own, besides these.
OF_A_GPU = ("by_query_and_key", "pairs_of_tokens", "computed_of_keys_in_a_window")
OF_A_GPU += (
    "capped_in_whole_tiles",
    "published_capped",
    "grouped_in_whole_tiles",
    "one_head_of_keys",
    "wide_in_whole_tiles",
    "wide_grouped",
    "wide_capped",
)


def kernel_for(target: TargetDescription, name: str) -> AttentionKernel:
    """The kernel of a case; without its term it would answer something else."""
    case = CASES[name]
    kernel = attention_kernel(target, case)
    plain = replace(case, before=AttentionCase.before, after=AttentionCase.after, pairs=False)
    if case.cap:  # a bias is in units of capped scores
        plain = replace(plain, cap=0.0, bias="")
    elif case.bias or case.terms:
        plain = case
    if plain != case:
        assert (attention_kernel(target, plain).expected != kernel.expected).any()
    return kernel


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("x86-avx512-vnni", (*FEW, "sliding_over_blocks")),
        ("x86-amx", (*FEW, "sliding_over_blocks")),
        *(pytest.param(name, tuple(CASES), marks=pytest.mark.slow) for name in TARGETS),
    ],
)
def test_on_this_processor(name: str, cases: tuple[str, ...]) -> None:
    target = runnable(name)
    kernels = {case: kernel_for(target, case) for case in cases}
    functions = {case: schedule_kernel(case, k.func, target) for case, k in kernels.items()}
    compiled = Kernels(functions, target)
    for case, kernel in kernels.items():
        answer = compiled(case, *kernel.arguments)
        np.testing.assert_array_equal(answer, kernel.expected, err_msg=case)


@pytest.mark.qemu
@pytest.mark.parametrize("name", ["rpi4", "aarch64-i8mm", "armv7-neon"])
@pytest.mark.slow
def test_on_boards(name: str) -> None:
    target = board(name)
    kernels = {case: kernel_for(target, case) for case in (*FEW, "sliding_over_blocks")}
    functions = {case: schedule_kernel(case, k.func, target) for case, k in kernels.items()}
    emulated = BoardKernels(functions, target)
    for case, kernel in kernels.items():
        kernel.check(emulated.run(case, *kernel.arguments))


@pytest.mark.representatives(1)
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("case", "target"),
    examples(
        [
            *itertools.product(FEW, ("cortex-m4", "cortex-m55")),
            *itertools.product(BY_BLOCKS, ("cortex-m0", "cortex-m3", "cortex-m4", "cortex-m55")),
        ],
        ("sliding_over_blocks", "cortex-m55"),
        ("computed", "cortex-m4"),
        ("capped", "cortex-m4"),
        unpack=True,
    ),
)
def test_on_microcontrollers(case: str, target: str) -> None:
    kernel = kernel_for(get_target(target), case)
    alone = RowKernel(case, kernel.func, kernel.inputs, [kernel.expected], 1)
    check_on_microcontroller(alone, get_target(target))


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("case", "target"),
    examples(
        itertools.product(CASES, ("t4", "a100")),
        *((case, "t4") for case in (*FEW, *OF_A_GPU, "sliding_over_blocks")),
        ("grouped", "a100"),
        otherwise="record",
        slow=[*((case, "t4") for case in CASES), *((case, "a100") for case in (*FEW, *BY_BLOCKS))],
        unpack=True,
    ),
)
def test_on_a_gpu(case: str, target: str) -> None:
    """By the rule for attention, not by its fallback."""
    run_on_gpu(replace(CASES[case], head_dim=32), target)
