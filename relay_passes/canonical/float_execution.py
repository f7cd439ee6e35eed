"""Run a canonical module in float on the host CPU, with any of its values as extra outputs.

Calibration and reports read every named value; the demo takes its float latency from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from . import float_kernels as kernels
from .check import canonical_calls, main_function, num_inputs
from .errors import CanonicalError
from .legalize import mean_pool_te, patches_te, prepend_tokens_te, select_token_te
from .ops import value_name

_PACKED = "#packed"


@dataclass(frozen=True)
class FloatResult:
    """What one run returns.

    Parameters
    ----------
    outputs : tuple of numpy.ndarray
        The module's outputs in order, float32.
    values : dict of str to numpy.ndarray
        The captured values by canonical name, float32.
    """

    outputs: tuple[NDArray[np.float32], ...]
    values: Mapping[str, NDArray[np.float32]]


def host_target() -> tvm.target.Target:
    """Return the LLVM target of this machine, with the vector instructions that it really has.

    The name of a processor promises more than a virtual machine may show of it: a Zen 4 whose
    AVX-512 is hidden keeps its name, and code for that name ends in an illegal instruction. What
    the processor itself reports is therefore added, and taken away, one by one.
    """
    from tvm.target import codegen

    reported = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    features = {str(name): bool(present) for name, present in reported.items()}
    return target_of(codegen.llvm_get_system_triple(), codegen.llvm_get_system_cpu(), features)


def target_of(triple: str, processor: str, features: Mapping[str, bool]) -> tvm.target.Target:
    """Return the LLVM target of a processor with some of its features present, others absent.

    Parameters
    ----------
    triple : str
        LLVM's name of the machine.
    processor : str
        LLVM's name of the processor.
    features : mapping of str to bool
        Whether it has a feature, by LLVM's name; of others the processor's name decides.
    """
    attributes = [("+" if present else "-") + name for name, present in sorted(features.items())]
    return tvm.target.Target(
        {"kind": "llvm", "mtriple": triple, "mcpu": processor, "mattr": attributes}
    )


class FloatExecutable:
    """A canonical module ready to run in float; compiles once per (batch, seq_len).

    Parameters
    ----------
    module : tvm.IRModule
        A canonical module.
    parameters : mapping of str to numpy.ndarray
        Its weights by parameter name, float32.
    capture_names : iterable of str or "all"
        Canonical names of the values that `run` returns besides the outputs; ``"all"`` for every
        float value.

    Raises
    ------
    CanonicalError
        If a weight is missing or has another shape, or a name does not exist.
    """

    def __init__(
        self,
        module: tvm.IRModule,
        parameters: Mapping[str, NDArray[Any]],
        capture_names: Iterable[str] | str = (),
    ) -> None:
        self._module = module
        self._function = main_function(module)
        self._target = host_target()
        self._tile = kernels.tile_for(self._target)
        count = num_inputs(self._function)
        self.input_names = tuple(v.name for v in self._function.params[:count])
        self.capture_names = self._captured(capture_names)
        self._weights = self._bind(self._function.params[count:], parameters)
        self._machines: dict[tuple[int, int], relax.VirtualMachine] = {}

    def _captured(self, names: Iterable[str] | str) -> tuple[str, ...]:
        known = [
            value_name(call)
            for variable, call in canonical_calls(self._module)
            if str(variable.ty.dtype) == kernels.FLOAT
        ]
        if isinstance(names, str):
            if names == "all":
                return tuple(known)
            names = (names,)
        wanted = tuple(dict.fromkeys(names))
        missing = [name for name in wanted if name not in set(known)]
        if missing:
            raise CanonicalError(
                f"there is no float value named {missing[0]!r}",
                where="capture_names",
                why=f"the module has: {', '.join(known)}",
                todo="use one of these names, or 'all'",
            )
        return wanted

    def _bind(
        self, variables: Iterable[relax.Var], parameters: Mapping[str, NDArray[Any]]
    ) -> dict[str, tvm.runtime.Tensor]:
        """Convert the weights once: those of linear layers packed, others as they are."""
        packed: set[str] = set()
        plain: set[str] = set()
        for _, call in canonical_calls(self._module):
            for index, argument in enumerate(call.args):
                linear_weight = call.op.name == "canonical.linear" and index == 1
                (packed if linear_weight else plain).add(argument.name)
        result = {}
        for variable in variables:
            name = variable.name
            shape = tuple(int(extent) for extent in variable.ty.shape.values)
            if name not in parameters:
                raise CanonicalError(
                    f"weight {name} is missing",
                    where=f"parameter {name!r}",
                    why="the function has it, the dictionary of parameters does not",
                    todo="pass the parameters that came with the module",
                )
            array = np.ascontiguousarray(parameters[name], dtype=np.float32)
            if array.shape != shape:
                raise CanonicalError(
                    f"weight {name} has shape {array.shape}",
                    where=f"parameter {name!r}",
                    why=f"the function expects {shape}",
                    todo="pass the parameters that came with the module",
                )
            if name in plain:
                result[name] = tvm.runtime.tensor(array)
            if name in packed:
                result[name + _PACKED] = tvm.runtime.tensor(_pack(array, self._tile.columns))
        return result

    def machine(self, batch: int, seq_len: int) -> relax.VirtualMachine:
        """Return the compiled module for one shape, compiling it on first use.

        Parameters
        ----------
        batch, seq_len : int
            The shape; a model of images has one length of its own, and any `seq_len` serves.

        Returns
        -------
        relax.VirtualMachine
            Its ``main`` takes the inputs and then the values of `weights`.
        """
        shape = (batch, seq_len)
        if shape not in self._machines:
            module = _Lowering(self, batch, seq_len).lower()
            self._machines[shape] = relax.VirtualMachine(
                tvm.compile(module, target=self._target), tvm.cpu()
            )
        return self._machines[shape]

    @property
    def weights(self) -> list[tvm.runtime.Tensor]:
        """The converted weights in the order in which the compiled function takes them."""
        return list(self._weights.values())

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> FloatResult:
        """Run one batch.

        Parameters
        ----------
        inputs : mapping of str to numpy.ndarray
            Every input of the module by name: [batch, seq_len] of any integer type, or images
            [batch, channels, height, width] of any float type.

        Returns
        -------
        FloatResult
            Outputs and captured values. The arrays share memory with TVM: copy before writing.

        Raises
        ------
        CanonicalError
            If an input is missing, unknown, or of another shape than the first one.
        """
        arrays = self._check_inputs(inputs)
        batch, seq_len = arrays[0].shape[:2]
        machine = self.machine(batch, seq_len)
        result = machine["main"](*(tvm.runtime.tensor(array) for array in arrays), *self.weights)
        fields: list[NDArray[Any]] = [np.from_dlpack(item) for item in result]
        count = len(fields) - len(self.capture_names)
        return FloatResult(
            tuple(fields[:count]), dict(zip(self.capture_names, fields[count:], strict=True))
        )

    def _check_inputs(self, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        if set(inputs) != set(self.input_names):
            raise CanonicalError(
                f"got inputs {', '.join(sorted(inputs)) or 'none'}",
                where="run",
                why=f"the model takes {', '.join(self.input_names)}",
                todo="pass exactly these",
            )
        params = self._function.params
        arrays: list[NDArray[Any]] = []
        for name, variable in zip(self.input_names, params, strict=False):
            array = np.ascontiguousarray(inputs[name], dtype=str(variable.ty.dtype))
            arrays.append(array)
            if array.dtype == np.float32:
                _check_images(name, array, variable)
            elif array.ndim != 2 or array.shape != arrays[0].shape or 0 in array.shape:
                raise CanonicalError(
                    f"input {name} has shape {array.shape}",
                    where="run",
                    why="all inputs are [batch, seq_len] of one shape, not empty",
                    todo="pad the batch to one length",
                )
        return arrays


def _check_images(name: str, array: NDArray[Any], variable: relax.Var) -> None:
    size = [int(extent) for extent in variable.ty.shape.values[1:]]
    if list(array.shape[1:]) != size or array.shape[0] == 0:
        raise CanonicalError(
            f"input {name} has shape {array.shape}",
            where="run",
            why=f"the model takes images of {' x '.join(map(str, size))} (channels, height, width)",
            todo="resize the images as the model's image processor does",
        )


def float_executable(
    module: tvm.IRModule,
    parameters: Mapping[str, NDArray[Any]],
    capture_names: Iterable[str] | str = (),
) -> FloatExecutable:
    """Prepare a canonical module to run in float; see `FloatExecutable` for the parameters."""
    return FloatExecutable(module, parameters, capture_names)


def _pack(weight: NDArray[np.float32], columns: int) -> NDArray[np.float32]:
    """Weight [N, K] as panels [N/columns, K, columns], zero-padded."""
    outputs, inner = weight.shape
    panels = -(-outputs // columns)
    padded = np.zeros((panels * columns, inner), np.float32)
    padded[:outputs] = weight
    return np.ascontiguousarray(padded.reshape(panels, columns, inner).transpose(0, 2, 1))


class _Lowering:
    """One canonical module at one shape, rewritten to calls of scheduled kernels."""

    def __init__(self, owner: FloatExecutable, batch: int, seq_len: int) -> None:
        self.owner = owner
        self.tile = owner._tile
        self.batch = batch
        self.seq_len = seq_len
        self.builder = relax.BlockBuilder()
        self.kernels: dict[tuple[object, ...], relax.GlobalVar] = {}

    def lower(self) -> tvm.IRModule:
        """Return the module of kernels; ``main`` returns a flat tuple, captured values last."""
        source = self.owner._function
        values: dict[relax.Var, relax.Expr] = {}
        params = []
        weights: dict[str, relax.Var] = {}
        for variable in source.params[: len(self.owner.input_names)]:
            dims = list(variable.ty.shape.values)
            # Images have a static size of their own; tokens are as many as the batch has.
            shape = [self.batch, *(dims[1:] if len(dims) == 4 else [self.seq_len])]
            param = relax.Var(variable.name, relax.TensorType(shape, str(variable.ty.dtype)))
            params.append(param)
            values[variable] = param
        for name, tensor in self.owner._weights.items():
            param = relax.Var(name, relax.TensorType(list(tensor.shape), kernels.FLOAT))
            params.append(param)
            weights[name] = param
        named: dict[str, relax.Expr] = {}
        with self.builder.function("main", params):
            with self.builder.dataflow():
                for block in source.body.blocks:
                    for binding in block.bindings:
                        value = binding.value
                        if isinstance(value, relax.Var):
                            values[binding.var] = values[value]
                        elif isinstance(value, relax.Tuple):
                            values[binding.var] = relax.Tuple([values[f] for f in value.fields])
                        else:
                            result = self._emit(value, values, weights)
                            values[binding.var] = named[value_name(value)] = result
                body = source.body.body
                final = values[body] if isinstance(body, relax.Var) else body
                outputs = list(final.fields) if isinstance(final, relax.Tuple) else [final]
                outputs = [values.get(item, item) for item in outputs]
                outputs += [named[name] for name in self.owner.capture_names]
                emitted = [self.builder.emit_output(item) for item in outputs]
            self.builder.emit_func_output(relax.Tuple(emitted))
        return self.builder.get()

    def _emit(
        self,
        call: relax.Call,
        values: Mapping[relax.Var, relax.Expr],
        weights: Mapping[str, relax.Var],
    ) -> relax.Expr:
        args = [values[a] if a in values else weights.get(a.name, a) for a in call.args]
        if call.op.name == "canonical.linear":
            args[1] = weights[call.args[1].name + _PACKED]
        return _EMITTERS[call.op.name](self, call, args)

    def kernel(
        self,
        key: tuple[object, ...],
        make: Any,
        args: list[relax.Expr],
        shape: list[int],
        dtype: str = kernels.FLOAT,
    ) -> relax.Var:
        """Emit a call of the kernel `key`, made by `make()` on first use."""
        if key not in self.kernels:
            name = "_".join(str(part) for part in key[:1])
            self.kernels[key] = self.builder.add_func(make(), name)
        return self.builder.emit(
            relax.call_tir(self.kernels[key], args, relax.TensorType(shape, dtype))
        )

    def reshape(self, value: relax.Expr, shape: list[int]) -> relax.Expr:
        """View `value` in another shape; no copy after TVM's reshape rewriting."""
        if _shape(value) == shape:
            return value
        return self.builder.emit(relax.op.reshape(value, shape))


def _shape(value: relax.Expr) -> list[int]:
    return [int(extent) for extent in value.ty.shape.values]


def _size(shape: list[int]) -> int:
    return int(np.prod(shape))


def _embedding(low: _Lowering, _call: relax.Call, args: list[relax.Expr]) -> relax.Expr:
    table, ids = args
    vocabulary, channels = _shape(table)
    shape = _shape(ids)
    rows = _size(shape)
    flat = low.kernel(
        ("embedding", rows, vocabulary, channels),
        lambda: kernels.embedding(rows, vocabulary, channels, low.tile),
        [table, low.reshape(ids, [rows])],
        [rows, channels],
    )
    return low.reshape(flat, [*shape, channels])


def _position_ids(low: _Lowering, call: relax.Call, args: list[relax.Expr]) -> relax.Expr:
    shape = _shape(args[0])
    batch, length = shape
    key = (str(call.attrs["kind"]), int(call.attrs["offset"]), int(call.attrs["padding_index"]))
    return low.kernel(
        ("position_ids", *key),
        lambda: kernels.position_ids(batch, length, *key),
        args,
        shape,
        "int64",
    )


def _linear(low: _Lowering, _call: relax.Call, args: list[relax.Expr]) -> relax.Expr:
    x, weight, bias = args
    shape = _shape(x)
    rows, inner, outputs = _size(shape[:-1]), shape[-1], _shape(bias)[0]
    flat = low.kernel(
        ("linear", rows, inner, outputs),
        lambda: kernels.linear(rows, inner, outputs, low.tile),
        [low.reshape(x, [rows, inner]), weight, bias],
        [rows, outputs],
    )
    return low.reshape(flat, [*shape[:-1], outputs])


def _attention(low: _Lowering, call: relax.Call, args: list[relax.Expr]) -> relax.Expr:
    q, k, v, *mask = args
    batch, length, channels = _shape(q)
    heads, scale = int(call.attrs["num_heads"]), float(call.attrs["scale"])
    width = channels // heads
    padded = -(-length // low.tile.columns) * low.tile.columns
    square = [batch, heads, length, padded]
    scores = low.kernel(
        ("scores", heads, width, scale),
        lambda: kernels.attention_scores(batch, length, heads, width, scale, low.tile),
        [q, k],
        square,
    )
    probabilities = low.kernel(
        ("softmax", heads, bool(mask)),
        lambda: kernels.attention_softmax(batch, length, heads, padded, low.tile, bool(mask)),
        [scores, *mask],
        square,
    )
    context = low.kernel(
        ("context", heads, width),
        lambda: kernels.attention_context(batch, length, heads, width, padded, low.tile),
        [probabilities, v],
        [batch, length, heads, width],
    )
    return low.reshape(context, [batch, length, channels])


def _layer_norm(low: _Lowering, call: relax.Call, args: list[relax.Expr]) -> relax.Expr:
    shape = _shape(args[0])
    rows, channels = _size(shape[:-1]), shape[-1]
    epsilon = float(call.attrs["epsilon"])
    flat = low.kernel(
        ("layer_norm", rows, channels, epsilon),
        lambda: kernels.layer_norm(rows, channels, epsilon, low.tile),
        [low.reshape(args[0], [rows, channels]), *args[1:]],
        [rows, channels],
    )
    return low.reshape(flat, shape)


def _elementwise(low: _Lowering, call: relax.Call, args: list[relax.Expr]) -> relax.Expr:
    shape = _shape(args[0])
    size = _size(shape)
    kind = call.op.name.removeprefix("canonical.")
    if kind == "gelu":
        kind = f"gelu_{call.attrs['form']}"
    flat = low.kernel(
        (kind, size),
        lambda: (
            kernels.add(size, low.tile)
            if kind == "add"
            else kernels.activation(kind, size, low.tile)
        ),
        [low.reshape(arg, [size]) for arg in args],
        [size],
    )
    return low.reshape(flat, shape)


def _patches(low: _Lowering, call: relax.Call, args: list[relax.Expr]) -> relax.Expr:
    size = (int(call.attrs["patch_height"]), int(call.attrs["patch_width"]))
    return low.builder.emit(low.builder.call_te(patches_te, args[0], *size))


def _prepend_tokens(low: _Lowering, _call: relax.Call, args: list[relax.Expr]) -> relax.Expr:
    return low.builder.emit(low.builder.call_te(prepend_tokens_te, *args))


def _add_positions(low: _Lowering, _call: relax.Call, args: list[relax.Expr]) -> relax.Expr:
    return low.builder.emit(relax.op.add(*args))


def _mean_pool(low: _Lowering, _call: relax.Call, args: list[relax.Expr]) -> relax.Expr:
    return low.builder.emit(low.builder.call_te(mean_pool_te, *args))


def _select_token(low: _Lowering, call: relax.Call, args: list[relax.Expr]) -> relax.Expr:
    return low.builder.emit(low.builder.call_te(select_token_te, args[0], int(call.attrs["index"])))


_EMITTERS = {
    "canonical.embedding": _embedding,
    "canonical.position_ids": _position_ids,
    "canonical.patches": _patches,
    "canonical.prepend_tokens": _prepend_tokens,
    "canonical.add_positions": _add_positions,
    "canonical.linear": _linear,
    "canonical.attention": _attention,
    "canonical.layer_norm": _layer_norm,
    "canonical.gelu": _elementwise,
    "canonical.relu": _elementwise,
    "canonical.tanh": _elementwise,
    "canonical.add": _elementwise,
    "canonical.mean_pool": _mean_pool,
    "canonical.select_token": _select_token,
}
