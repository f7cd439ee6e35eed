"""This project's own FP32: the canonical float module through the same compiler, for CUDA.

Not a tuned float runtime, and not meant as one: TVM's default CUDA pipeline (fusion, dlight's GPU
schedules, static memory, CUDA graphs) on the very module that quantisation starts from. What INT8
gains over it is what integers, and kernels made by hand for them, gain within one compiler. The
comparison that counts is the one with PyTorch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import Cell

from .limits import compile_fat_binary

# What a block may have without asking the driver for more, which TVM's schedules do not do.
_STATIC_SHARED_BYTES = 48 << 10

__all__ = ["build_float_library", "float_function", "float_module"]


def float_function(cell: Cell) -> str:
    """Name of the function of a cell in the library."""
    return f"float_{cell}"


def float_module(module: Any, cells: Iterable[Cell]) -> Any:
    """Stock Relax operators at static shapes, one function per cell.

    Attention is taken apart into matrix products and a softmax, each of which dlight has a schedule
    for.

    Parameters
    ----------
    module : tvm.IRModule
        A canonical module with symbolic batch and length.
    cells : iterable of Cell
        The shapes.

    Returns
    -------
    tvm.IRModule
        Functions named by `float_function`, each taking the inputs and then all weights.
    """
    import tvm
    from tvm import relax

    joined = {}
    for cell in cells:
        bound = relax.transform.BindSymbolicVars(
            {"batch": cell.batch, "seq_len": cell.seq_len}, "main"
        )(module)
        stock = _with_stock_operators(bound)
        name = float_function(cell)
        function = relax.utils.copy_with_new_vars(stock["main"])
        joined[name] = function.with_attr("global_symbol", name)
    return relax.transform.Normalize()(tvm.IRModule(joined))


def _with_stock_operators(module: Any) -> Any:
    from tvm import relax

    class Mutator(relax.PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = self.visit_expr_post_order(call)
            dialect, _, name = str(getattr(call.op, "name", "")).partition(".")
            return _MEANING[name](self.builder_, call) if dialect == "canonical" else call

    mutator = relax.expr_functor.mutator(Mutator)(module)
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            mutator.builder_.update_func(variable, mutator.visit_expr(function))
    return mutator.builder_.get()


def _embedding(builder: Any, call: Any) -> Any:
    from tvm import relax

    return relax.op.take(*call.args, axis=0)


def _position_ids(builder: Any, call: Any) -> Any:
    from tvm import relax

    batch, length = (int(extent) for extent in call.args[0].ty.shape.values)
    first = int(call.attrs["offset"])
    if str(call.attrs["kind"]) != "absolute":
        raise NotImplementedError("positions that depend on padding")
    return relax.const(np.tile(np.arange(first, first + length), (batch, 1)), "int64")


def _linear(builder: Any, call: Any) -> Any:
    from tvm import relax

    x, weight, bias = call.args
    transposed = builder.emit(relax.op.permute_dims(weight))
    return relax.op.add(builder.emit(relax.op.matmul(x, transposed)), bias)


def _layer_norm(builder: Any, call: Any) -> Any:
    from tvm import relax

    return relax.op.nn.layer_norm(*call.args, axes=-1, epsilon=float(call.attrs["epsilon"]))


def _gelu(builder: Any, call: Any) -> Any:
    from tvm import relax

    exact = str(call.attrs["form"]) == "erf"
    return (relax.op.nn.gelu if exact else relax.op.nn.gelu_tanh)(call.args[0])


def _tanh(builder: Any, call: Any) -> Any:
    from tvm import relax

    return relax.op.tanh(call.args[0])


def _add(builder: Any, call: Any) -> Any:
    from tvm import relax

    return relax.op.add(*call.args)


def _select_token(builder: Any, call: Any) -> Any:
    from tvm import relax

    return relax.op.take(call.args[0], relax.const(int(call.attrs["index"]), "int64"), axis=1)


def _mean_pool(builder: Any, call: Any) -> Any:
    from tvm import relax

    x, mask = call.args
    kept = builder.emit(relax.op.astype(mask, "float32"))
    weighed = builder.emit(relax.op.multiply(x, builder.emit(relax.op.expand_dims(kept, 2))))
    total = builder.emit(relax.op.sum(weighed, axis=1))
    count = builder.emit(relax.op.sum(kept, axis=1, keepdims=True))
    return relax.op.divide(total, count)


def _l2_norm(builder: Any, call: Any) -> Any:
    from tvm import relax

    (x,) = call.args
    squares = builder.emit(relax.op.multiply(x, x))
    total = builder.emit(relax.op.sum(squares, axis=-1, keepdims=True))
    return relax.op.multiply(x, builder.emit(relax.op.rsqrt(total)))


def _attention(builder: Any, call: Any) -> Any:
    from tvm import relax

    q, k, v, *mask = call.args
    batch, length, channels = (int(extent) for extent in q.ty.shape.values)
    heads, scale = int(call.attrs["num_heads"]), float(call.attrs["scale"])
    split = [batch, length, heads, channels // heads]

    def by_head(value: Any, axes: list[int]) -> Any:
        return builder.emit(
            relax.op.permute_dims(builder.emit(relax.op.reshape(value, split)), axes)
        )

    scores = builder.emit(relax.op.matmul(by_head(q, [0, 2, 1, 3]), by_head(k, [0, 2, 3, 1])))
    scores = builder.emit(relax.op.multiply(scores, relax.const(scale, "float32")))
    if mask:
        keep = builder.emit(relax.op.reshape(mask[0], [batch, 1, 1, length]))
        keep = builder.emit(relax.op.not_equal(keep, relax.const(0, str(mask[0].ty.dtype))))
        scores = builder.emit(relax.op.where(keep, scores, relax.const(-1e30, "float32")))
    weights = builder.emit(relax.op.nn.softmax(scores))
    context = builder.emit(relax.op.matmul(weights, by_head(v, [0, 2, 1, 3])))
    joined = builder.emit(relax.op.permute_dims(context, [0, 2, 1, 3]))
    return relax.op.reshape(joined, [batch, length, channels])


_MEANING = {
    "add": _add,
    "attention": _attention,
    "embedding": _embedding,
    "gelu": _gelu,
    "l2_norm": _l2_norm,
    "layer_norm": _layer_norm,
    "linear": _linear,
    "mean_pool": _mean_pool,
    "position_ids": _position_ids,
    "select_token": _select_token,
    "tanh": _tanh,
}
"""What the encoders of this benchmark consist of."""


def build_float_library(
    module: Any, cells: Iterable[Cell], architectures: tuple[str, ...], path: Path
) -> None:
    """Compile the float module for NVIDIA GPUs; needs no GPU.

    Parameters
    ----------
    module : tvm.IRModule
        A canonical module.
    cells : iterable of Cell
        The shapes.
    architectures : tuple of str
        Such as ``("sm_75",)``; schedules are those for the first.
    path : Path
        Library to write.

    Raises
    ------
    ibert_tvm.targets.TargetError
        If there is no CUDA compiler.
    GpuBenchmarkError
        If it fails.
    """
    import tvm
    from tvm import relax

    from ibert_tvm.targets import get_target
    from ibert_tvm.targets.cuda.compile import compile_device_code, source_modules
    from ibert_tvm.targets.export import export_library

    description = get_target(f"cuda:{'+'.join(architectures)}")
    target = tvm.target.Target(
        {**description.tvm_target, "max_shared_memory_per_block": _STATIC_SHARED_BYTES}
    )
    config = {"relax.backend.use_cuda_graph": True}
    with source_modules(), target, tvm.transform.PassContext(config=config):
        executable = relax.build(float_module(module, cells), target)

    # What makes the product's images refuses floating point, as it must.
    def make_image(source: str, _description: Any) -> bytes:
        with tempfile.TemporaryDirectory(prefix="float.") as folder:
            place = Path(folder) / "fp32.cu"
            place.write_text(source)
            return compile_fat_binary(place, architectures)

    device = compile_device_code(executable, description, {}, {}, make_image=make_image)
    export_library(executable, {}, {}, description, path, device=device)
