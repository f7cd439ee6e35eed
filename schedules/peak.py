"""A kernel that does nothing but dot products: what the instruction can do at most.

Its operands and accumulators stay in registers, so no kernel that also loads and stores can be
faster. It goes through the same intrinsic, code generator and thread pool as the kernels proper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import tirx

from ibert_tvm.targets import DotInstruction

from .intrinsics.dot import dot_intrinsic
from .tensorised import depth_argument

# Independent accumulators: enough to hide the latency of every processor known (5 cycles, two
# instructions per cycle), and with the operands few enough for the registers there are.
_CHAINS = {16: 24}
_FEWEST_CHAINS = 12
_PERIODS = 64

# Two decorators: see `schedules/intrinsics/registration.py`.
_SOURCE = """
@T.prim_func(s_tir=True)
@T.prim_func
def main(
    A: T.Buffer(({periods}, {operands}, {depth}), "{lhs}"),
    B: T.Buffer(({lanes}, {depth}), "{rhs}"),
    S: T.Buffer(({threads}, {chains}, {lanes}), "int32"),
) -> None:
    T.func_attr({{"tirx.noalias": True, "global_symbol": "main"}})
    for t in T.parallel({threads}):
        with T.sblock("thread"):
            vt = T.axis.spatial({threads}, t)
            T.reads(
                A[0:{periods}, 0:{operands}, 0:{depth}],
                B[0:{lanes}, 0:{depth}],
                S[vt, 0:{chains}, 0:{lanes}],
            )
            T.writes(S[vt, 0:{chains}, 0:{lanes}])
            C = T.alloc_buffer(({chains}, {lanes}), "int32")
            for c in T.unroll({chains}):
                for i in T.vectorized({lanes}):
                    with T.sblock("load"):
                        vc, vi = T.axis.remap("SS", [c, i])
                        C[vc, vi] = S[vt, vc, vi]
            for s in T.serial({steps}):
                for c in T.unroll({chains}):
                    for i, k in T.grid({lanes}, {depth}):
                        with T.sblock("update"):
                            vs, vc, vi, vk = T.axis.remap("RSSR", [s, c, i, k])
                            C[vc, vi] = C[vc, vi] + T.cast(
                                A[vs % {periods}, vc % {operands}, vk], "int32"
                            ) * T.cast(B[vi, vk], "int32")
            for c in T.unroll({chains}):
                for i in T.vectorized({lanes}):
                    with T.sblock("store"):
                        vc, vi = T.axis.remap("SS", [c, i])
                        S[vt, vc, vi] = C[vc, vi]
"""


@dataclass(frozen=True)
class PeakShapes:
    """Shapes of the operands of `peak_kernel`.

    Attributes
    ----------
    lhs, rhs
        Of A, in the instruction's ``lhs_dtype``, and of B, in its ``rhs_dtype``.
    accumulators
        Of S, int32.
    """

    lhs: tuple[int, int, int]
    rhs: tuple[int, int]
    accumulators: tuple[int, int, int]

    @property
    def products(self) -> int:
        """Multiply-accumulates of one step of all chains and threads."""
        return math.prod(self.accumulators) * self.rhs[1]


def peak_shapes(dot: DotInstruction, threads: int) -> PeakShapes:
    """Shapes for an instruction and a number of threads."""
    chains = _CHAINS.get(dot.lanes, _FEWEST_CHAINS)
    # A separate addition leaves a product of its own, which is the same in every step unless an
    # operand changes, and in every chain: the compiler would compute it once.
    separate = dot.lhs_dtype == "int16"
    periods, operands = (_PERIODS, chains) if separate else (1, 1)
    return PeakShapes(
        (periods, operands, dot.depth), (dot.lanes, dot.depth), (threads, chains, dot.lanes)
    )


def peak_kernel(dot: DotInstruction, threads: int, steps: int) -> tirx.PrimFunc | None:
    """Build ``main(A, B, S)`` with buffers of `peak_shapes`.

    Every thread adds dot products of A and B to each of its accumulators `steps` times. S gives
    their first values, which must differ: equal chains would be computed once.

    Parameters
    ----------
    dot
        The instruction.
    threads
        Iterations of the parallel loop.
    steps
        Instructions per accumulator.

    Returns
    -------
    tvm.tirx.PrimFunc or None
        Scheduled. None where the target has no dot-product instruction, or uses it in a
        microkernel only.
    """
    from tvm import s_tir
    from tvm.script import from_source

    intrinsic = dot_intrinsic(dot) if depth_argument(dot) is None else None
    if intrinsic is None:
        return None
    shapes = peak_shapes(dot, threads)
    periods, operands, depth = shapes.lhs
    _, chains, lanes = shapes.accumulators
    source = _SOURCE.format(
        lhs=dot.lhs_dtype,
        rhs=dot.rhs_dtype,
        periods=periods,
        operands=operands,
        depth=depth,
        threads=threads,
        chains=chains,
        lanes=lanes,
        steps=steps,
    )
    schedule = s_tir.Schedule(from_source(source))
    _step, _chain, lane, _depth = schedule.get_loops(schedule.get_sblock("update"))
    schedule.tensorize(lane, intrinsic)
    return schedule.mod["main"].with_attr("tirx.is_scheduled", True)
