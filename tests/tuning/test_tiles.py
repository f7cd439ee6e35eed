"""Every decision that tuning may make gives kernels that compute the same."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from ibert_tvm.relay_passes.emit.domain import KernelDomain, PackedWeight
from ibert_tvm.relay_passes.emit.group import row_count_argument
from ibert_tvm.schedules import ScheduleError, schedule_kernel
from ibert_tvm.schedules.tiles import AttentionTile, LinearTile, tile_of, with_tile, without_tile
from ibert_tvm.schedules.tuning import default_decisions, tile_space, workload_key
from ibert_tvm.schedules.tuning.database import tile_from_json
from ibert_tvm.targets import TargetDescription, get_target
from tests.examples import examples
from tests.lowering import layout_of
from tests.processes import run_captured, without_torch
from tests.snapshots import Messages
from tests.twins import runnable_target

ROWS, DEPTH = 24, 16


def linear(
    target: TargetDescription,
    columns: int = 96,
    rows: int = ROWS,
    layer: str = "a",
    packed: bool = False,
) -> tuple[tirx.PrimFunc, np.ndarray]:
    """``x weight^T + bias`` on x [rows, DEPTH], unscheduled, and the weight.

    `packed`: it is told its rows.
    """
    weight = np.random.default_rng(columns).integers(-128, 128, (columns, DEPTH)).astype("int8")
    layout = layout_of(target)
    domain = KernelDomain(layout, 2, layer)
    dtype = layout.lhs_dtype if layout.lhs_dtype in ("int8", "uint8") else "int8"
    x = te.placeholder((rows, DEPTH), dtype, name="x")
    bias = te.placeholder((columns,), "int32", name="bias")
    bounds = np.iinfo(dtype)
    stages = domain.stage(x, bounds.min, bounds.max), domain.stage(bias, -(2**20), 2**20)
    operand = te.placeholder(layout.packed_shape(columns, DEPTH), "int8", name="weight")
    result = domain.linear(stages[0], PackedWeight(weight, operand), stages[1])
    arguments = [x, operand, bias]
    attributes = {"ibert.kernel": "linear", "ibert.layer": layer, **domain.attributes}
    if packed:
        attributes["ibert.row_count"] = len(arguments)
        arguments.append(row_count_argument(2))
    func = te.create_prim_func([*arguments, result.tensor])
    for key, value in attributes.items():
        func = func.with_attr(key, value)
    return func, weight


def _check(target: TargetDescription, packed: bool, most: int) -> None:
    func, weight = linear(target, packed=packed)
    space = tile_space(func, target)
    default, *others = space
    assert default == default_decisions(func, target)
    assert len(set(space)) == len(space)
    chosen = [default, *random.Random(0).sample(others, min(most, len(others)))]
    functions = {
        f"tile_{index}": schedule_kernel("fc", with_tile(func, tile), target)
        for index, tile in enumerate(chosen)
    }
    named = {name: f.with_attr("global_symbol", name) for name, f in functions.items()}
    library = tvm.compile(tvm.IRModule(named), target=tvm.target.Target(dict(target.tvm_target)))
    generator = np.random.default_rng(1)
    dtype = str(func.params[0].dtype)
    bounds = np.iinfo(dtype)
    x = generator.integers(bounds.min, bounds.max, (ROWS, DEPTH), endpoint=True).astype(dtype)
    bias = generator.integers(-1000, 1000, weight.shape[0]).astype("int32")
    expected = x.astype("int64") @ weight.astype("int64").T + bias
    counts = (0, 1, 5, ROWS - 1, ROWS) if packed else (ROWS,)
    for index, tile in enumerate(chosen):
        for count in counts:
            out = tvm.runtime.tensor(np.full(expected.shape, 0x5A5A5A5A, "int32"))
            arrays = [x, layout_of(target).pack(weight), bias]
            if packed:
                arrays.append(np.array([0, min(count, ROWS // 2), count], "int32"))
            library[f"tile_{index}"](*map(tvm.runtime.tensor, arrays), out)
            got = out.numpy()
            np.testing.assert_array_equal(got[:count], expected[:count], err_msg=str(tile))
            if isinstance(tile, LinearTile):  # whole tasks are left out
                task = tile.rows * tile.row_block
                behind = got[-(-count // task) * task :]
                np.testing.assert_array_equal(behind, 0x5A5A5A5A, err_msg=f"{tile}, {count} rows")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*examples(["x86-avx512-vnni", "x86-64-v3", "x86-64"], "x86-avx512-vnni"), "x86-amx"]
)
def test_decisions_change_no_result(name: str) -> None:
    _check(runnable_target(name), packed=False, most=10)


@pytest.mark.slow
def test_decisions_skip_rows_without_token() -> None:
    _check(runnable_target("x86-64"), packed=True, most=12)


@pytest.mark.slow
def test_the_default_is_scheduled_as_without_tuning() -> None:
    for name in ("x86-avx512-vnni", "x86-amx", "x86-64", "rpi4", "aarch64-dotprod"):
        target = get_target(name)
        func, _ = linear(target)
        default = default_decisions(func, target)
        assert isinstance(default, LinearTile)
        assert (default.row_block, default.column_block, default.unroll) == (1, 1, 1)
        untuned = schedule_kernel("fc", func, target)
        again = schedule_kernel("fc", without_tile(with_tile(func, default)), target)
        tvm.ir.assert_structural_equal(untuned, again)
        tuned = schedule_kernel("fc", with_tile(func, tile_space(func, target)[-1]), target)
        assert not tvm_ffi.structural_equal(untuned, tuned)
        assert "ibert.tile" not in tuned.attrs


def test_kernels_are_known_by_what_they_compute() -> None:
    target = get_target("x86-64")
    key = workload_key(linear(target)[0])
    renamed = linear(target, layer="another")[0].with_attr("global_symbol", "fused_9")
    assert workload_key(renamed) == key
    assert workload_key(with_tile(renamed, LinearTile(1, 1))) == key
    others = [linear(target, columns=48)[0], linear(target, rows=12)[0]]
    others += [linear(target, packed=True)[0], linear(get_target("x86-avx512-vnni"))[0]]
    assert len({key, *(workload_key(other) for other in others)}) == 5
    assert len(key) == 16 and int(key, 16) >= 0


def test_constants_make_no_other_kernel() -> None:
    def kernel(shift: int, dtype: str = "int32") -> tirx.PrimFunc:
        x = te.placeholder((4,), dtype, name="x")
        y = te.compute((4,), lambda i: (x[i] >> shift) + 7 * shift, name="y")
        return te.create_prim_func([x, y]).with_attr("ibert.kernel", "elementwise")

    assert workload_key(kernel(3)) == workload_key(kernel(5))
    assert workload_key(kernel(3)) != workload_key(kernel(3, "int64"))


@pytest.mark.slow
def test_keys_are_the_same_in_every_process() -> None:
    import sys
    from pathlib import Path

    script = (
        "from tests.tuning.test_tiles import linear, get_target, workload_key\n"
        "print(workload_key(linear(get_target('x86-64'))[0]))\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = run_captured([sys.executable, "-c", script], check=True, cwd=root, env=without_torch())
    assert done.stdout.strip() == workload_key(linear(get_target("x86-64"))[0])


def test_microcontrollers_and_row_operations_are_not_tuned() -> None:
    x = te.placeholder((4, 8), "int32", name="x")
    doubled = te.compute((4, 8), lambda i, j: x[i, j] * 2, name="doubled")
    assert tile_space(te.create_prim_func([x, doubled]), get_target("x86-64")) == []
    board = get_target("cortex-m4")
    assert tile_space(linear(board)[0], board) == []


def test_decisions_are_checked(messages: Messages) -> None:
    with pytest.raises(ValueError, match="LinearTile: rows is 0"):
        LinearTile(0, 1)
    with pytest.raises(ValueError, match="LinearTile: prefetch is 2"):
        LinearTile(1, 1, prefetch=2)
    func, _ = linear(get_target("x86-64"))
    with messages.raises(ScheduleError):
        tile_of(with_tile(func, AttentionTile(1, 1, 1, 1)), LinearTile)
    assert tile_of(func, LinearTile) is None
    tile = LinearTile(2, 3, unroll=4)
    assert tile_of(with_tile(func, tile), LinearTile) == tile
    with pytest.raises(ValueError, match="whole numbers rows, vectors, row_block"):
        tile_from_json({"score_rows": 1})
