"""Linear kernels without epilogue, over sizes that no tile, vector or block divides."""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

from ibert_tvm.relay_passes.emit.domain import KernelDomain, PackedWeight
from ibert_tvm.relay_passes.emit.group import row_count_argument
from ibert_tvm.relay_passes.spec import nibbles
from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.schedules.row_guard import ROW_COUNT
from ibert_tvm.targets import TargetDescription
from tests.lowering import layout_of

# Depths that are no multiple of an instruction's 2, 4 or 8, columns that are none of its 4, 8 or
# 16; and one even pair, for which the operand is not copied where its rows make whole tiles.
SIZES = ((13, 5), (31, 33), (3, 40), (64, 48))


def linear_kernel(
    target: TargetDescription,
    rows: int,
    weight: np.ndarray,
    dtype: str,
    packed: bool = False,
    halves: bool = False,
) -> tirx.PrimFunc:
    """``x weight^T + bias`` on x [rows, K] of `dtype`, scheduled.

    `packed`: it is told the rows of two sequences. `halves`: the weight is one of
    `narrow_weight_of`, and the kernel reads its `half_bytes`.
    """
    columns, depth = weight.shape
    layout = layout_of(target)
    domain = KernelDomain(layout, 1, "layer")
    x = te.placeholder((rows, depth), dtype, name="x")
    operand = te.placeholder(layout.packed_shape(columns, depth), "int8", name="weight")
    packed_weight, weights = PackedWeight(weight, operand), [operand]
    if halves:
        parts = [
            PackedWeight(
                array, te.placeholder(layout.packed_shape(*array.shape, packed=how), "uint8")
            )
            for array, how in zip(half_bytes(weight), ("entries", "columns"), strict=True)
        ]
        packed_weight = domain.widened(*parts, depth)
        weights = [part.tensor for part in parts]
    bias = te.placeholder((columns,), "int32", name="bias")
    bounds = np.iinfo(dtype)
    result = domain.linear(
        domain.stage(x, bounds.min, bounds.max),
        packed_weight,
        domain.stage(bias, -(2**20), 2**20),
    )
    arguments = [x, *weights, bias]
    attributes = {"ibert.kernel": "linear", **domain.attributes}
    if packed:
        attributes[ROW_COUNT] = len(arguments)
        arguments.append(row_count_argument(2))
    func = te.create_prim_func([*arguments, result.tensor])
    for key, value in attributes.items():
        func = func.with_attr(key, value)
    return schedule_kernel("layer", func, target)


def expected_rows(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """What the kernel computes."""
    return x.astype("int64") @ weight.astype("int64").T + bias


def operand_dtypes(target: TargetDescription) -> tuple[str, ...]:
    """Types of activations that reach a linear kernel: both where the kernel widens them."""
    dtype = target.dot.lhs_dtype
    return ("int8", "uint8") if dtype == "int16" else (dtype,)


def weight_of(depth: int, columns: int, lowest: int = -128) -> np.ndarray:
    """Weights [columns, depth]: the first column all `lowest`, the last all 127."""
    random = np.random.default_rng(depth * 1000 + columns)
    weight = random.integers(lowest, 128, (columns, depth)).astype("int8")
    weight[0], weight[-1] = lowest, 127
    return weight


def narrow_weight_of(depth: int, columns: int) -> np.ndarray:
    """Weights [columns, depth] that half bytes stand for: the first column all -128."""
    halves, scales = half_bytes(weight_of(depth, columns))
    return nibbles.unpack(halves, scales, depth)


def half_bytes(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Half bytes and scales; of a weight that they can stand for, those that do."""
    columns, depth = weight.shape
    padded = np.pad(weight, ((0, 0), (0, -depth % nibbles.GROUP))).astype(int)
    groups = padded.reshape(columns, -1, nibbles.GROUP)
    # Scales by place, so that they are found again.
    scales = 1 + (np.arange(columns)[:, None] + np.arange(groups.shape[1])) % 15
    scales[0] = 16
    entries = np.clip(groups // scales[..., None], nibbles.LEAST, nibbles.MOST)
    return nibbles.pack(entries.astype("int8"), scales)


def activations(rows: int, depth: int, dtype: str) -> np.ndarray:
    """Activations [rows, depth]: the first row all minima, the last all maxima."""
    bounds = np.iinfo(dtype)
    x = np.random.default_rng(rows).integers(bounds.min, bounds.max + 1, (rows, depth))
    x[0], x[-1] = bounds.min, bounds.max
    return x.astype(dtype)
