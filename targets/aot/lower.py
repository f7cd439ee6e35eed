"""From scheduled kernels to functions with a C signature: pointers, a workspace, no runtime.

TVM's own passes do the work up to the point where they would make a function for its runtime. From
there on a kernel becomes ``int32_t name(T0 *a0, ..., uint8_t *workspace)``: parallel loops are
serial or call the library's own threads, and every buffer that is too large for the stack lies in
the workspace, whose size is known. The tasks of a parallel loop share the workspace, so their
buffers are on the stacks of threads, and what is too large for these in one of a few places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import PointerType, PrimType

from ibert_tvm.common.errors import TargetError

from ..description import TargetDescription
from ..nodes import changed, nodes_of, substituted
from ..pipeline import LARGEST_STACK_BUFFER, kernel_passes, static_bytes
from .model import KernelParameter
from .pieces import Cut, cut_kernel

# Tasks of a parallel loop that have buffers in the workspace: enough for as many threads.
_PLACES = 16


@dataclass(frozen=True)
class KernelSignature:
    """What a kernel is called in C, and its arguments without the workspace."""

    symbol: str
    parameters: tuple[KernelParameter, ...]


@dataclass(frozen=True)
class Fetching:
    """Weights that are fetched while the program runs.

    Attributes
    ----------
    weights
        By kernel: numbers of its arguments that are weights at any call.
    limit
        Bytes of weights that a call of a kernel may need; None for few.
    alignment
        Of each weight.
    """

    weights: Mapping[str, frozenset[int]]
    limit: int | None
    alignment: int


@dataclass(frozen=True)
class LoweredKernel:
    """A kernel with a C signature, before intrinsics are lowered for one code generator.

    Attributes
    ----------
    function
        Its code.
    workspace_bytes
        What it needs of the workspace.
    signature
        Its own.
    cut
        How it is called where its weights are fetched.
    """

    function: tirx.PrimFunc
    workspace_bytes: int
    signature: KernelSignature
    cut: Cut | None = None


def lower_kernels(
    module: tvm.IRModule,
    signatures: Mapping[str, KernelSignature],
    description: TargetDescription,
    threads: bool = False,
    fetching: Fetching | None = None,
) -> dict[str, LoweredKernel]:
    """Lower the kernels of a module.

    Parameters
    ----------
    module
        Scheduled kernels.
    signatures
        The kernels to lower, by name in the module.
    description
        What to compile for.
    threads
        Leave parallel loops, whose tasks ``parallel.c`` runs.
    fetching
        Which weights are fetched, for kernels in pieces; None if all are in memory.

    Returns
    -------
    dict of str to LoweredKernel
        In the order of `signatures`.

    Raises
    ------
    TargetError
        If the weights of a kernel are larger than may be fetched at once, and it cannot be cut.
    """
    target = tvm.target.Target(dict(description.tvm_target))
    kernels = {}
    for name in signatures:
        func = module[name] if threads else serialised(module[name])
        # Without this attribute a function is private, and keeps its signature.
        kernels[name] = func.without_attr("global_symbol")
    with target:
        lowered = tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule(kernels))
        lowered = tvm.transform.Sequential(_flattening())(lowered)
        cuts: dict[str, Cut] = {}
        if fetching is not None:
            lowered, cuts, signatures = _cut(lowered, signatures, fetching)
        lowered = tvm.transform.Sequential([*_lowering(), *kernel_passes(description)])(lowered)
    return {
        name: _with_c_signature(lowered[name], signature, description, cuts.get(name))
        for name, signature in signatures.items()
    }


def _cut(
    module: tvm.IRModule, signatures: Mapping[str, KernelSignature], fetching: Fetching
) -> tuple[tvm.IRModule, dict[str, Cut], dict[str, KernelSignature]]:
    """Kernels of which no call needs more weights than may be fetched at once."""
    cuts, cut_signatures, functions = {}, {}, {}
    for name, signature in signatures.items():
        functions[name], cuts[name] = cut_kernel(
            module[name],
            signature.parameters,
            fetching.weights[name],
            fetching.limit,
            fetching.alignment,
        )
        cut_signatures[name] = replace(
            signature, parameters=cuts[name].parameters(signature.parameters)
        )
    return tvm.IRModule(functions), cuts, cut_signatures


def _flattening() -> list[tvm.transform.Pass]:
    """What TVM's pipeline does for a processor, up to buffers of one dimension.

    Listed here because the stock pipeline is one pass: passes for GPUs are left out, and those
    that make a function for the runtime.
    """
    return [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.AnnotateIrregularLoop(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.NarrowDataType(32),
    ]


def _lowering() -> list[tvm.transform.Pass]:
    """What follows, up to the making of functions for TVM's runtime."""
    return [
        s_tir.transform.LoopPartition(),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.StorageRewrite(),
        s_tir.transform.HoistIfThenElse(),
        tirx.transform.UnrollLoop(),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        s_tir.transform.RewriteUnsafeSelect(),
        tirx.transform.CommonSubexprElim(),
        tirx.transform.VerifyMemory(),
    ]


def serialised(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The same function with serial loops for its parallel ones."""

    def serial(loop: tirx.For) -> tirx.For:
        if loop.kind != tirx.ForKind.PARALLEL:
            return loop
        return changed(loop, kind=tirx.ForKind.SERIAL)

    return tvm_ffi.structural_map(func, (tirx.For, serial))


def _with_c_signature(
    func: tirx.PrimFunc,
    signature: KernelSignature,
    description: TargetDescription,
    cut: Cut | None,
) -> LoweredKernel:
    pointers = [
        tirx.Var(f"a{index}", PointerType(PrimType(parameter.dtype)))
        for index, parameter in enumerate(signature.parameters)
    ]
    workspace = tirx.Var("workspace", PointerType(PrimType("uint8")))
    func, of_tasks = _with_places(func)
    lift = _Lift(workspace, description, of_tasks)
    body = tvm_ffi.structural_map(func.body, (tirx.AllocBuffer, lift))
    declared = [
        tirx.DeclBuffer(buffer, data=pointer)
        for buffer, pointer in zip(func.params, pointers, strict=True)
    ]
    body = tirx.SeqStmt([*declared, tirx.DeclBuffer(lift.bytes, data=workspace), body])
    known = [parameter.alignment for parameter in signature.parameters]
    for pointer, alignment in zip([*pointers, workspace], [*known, lift.alignment], strict=True):
        body = tirx.AttrStmt(pointer, "storage_alignment", alignment, body)
    attributes = {
        "global_symbol": signature.symbol,
        "target": func.attrs["target"],
        "tirx.noalias": True,
    }
    result = tirx.PrimFunc([*pointers, workspace], body, PrimType("int32"))
    for key, value in attributes.items():
        result = result.with_attr(key, value)
    return LoweredKernel(result, lift.nbytes, signature, cut)


def _with_places(
    func: tirx.PrimFunc,
) -> tuple[tirx.PrimFunc, dict[tirx.Buffer, tirx.For | None]]:
    """The function; and what the tasks of its parallel loops allocate.

    A loop whose tasks have a buffer that no stack holds gets at most `_PLACES` tasks: that many
    places of the workspace hold the buffer. The loop is the buffer's value in the result, None
    where it lies on the stack.
    """
    found: dict[tirx.Buffer, tirx.For | None] = {}

    def buffers(loop: tirx.For) -> list[tirx.Buffer]:
        return [statement.buffer for statement in nodes_of(loop.body, tirx.AllocBuffer)]

    def placed(loop: tirx.For) -> tirx.For:
        if loop.kind != tirx.ForKind.PARALLEL:
            return loop
        if any(buffer_bytes(buffer) > LARGEST_STACK_BUFFER for buffer in buffers(loop)):
            loop = _in_places(loop)
        for buffer in buffers(loop):
            large = buffer_bytes(buffer) > LARGEST_STACK_BUFFER
            found[buffer] = loop if large else None
        return loop

    return tvm_ffi.structural_map(func, (tirx.For, placed)), found


def _in_places(loop: tirx.For) -> tirx.For:
    """The same iterations, in neighbouring runs whose number is at most `_PLACES`."""
    extent = int(loop.extent)
    count = min(_PLACES, extent)
    each = -(-extent // count)
    kind = loop.loop_var.ty
    place, step = tirx.Var("place", kind), tirx.Var("step", kind)
    index = place * each + step
    value = loop.min + index

    body = substituted(loop.body, {loop.loop_var: value})
    if extent % each:
        body = tirx.IfThenElse(index < extent, body, None)
    body = tirx.For(step, 0, each, tirx.ForKind.SERIAL, body)
    count = -(-extent // each)
    return changed(loop, loop_var=place, min=0, extent=count, body=body)


class _Lift:
    """Takes large buffers out of the stack: each gets a place in the workspace.

    Those of tasks get one for each of their loop's iterations, which run at the same time.
    """

    def __init__(
        self,
        workspace: tirx.Var,
        description: TargetDescription,
        of_tasks: Mapping[tirx.Buffer, tirx.For | None],
    ) -> None:
        self.of_tasks = of_tasks
        self.bytes = tirx.decl_buffer((1,), "uint8", "workspace_bytes", data=workspace)
        system = description.machine.system
        # C aligns an array as its entries, and microkernels load words.
        self.words = description.stack_alignment == 1 and bool(description.microkernels)
        # What is smaller mostly becomes registers.
        self.limit, self.alignment = system.stack_buffer_bytes, system.alignment
        self.nbytes = 0

    def __call__(self, statement: tirx.AllocBuffer) -> tirx.Stmt:
        buffer = statement.buffer
        size, loop = buffer_bytes(buffer), self.of_tasks.get(buffer)
        fits = size <= self.limit and not (self.words and buffer.dtype.bits < 32)
        if fits or (buffer in self.of_tasks and loop is None):
            return statement
        size = -(-size // self.alignment) * self.alignment
        offset = self.nbytes if loop is None else self.nbytes + loop.loop_var * size
        self.nbytes += size if loop is None else size * int(loop.extent)
        address = tirx.address_of(tirx.BufferLoad(self.bytes, [offset]))
        return tirx.DeclBuffer(buffer, data=address)


def buffer_bytes(buffer: tirx.Buffer) -> int:
    """Bytes of a buffer.

    Raises
    ------
    TargetError
        If its shape is not static: memory is planned at compile time.
    """
    size = static_bytes(buffer)
    if size is None:
        raise TargetError(
            what="a kernel has a buffer of a size that is not known",
            where=f"buffer {buffer.name}",
            why="code without runtime takes no memory at run time",
            todo="report this model",
        )
    return size
