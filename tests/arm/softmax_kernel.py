"""The softmax of attention as a kernel of its own: the matrix products come in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import s_tir, te, tirx

from ibert_tvm.relay_passes.emit.attention import KernelHeads
from ibert_tvm.relay_passes.emit.domain import KernelDomain
from ibert_tvm.relay_passes.emit.stage import Stage
from ibert_tvm.relay_passes.integer.operators.attention import Attention
from ibert_tvm.relay_passes.spec import short_softmax
from ibert_tvm.relay_passes.spec.short_requantise import requantise_short, short_factors
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential
from ibert_tvm.relay_passes.spec.values import Ranged
from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.schedules.loops import block_names, fuse_row_passes
from ibert_tvm.targets import TargetDescription
from tests.arm.row_program import INT8, RowKernel
from tests.lowering import layout_of


def softmax(
    target: TargetDescription,
    rows: int,
    keys: int,
    head_dim: int = 32,
    seed: int = 0,
    masked: int = 0,
    scale: float = 1e-3,
) -> RowKernel:
    """The softmax of attention without its matrix products.

    Scores (int32 accumulators) and the key mask come in. Exponentials of 8 bits go out, and the
    context: exponentials times V, which comes in as well, divided by the sum of each row and
    requantised to 8 bits.

    Parameters
    ----------
    target
        The target.
    rows, keys, head_dim
        Scores are [rows, keys], the context is [rows, head_dim]. Rows are whole row tiles.
    seed
        Of the numbers.
    masked
        How many of the keys are padding.
    scale
        Real size of a unit of the scores.
    """
    random = np.random.default_rng(seed)
    largest = int(30 / scale)
    scores = random.integers(-largest // 8, largest // 8 + 1, (rows, keys)).astype("int32")
    scores[0, :2] = -largest, largest
    mask = np.ones((1, keys), "int32")
    mask[:, keys - masked :] = 0
    constants = ShortExponential.from_scale(scale)
    out = short_factors(np.array([0.011]), 2**14, *INT8)
    multiplier, requantised = out.multipliers, (out.shift, 0, *INT8)

    exponentials, bits, factor = _softmax_reference(scores, mask[0] != 0, constants)
    values = random.integers(-127, 128, (keys, head_dim))
    context = exponentials @ values
    attended = requantise_short(
        short_softmax.context_of(context, bits, factor), int(multiplier[0]), 0, *requantised
    )
    record = Attention(
        "softmax", 1, "short", constants, out.shift, low=INT8[0], high=INT8[1], dtype="int8"
    )
    func, dtype = _softmax_kernel(target, rows, keys, head_dim, largest, record)
    offset = -128 if dtype == "int8" else 0  # bytes 0..255 in a signed type
    return RowKernel(
        "softmax",
        func,
        [scores[None, None], mask, context.astype("int32")[None, None], multiplier],
        [(exponentials + offset).astype(dtype)[None, None], attended.astype("int8")[None, None]],
        rows * keys,
    )


def _softmax_reference(
    scores: np.ndarray, keep: np.ndarray, constants: ShortExponential
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    wide = short_softmax.score_of(scores.astype(np.int64), short_softmax.key_offset(keep))
    top = short_softmax.row_floor(wide.max(axis=1, keepdims=True))
    e = short_softmax.exponential_of(wide, top, constants)
    total = e.sum(axis=1, keepdims=True)
    bits = short_softmax.sum_bits(total, constants.maximum * scores.shape[1])
    return e, bits, short_softmax.reciprocal(total, bits)


class _GivenProducts(KernelHeads):
    """Attention of one head whose matrix products come in: `scores`, and V times exponentials."""

    def __init__(
        self, domain: _SoftmaxDomain, attention: Attention, operands: dict[str, Stage]
    ) -> None:
        super().__init__(domain, attention, operands)
        self.scores, self.weighed = domain.scores, domain.weighed
        self.rows = self.shape.rows = self.scores.shape[2]

    def products(self) -> Stage:
        """As they came in."""
        return self.scores

    def context(self, weights: Stage, largest: int) -> Callable[..., Ranged]:
        """As it came in; the exponentials are a result of the kernel."""
        self.exponentials = weights
        return lambda b, h, i, d: self.weighed[b, h, i, d]

    def output(self, entry: Callable[..., Ranged], multiplier: Stage, dtype: str) -> Stage:
        """Rows as they are computed, with one multiplier for all channels."""
        return self.domain.define(
            "attended_rows", self.weighed.shape, lambda *index: entry(*index, multiplier[0]), dtype
        )


class _SoftmaxDomain(KernelDomain):
    """Kernels of which the matrix products of attention come in."""

    scores: Stage
    weighed: Stage

    def heads(self, attention: Attention, operands: dict[str, Stage]) -> KernelHeads:
        """See `_GivenProducts`."""
        self.given = _GivenProducts(self, attention, operands)
        return self.given


def _softmax_kernel(
    target: TargetDescription, rows: int, keys: int, head_dim: int, largest: int, record: Attention
) -> tuple[tirx.PrimFunc, str]:
    """Emit the kernel; return it, and the type of the exponentials that it stores."""
    domain = _SoftmaxDomain(layout_of(target), 1, "softmax")

    def stage(name: str, shape: tuple[int, ...], dtype: str, low: int, high: int) -> Stage:
        return domain.stage(te.placeholder(shape, dtype, name=name), low, high)

    bound = record.exponential.maximum * keys * 127
    scores = stage("products", (1, 1, rows, keys), "int32", -largest, largest)
    weighed = stage("context", (1, 1, rows, head_dim), "int32", -bound, bound)
    mask = stage("mask", (1, keys), "int32", 0, 1)
    multiplier = stage("multiplier", (1,), "int16", 0, 2**15 - 1)
    heads = {name: stage(name, (keys, head_dim), "int8", *INT8) for name in "qkv"}
    domain.scores, domain.weighed = scores, weighed
    attended = record.body(domain, **heads, mask=mask, multiplier=multiplier)
    shape = domain.given.shape
    assert (shape.keys, rows % shape.tile) == (keys, 0), "only whole tiles"
    weights = domain.given.exponentials
    buffers = [stage.tensor for stage in (scores, mask, weighed, multiplier, weights, attended)]
    func = te.create_prim_func(buffers)
    func = func.with_attr("ibert.kernel", "softmax").with_attr("ibert.layer", "softmax")
    return func.with_attr("ibert.row_tile", shape.tile), weights.dtype


def scheduled(kernel: RowKernel, target: TargetDescription) -> tirx.PrimFunc:
    """Schedule a kernel by its rule; the softmax as the rule for attention does it."""
    if kernel.name != "softmax":
        return schedule_kernel(kernel.name, kernel.func, target)
    sch = s_tir.Schedule(kernel.func)
    for name in ("valid", "scores"):
        if name in block_names(sch):
            sch.compute_inline(sch.get_sblock(name))
    rows = sch.get_loops(sch.get_sblock("exponential"))[2]
    tiles, _row = sch.split(rows, [None, int(kernel.func.attrs["ibert.row_tile"])])
    sch.compute_at(sch.get_sblock("row_max"), tiles, preserve_unit_loops=True)
    for name in ("row_sum", "row_bits", "row_factor", "attended_rows"):
        sch.reverse_compute_at(sch.get_sblock(name), tiles, preserve_unit_loops=True)
    fuse_row_passes(sch, {"row_max": None, "row_sum": "exponential"})
    return sch.mod["main"].with_attr("tirx.is_scheduled", True)
