"""Attention on a GPU: one block per tile of query rows of a head, nothing but results in memory.

Strategy
--------
1. Queries, keys and values of the tile come to shared memory, 16 bytes at a time. What is known of
   a key (its offset, or whether it counts) is computed once per block.
2. Q K^T on tensor cores; scores stay in registers. Their maximum is complete before the first
   exponential, as the specification has it: keys come in *steps*, and either the scores of all
   steps are held, or, for sequences that are too long for that, computed again.
3. Weights go to shared memory as bytes, and P V is a product of unsigned by signed bytes. The sum of
   a row's weights is a product with ones.
4. What is divided by a row's sum is computed by one lane of two, the requantised results leave
   through shared memory in the widest stores that their alignment allows.

The steps are device functions (``targets/cuda/device/attention.cuh``); the arithmetic between them
is that of the kernel's stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import arith, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from targets import TargetDescription

from ..rule import Rejection, kernel_name
from .attention_tiles import AttentionBlock, attention_block
from .stages import Leaf, NotElementwise, StageDefinition, StageGraph

_WARP = 32
# Entries of a fragment of 16 rows x 16 keys in one lane: two rows of four keys.
_FRAGMENT = 8
_KEYS_OF_FRAGMENT = 16


class AttentionRule:
    """Write kernels of kind ``attention``."""

    name = "attention"

    def apply(self, func: tirx.PrimFunc, target: TargetDescription) -> tirx.PrimFunc | Rejection:
        """See the module's strategy."""
        if kernel_name(func) != "attention":
            return Rejection(self.name, f"the kernel is {kernel_name(func)!r}, not 'attention'")
        if target.gpu is None:
            return Rejection(self.name, f"target {target.name} is no GPU")
        try:
            graph = StageGraph.of(func)
            kernel = _Kernel(graph, target)
            body = kernel.body()
        except NotElementwise as error:
            return Rejection(self.name, str(error))
        return func.with_body(body)


@dataclass(frozen=True)
class _Operand:
    """Q, K or V in device memory.

    Attributes
    ----------
    buffer
        [tokens, channels] int8.
    offset
        First channel of the first head.
    """

    buffer: tirx.Buffer
    offset: int

    @property
    def stride(self) -> int:
        """Bytes from one token to the next."""
        return int(self.buffer.ty.shape[1])


def _operand(graph: StageGraph, name: str, sizes: _Sizes, packed: str) -> _Operand:
    """Find out where the stage of an operand reads it.

    Parameters
    ----------
    graph
        The kernel.
    name
        Stage that lays the operand out.
    sizes
        Of the kernel.
    packed
        Order of its indices: ``"row"`` (q), ``"keys"`` (k) or ``"columns"`` (v).

    Returns
    -------
    _Operand

    Raises
    ------
    NotElementwise
        If it reads anything but entry (batch * seq_len + token, head * head_dim + channel + offset)
        of an int8 array.
    """
    batch, head, token, channel = (
        tirx.Var(label, "int32") for label in ("batch", "head", "token", "channel")
    )
    zero = tirx.const(0, "int32")
    stage = graph.stages[name]
    run = int(stage.extents[-1])
    indices = {
        "row": [batch, head, token, channel],
        "keys": [batch, head, token, channel // run, zero, channel % run],
        "columns": [batch, head, channel, token // run, zero, token % run],
    }[packed]
    evaluation = graph.evaluate()
    value = evaluation.entry(stage.buffer, indices)
    value = _without_names(value, evaluation.bindings)
    load = _loaded(value)
    if load is None or str(load.source.ty.dtype) != "int8":
        raise NotElementwise(f"stage {name!r} computes something")
    analyser = arith.Analyzer()
    for var, size in zip(
        (batch, head, token, channel),
        (sizes.batch, sizes.heads, sizes.seq_len, sizes.head_dim),
        strict=True,
    ):
        analyser.bind(var, tirx.expr.Range(0, size) if False else _range(size))
    row, column = load.indices
    first = {var: zero for var in (batch, head, token, channel)}
    offset = analyser.simplify(tirx.stmt_functor.substitute(column, first))
    expected = (batch * sizes.seq_len + token, head * sizes.head_dim + channel + offset)
    if not isinstance(offset, tirx.IntImm) or not all(
        analyser.can_prove_equal(found, wanted)
        for found, wanted in zip((row, column), expected, strict=True)
    ):
        raise NotElementwise(f"stage {name!r} reads its operand in another order")
    return _Operand(load.source, int(offset))
