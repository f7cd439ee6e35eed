"""How matrix products are cut for GPUs: valid cuts, and defaults that keep a device busy."""

from __future__ import annotations

import pytest

from ibert_tvm.schedules.cuda.gemm_tile import GemmTile, candidates, choose_tile, cycles, rates
from ibert_tvm.targets import get_target
from tests.examples import examples
from tests.snapshots import Messages

DEVICES = {name: get_target(name).gpu for name in ("t4", "a100", "h100", "cuda:sm_86")}
# Projections, feed-forward layers in and out, a pooler, a classifier; BERT-Base and -Large.
PRODUCTS = [
    (rows, columns, depth)
    for rows in (1, 8, 128, 384, 1024, 2048)
    for columns, depth in (
        (2304, 768),
        (768, 768),
        (3072, 768),
        (768, 3072),
        (1024, 4096),
        (2, 768),
    )
]


@pytest.mark.representatives(2)
@pytest.mark.parametrize("device", DEVICES)
def test_candidates_fit_the_device(device: str) -> None:
    gpu = DEVICES[device]
    for sizes in PRODUCTS:
        found = list(candidates(*sizes, gpu))
        assert found, sizes
        for tile in found:
            assert tile.problem(gpu) == ""
            assert tile.registers(gpu.capability) <= 255
            assert tile.threads <= 256
            assert tile.longest_run() >= 2


@pytest.mark.slow
@pytest.mark.parametrize("device", examples(DEVICES, "t4"))
def test_the_default_is_the_fastest_candidate_of_the_model(device: str) -> None:
    gpu = DEVICES[device]
    for sizes in PRODUCTS:
        best = min(cycles(tile, *sizes, gpu) for tile in candidates(*sizes, gpu))
        assert cycles(choose_tile(*sizes, gpu), *sizes, gpu) <= best + 1


@pytest.mark.parametrize(
    ("device", "sizes", "share"),
    [
        # Batch 1 x 128: more than half of a T4's multiprocessors have a block.
        ("t4", (128, 768, 768), 0.6),
        ("t4", (128, 768, 3072), 0.6),
        ("t4", (128, 3072, 768), 0.8),
        ("h100", (128, 768, 768), 0.7),
        ("h100", (128, 768, 3072), 0.7),
    ],
)
def test_small_batches_keep_multiprocessors_busy(
    device: str, sizes: tuple[int, int, int], share: float
) -> None:
    gpu = DEVICES[device]
    tile = choose_tile(*sizes, gpu)
    rows, columns, _ = sizes
    blocks = -(-rows // tile.block_rows) * -(-columns // tile.block_columns)
    assert blocks >= share * gpu.multiprocessors


@pytest.mark.parametrize("sizes", [(2048, 2304, 768), (2048, 3072, 768), (2048, 768, 3072)])
def test_large_batches_are_bounded_by_tensor_cores_on_a_t4(sizes: tuple[int, int, int]) -> None:
    gpu = DEVICES["t4"]
    rows, columns, depth = sizes
    products = rows * columns * depth / gpu.multiprocessors / rates(75).products
    tile = choose_tile(*sizes, gpu)
    assert (tile.warp_rows, tile.warp_columns) == (64, 64)
    assert products / cycles(tile, *sizes, gpu) > 0.55


def test_the_default_of_a_large_product_on_a_t4() -> None:
    tile = choose_tile(2048, 3072, 768, DEVICES["t4"])
    assert tile == GemmTile(128, 128, 64, 64, 1, 64, 2)
    assert (tile.warps, tile.threads, tile.accumulators) == (4, 128, 128)
    assert (tile.stage_bytes, tile.shared_bytes, tile.staged_bytes) == (16384, 32768, 0)


def test_decisions_that_a_device_cannot_follow() -> None:
    tile = GemmTile(128, 256, 64, 64, 1, 128, 3)
    assert tile.problem(DEVICES["t4"]) == ("147456 bytes of shared memory, the device has 65536")
    assert GemmTile(64, 64, 32, 32, 1, 64, 3).problem(DEVICES["t4"]) == (
        "3 stages, where copies are not asynchronous there are two"
    )
    assert tile.problem(DEVICES["a100"]) == ""


@pytest.mark.parametrize(
    "decisions",
    [
        (64, 64, 24, 32),
        (64, 64, 32, 8),
        (48, 64, 32, 32),
        (64, 48, 32, 32),
        (64, 64, 32, 32, 4, 64),
        (64, 64, 32, 32, 1, 96),
        (64, 64, 32, 32, 1, 64, 9),
        (128, 128, 128, 64),
        (512, 512, 64, 64),
        (64, 64, 32, 32, 3, 96),
        (16, 16, 16, 16, 16, 512),
    ],
)
def test_impossible_cuts(decisions: tuple[int, ...], messages: Messages) -> None:
    with messages.raises(ValueError):
        GemmTile(*decisions)
