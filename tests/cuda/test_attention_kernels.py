"""Attention as one kernel per tile of rows, executed, beside the specification."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from tvm import te, tirx

from ibert_tvm.relay_passes.dialect.heads import UNBOUNDED
from ibert_tvm.schedules import ScheduleError, schedule_kernel
from ibert_tvm.schedules.cuda.attention import AttentionRule
from ibert_tvm.schedules.cuda.attention_operands import attention_sizes
from ibert_tvm.schedules.cuda.attention_tile import AttentionSizes, AttentionTile, candidate_tiles
from ibert_tvm.schedules.stages import StageGraph
from ibert_tvm.schedules.tiles import with_tile
from ibert_tvm.targets import Gpu, get_target
from tests.cuda.attention_kernels import PRESETS, AttentionCase, AttentionKernel, attention_kernel
from tests.cuda.machine_code import machine_code
from tests.cuda.stand_in_gpu import run_kernel
from tests.examples import examples
from tests.lowering import layout_of
from tests.schedules.machine import refusal
from tests.snapshots import Messages

# Capability 7.5 copies through registers and multiplies 8 x 8 x 16; from 8.0 on copies are
# asynchronous and products 16 x 8 x 32.
TARGETS = ("t4", "a100")


def run(
    case: AttentionCase, target: str, tile: AttentionTile | None = None, observed: bool = False
) -> None:
    """Schedule a kernel, execute it, and compare."""
    kernel = attention_kernel(get_target(target), case)
    scheduled = scheduled_kernel(kernel, target, tile)
    kernel.check(run_kernel(scheduled, kernel.arguments, target, observed=observed))


def scheduled_kernel(
    kernel: AttentionKernel, target: str, tile: AttentionTile | None = None
) -> tirx.PrimFunc:
    """Schedule a kernel by its rule, with the rule's decisions or others."""
    func = kernel.func if tile is None else with_tile(kernel.func, tile)
    scheduled = AttentionRule().schedule(func, get_target(target))
    assert isinstance(scheduled, tirx.PrimFunc), scheduled
    return scheduled


def _sizes(case: AttentionCase) -> str:
    return f"{case.batch}x{case.seq_len}, {case.heads} heads of {case.head_dim}"


SIZES = [
    AttentionCase(seq_len=1, heads=3),
    AttentionCase(seq_len=16, heads=2, head_dim=16),
    AttentionCase(seq_len=20, batch=2, head_dim=40, padded=(5,)),
    AttentionCase(seq_len=33, head_dim=64, mask=""),
    AttentionCase(seq_len=50, batch=3, head_dim=32, padded=(33, 1), mask="int32"),
    AttentionCase(seq_len=31, heads=3, head_dim=10, mask="int8", padded=(30,)),
    AttentionCase(seq_len=37, heads=1, head_dim=7, merged=False),
    AttentionCase(seq_len=64, heads=2, head_dim=128, merged=False, padded=(47,)),
    AttentionCase(seq_len=197, heads=1, head_dim=64, mask=""),
    AttentionCase(seq_len=40, heads=1, head_dim=80, padded=(40,)),
]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("target", ["t4", pytest.param("a100", marks=pytest.mark.record)])
@pytest.mark.parametrize("case", SIZES, ids=_sizes)
def test_sizes_of_all_kinds_equal_the_specification(case: AttentionCase, target: str) -> None:
    run(case, target)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("mask", examples(["", "int64"], "int64"))
def test_every_softmax_equals_the_specification(preset: str, mask: str, target: str) -> None:
    dtype = "int32" if preset == "released" else "int8"
    padded = (41, 1) if mask else ()
    run(
        AttentionCase(preset, batch=2, seq_len=45, mask=mask, padded=padded, dtype=dtype, seed=1),
        target,
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32"])
def test_results_of_every_type(dtype: str) -> None:
    preset = "paper" if dtype == "int32" else "accurate"
    run(AttentionCase(preset, seq_len=24, head_dim=24, dtype=dtype), "t4")


@pytest.mark.representatives(1)
@pytest.mark.parametrize("shift", [36, 10])
def test_requantisation_in_64_bits(shift: int) -> None:
    """With the small shift, what is clamped leaves 32 bits: no store may saturate it instead."""
    run(AttentionCase("paper", seq_len=24, multiplier_bits=30, shift=shift), "t4")


# Rows and keys in several blocks, warps and steps; scores held and computed twice.
TILES = {
    "one warp": AttentionTile(1, 1, 32, 3, True, False),
    "rows": AttentionTile(4, 1, 96, 1, True, True),
    "keys": AttentionTile(1, 8, 128, 1, True, True),
    "warps without keys": AttentionTile(1, 8, 256, 1, True, True),
    "both, one memory for K and V": AttentionTile(2, 2, 96, 1, True, False),
    "steps": AttentionTile(2, 2, 32, 3, True, False),
    "twice": AttentionTile(1, 2, 32, 3, False, False),
    "twice, rows": AttentionTile(2, 1, 64, 2, False, False),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tile", "preset", "target"),
    examples(
        [(t, p, g) for t in TILES for p, g in (("accurate", "a100"), ("paper", "t4"))],
        ("rows", "paper", "t4"),
        ("warps without keys", "accurate", "a100"),
        ("steps", "accurate", "a100"),
        ("twice, rows", "paper", "t4"),
        otherwise="record",
        slow=[(tile, "accurate", "a100") for tile in TILES],
        unpack=True,
    ),
)
def test_every_cut_gives_the_same(preset: str, tile: str, target: str) -> None:
    case = AttentionCase(preset, seq_len=83, heads=1, head_dim=48, padded=(77,))
    run(case, target, TILES[tile])


# Windows of which a block sees one run of the keys, or as many steps as it is far down.
WINDOWS = {"sliding": (20, 9), "causal": (UNBOUNDED, 0), "behind": (3, UNBOUNDED)}


def _of_a_window(case: AttentionCase, rows: int, keys: int, held: bool) -> AttentionTile:
    """Steps of 32 keys, as many as the run has that a block sees."""
    func = attention_kernel(get_target("t4"), case, evaluated=False).func
    run_keys = attention_sizes(func, StageGraph(func)).run_keys(16 * rows)
    return AttentionTile(rows, keys, 32, -(-run_keys // 32), held, False)


CUTS = ((1, 1, True), (2, 2, True), (1, 2, False))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "preset", "target", "cut", "observed"),
    examples(
        [
            *itertools.product(WINDOWS, ("accurate",), ("t4",), CUTS, (False,)),
            *itertools.product(("sliding",), ("paper",), ("a100",), CUTS, (False,)),
            *itertools.product(("sliding", "causal"), ("accurate",), ("a100",), CUTS[1:], (True,)),
        ],
        ("sliding", "accurate", "t4", (1, 1, True), False),
        ("causal", "accurate", "t4", (1, 2, False), False),
        unpack=True,
    ),
)
def test_windows_skip_steps(
    window: str, preset: str, target: str, cut: tuple[int, int, bool], observed: bool
) -> None:
    before, after = WINDOWS[window]
    case = AttentionCase(preset, seq_len=117, heads=1, before=before, after=after, padded=(90,))
    run(case, target, _of_a_window(case, *cut), observed=observed)


def test_a_run_of_keys_is_as_long_as_a_tile_sees() -> None:
    sizes = AttentionSizes(1, 1, 1000, 64, 1024, 1, before=20, after=9)
    tile = AttentionTile(1, 1, 32, 3, True, False)
    assert sizes.run_keys(tile.rows) == 64  # of 16 + 32 + 9, where the run begins with a fragment
    assert tile.problem(sizes) == "3 steps of 32 keys for 64 keys"
    seen = replace(tile, steps=2).steps_seen(sizes)
    assert seen[0] == 1  # nothing is in front of the first queries
    assert set(seen[1:-1]) == {2}
    assert AttentionSizes(1, 1, 1000, 64, 1024, 1, before=2000).run_keys(16) == 1024


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("preset", "padded"),
    # No key, one key, whole fragments.
    examples(
        itertools.product(PRESETS, [(0, 1), (1, 0), (33, 32)]),
        *((preset, (0, 1)) for preset in PRESETS),
        ("accurate", (1, 0)),
        ("paper", (33, 32)),
        unpack=True,
    ),
)
def test_masks_at_their_limits(preset: str, padded: tuple[int, ...]) -> None:
    run(AttentionCase(preset, batch=2, seq_len=34, heads=1, padded=padded, dtype="int16"), "t4")


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["accurate", "paper"])
@pytest.mark.parametrize("spread", [0.02, 30.0], ids=["flat", "one key each"])
def test_the_largest_numbers(preset: str, spread: float) -> None:
    case = AttentionCase(preset, seq_len=48, heads=1, head_dim=128, extreme=True, spread=spread)
    run(case, "t4")
    run(replace(case, padded=(48,), constant=-128), "t4")


@pytest.mark.slow
@pytest.mark.parametrize("tile", examples(TILES, "steps"))
def test_values_of_16_bits(tile: str) -> None:
    """Their bytes are multiplied apart, in tiles of shared memory of their own."""
    case = AttentionCase(seq_len=83, heads=1, head_dim=24, padded=(77,), wide=True)
    for target in TARGETS:
        run(case, target, TILES[tile])
    odd = replace(case, head_dim=10, seq_len=83, merged=False)
    run(odd, "t4", TILES[tile])
    extreme = replace(case, extreme=True, spread=0.02)
    run(extreme, "t4", TILES[tile])


@pytest.mark.slow
@pytest.mark.parametrize("target", examples(["t4", "a100", "h100"], "a100", otherwise="record"))
@pytest.mark.parametrize("preset", PRESETS)
def test_sequences_longer_than_registers_hold(preset: str, target: str) -> None:
    case = AttentionCase(preset, seq_len=1100, heads=1, head_dim=16, padded=(1090,), dtype="int16")
    kernel = attention_kernel(get_target(target), case)
    tile = candidate_tiles(attention_sizes(kernel.func, StageGraph(kernel.func)), gpu_of(target))[0]
    assert not tile.held and tile.steps > 1
    run(case, target)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "tile", "target"),
    examples(
        itertools.product(("accurate", "paper"), TILES, TARGETS),
        # Every tile on a GPU, these in turn.
        *(("accurate", tile, TARGETS[n % len(TARGETS)]) for n, tile in enumerate(TILES)),
        otherwise="record",
        unpack=True,
    ),
)
def test_threads_do_not_race(preset: str, tile: str, target: str) -> None:
    """Every access is checked: bounds, alignment, order, whether it was ever written."""
    case = AttentionCase(preset, seq_len=83, heads=1, head_dim=24, padded=(77,))
    run(case, target, TILES[tile], observed=True)


def test_weights_are_stored_as_they_are() -> None:
    kernel = attention_kernel(get_target("t4"), AttentionCase())
    stages = StageGraph(kernel.func).stages
    assert not {"v_sum", "ones", "k_sum"} & set(stages)
    assert str(stages["exponential"].buffer.ty.dtype) == "uint8"
    assert not layout_of(get_target("cortex-m55")).either_sign


def test_another_target_is_left_to_others() -> None:
    kernel = attention_kernel(get_target("t4"), AttentionCase())
    assert refusal(AttentionRule(), kernel.func, get_target("rpi4")) == "target rpi4 is no GPU"


def test_stored_weights_with_an_offset_are_left_to_others() -> None:
    target = get_target("t4")
    description = replace(target, dot=replace(target.dot, either_sign=False))
    kernel = attention_kernel(description, AttentionCase())
    assert (
        refusal(AttentionRule(), kernel.func, target)
        == "the weights of attention are not stored as unsigned bytes"
    )


def test_heads_that_do_not_fit_are_left_to_others() -> None:
    target = get_target("t4")
    case = AttentionCase("paper", seq_len=2, heads=1, head_dim=2048, merged=False)
    kernel = attention_kernel(target, case, evaluated=False)
    assert (
        refusal(AttentionRule(), kernel.func, target)
        == "heads of 2048 channels do not fit shared memory"
    )


def test_what_is_no_attention_of_emission_is_left_to_others() -> None:
    x = te.placeholder((4, 4), "int8", name="x")
    copy = te.compute((4, 4), lambda i, j: x[i, j], name="copy")
    func = te.create_prim_func([x, copy]).with_attr("ibert.kernel", "attention")
    assert refusal(AttentionRule(), func, get_target("t4")) == (
        "the kernel has no two matrix products, one of the other's scores"
    )


def test_decisions_that_no_device_can_follow_are_refused(messages: Messages) -> None:
    kernel = attention_kernel(get_target("t4"), AttentionCase())
    with messages.raises(ScheduleError):
        schedule_kernel(
            "k", with_tile(kernel.func, AttentionTile(1, 4, 32, 1, True, True)), get_target("t4")
        )


@pytest.mark.parametrize(
    ("tile", "why"),
    [
        (AttentionTile(1, 0, 32, 1, True, True), "a block without warps or keys"),
        (AttentionTile(4, 8, 128, 1, True, True), "1024 threads in a block: at most 512"),
        (AttentionTile(1, 1, 32, 3, True, True), "3 steps of 32 keys for 128 keys"),
        (AttentionTile(1, 1, 128, 1, True, True), ""),
        (AttentionTile(1, 1, 160, 1, True, True), "80 scores in registers: at most 64"),
        (AttentionTile(4, 4, 512, 1, True, True), "105472 bytes of shared memory: at most 49152"),
    ],
)
def test_what_is_wrong_with_decisions(tile: AttentionTile, why: str) -> None:
    assert tile.problem(AttentionSizes(1, 12, 128, 64, 128, 1)) == why


def gpu_of(target: str) -> Gpu:
    """Description of a target's GPU."""
    gpu = get_target(target).gpu
    assert gpu is not None
    return gpu


@pytest.mark.parametrize("target", ["t4", "a100", "h100"])
@pytest.mark.parametrize("head_dim", [1, 16, 40, 64, 128, 256])
def test_there_is_a_cut_for_every_length(head_dim: int, target: str) -> None:
    for seq_len in (1, 15, 16, 17, 128, 197, 384, 512, 513, 1024, 4096, 32768):
        keys = -(-seq_len // 16) * 16
        sizes = AttentionSizes(1, 12, seq_len, head_dim, keys, 4)
        tile = candidate_tiles(sizes, gpu_of(target))[0]
        assert tile.problem(sizes) == "", sizes
        assert (tile.steps - 1) * tile.step_keys < keys


def test_a_short_sequence_has_blocks_for_every_multiprocessor() -> None:
    sizes = AttentionSizes(1, 12, 128, 64, 128, 1)
    for target in ("t4", "a100"):
        gpu = gpu_of(target)
        tile = candidate_tiles(sizes, gpu)[0]
        blocks = sizes.heads * -(-sizes.seq_len // tile.rows)
        assert blocks >= min(gpu.multiprocessors, sizes.heads * sizes.seq_len // 16)


# Arithmetic in 64 bits takes more, and so does the choice of steps in a loop.
MORE_REGISTERS = dict.fromkeys(("paper_1x128", "released_1x128"), 32)
MORE_REGISTERS |= dict.fromkeys(("causal_1x2048", "wide_1x2048"), 24)
CODE_CASES = {
    "minilm_1x128": AttentionCase(seq_len=128, heads=12, head_dim=32),
    "base_8x256": AttentionCase(batch=8, seq_len=256, heads=12, head_dim=64),
    "wide_1x128": AttentionCase(seq_len=128, heads=12, head_dim=32, wide=True),
    "wide_8x256": AttentionCase(batch=8, seq_len=256, heads=12, head_dim=64, wide=True),
    "wide_1x2048": AttentionCase(seq_len=2048, heads=2, head_dim=64, wide=True, mask=""),
    "paper_1x128": AttentionCase("paper", seq_len=128, heads=12, head_dim=64),
    "released_1x128": AttentionCase("released", seq_len=128, heads=12, head_dim=64, dtype="int32"),
    "long_1x2048": AttentionCase(seq_len=2048, heads=2, head_dim=64, mask=""),
    "vit_1x197": AttentionCase(seq_len=197, heads=12, head_dim=64, mask=""),
    "sliding_1x2048": AttentionCase(seq_len=2048, heads=2, head_dim=64, before=64, after=64),
    "causal_1x2048": AttentionCase(seq_len=2048, heads=2, head_dim=64, after=0),
}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["t4", "a100", "h100"])
def test_machine_code_uses_tensor_cores_and_keeps_numbers_in_registers(target: str) -> None:
    """The audit of the build refuses floating point; sizes are those that the rule counts with."""
    description = get_target(target)
    kernels, expected = {}, {}
    for name, case in CODE_CASES.items():
        func = kernels[name] = attention_kernel(description, case, evaluated=False).func
        sizes = attention_sizes(func, StageGraph(func))
        tile = candidate_tiles(sizes, gpu_of(target))[0]
        expected[name] = (tile.shared_bytes(sizes), tile.registers(sizes))
    for name, audit in machine_code(target, kernels).audits.items():
        shared_bytes, registers = expected[name]
        assert audit.matrix > 0, name
        assert audit.shared_bytes == shared_bytes, name
        assert audit.registers <= registers + MORE_REGISTERS.get(name, 8), name
