"""The canonicaliser: one walk over an imported Relax function, interpreting every tensor.

It knows nothing of torch, ONNX or any architecture: it is given a Relax function at a static probe
shape, its weights, and the names they have in the source. Rules (`rules_*.py`) are looked up by
operator and decide on the types of their operands; what a tensor means comes from how it was
computed, never from its name or from the number of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx

from ibert_tvm.frontend.canonicalise import functions
from ibert_tvm.frontend.canonicalise.inputs import Ids, InputGraph, Probes, constant_array
from ibert_tvm.frontend.canonicalise.operands import fold, static_shape
from ibert_tvm.frontend.canonicalise.values import (
    Computed,
    Embedded,
    Emitted,
    FromInputs,
    Hidden,
    Linear,
    Mismatch,
    Pointwise,
    Refusal,
    Value,
    Weight,
)
from ibert_tvm.frontend.canonicalise.views import (
    Atom,
    Axis,
    ViewError,
    broadcast,
    channel_axis,
    describe,
    flatten,
    merged,
    shape_of,
)
from ibert_tvm.frontend.errors import UnsupportedModelError
from ibert_tvm.frontend.report import Folding, ImportReport, MatchedOp, RefusedOp
from relay_passes.canonical import build, check_canonical

__all__ = ["Canonical", "Canonicaliser", "Rule", "layer_of"]

Rule = Callable[["Canonicaliser", relax.Call, list[Any]], Any]
"""``rule(canonicaliser, call, operands) -> value``; raises Mismatch with the reason."""


@dataclass(frozen=True)
class Canonical:
    """Result of canonicalisation.

    Parameters
    ----------
    module : tvm.IRModule
        The canonical module.
    parameters : dict of str to numpy.ndarray
        Its weights, float32.
    inputs : tuple of str
        Names of its inputs.
    outputs : tuple of (str, int)
        Canonical name and number of dimensions of every output.
    num_layers : int
        Attention operators in it.
    report : ImportReport
        What was done.
    mask : str or None
        The input that masks keys.
    added_inputs : tuple of str
        Inputs that the source does not have.
    """

    module: tvm.IRModule
    parameters: dict[str, NDArray[np.float32]]
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, int], ...]
    num_layers: int
    report: ImportReport
    mask: str | None
    added_inputs: tuple[str, ...]


def layer_of(parameter: str) -> str:
    """Return the module path of a parameter: its name without the last component."""
    return parameter.rpartition(".")[0] or parameter


class Canonicaliser:
    """Rewrite one Relax function to canonical form.

    Parameters
    ----------
    function : relax.Function
        The imported function, static shapes; the first parameters are its inputs.
    inputs : sequence of str
        Canonical names of the inputs, all [batch, seq_len] in the source.
    parameters : mapping of str to numpy.ndarray
        Values of the other parameters by variable name.
    names : mapping of str to str
        Source names of parameters by variable name.
    rules : mapping of str to Rule
        Rules by operator.
    """

    def __init__(
        self,
        function: relax.Function,
        inputs: Sequence[str],
        parameters: Mapping[str, NDArray[Any]],
        names: Mapping[str, str],
        rules: Mapping[str, Rule],
    ) -> None:
        self.function = function
        self.rules = rules
        self.report = ImportReport()
        self.input_names = tuple(inputs)
        batch, seq_len = self._probe_shape()
        self.batch, self.seq_len = Atom("batch", batch), Atom("sequence", seq_len)
        self.probes = Probes(self.input_names, batch, seq_len)
        self._parameters = parameters
        self._names = names
        self._builder = relax.BlockBuilder()
        symbols = [tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")]
        self._token_type = relax.TensorType(symbols, "int64")
        self.input_vars = {name: relax.Var(name, self._token_type) for name in self.input_names}
        self._weights: dict[str, tuple[relax.Var, NDArray[np.float32]]] = {}
        self._taken: set[str] = set()
        self._emitted: dict[int, Emitted] = {}
        self._keep: list[Computed] = []
        self._activations: dict[tuple[str, str, str], Emitted] = {}
        self._positions: dict[tuple[str, str, int], relax.Var] = {}
        self._masks: set[str | None] = set()
        self.num_layers = 0

    def _probe_shape(self) -> tuple[int, int]:
        shapes = {
            static_shape(variable) for variable in self.function.params[: len(self.input_names)]
        }
        shape = next(iter(shapes))
        if len(shapes) != 1 or len(shape) != 2 or min(shape) < 2 or shape[0] == shape[1]:
            raise UnsupportedModelError(
                f"the inputs have shapes {sorted(shapes)}",
                where="canonicalisation",
                why="every input is [batch, seq_len] of one probe shape, both above 1 and unequal, "
                "so that the two axes can be told apart",
                todo="import the model with such example inputs, for example 2 x 13",
            )
        return shape[0], shape[1]

    # -- the walk ---------------------------------------------------------------------------

    def run(self, output_names: Sequence[str]) -> Canonical:
        """Canonicalise the function.

        Parameters
        ----------
        output_names : sequence of str
            Names of the outputs, for messages; empty to number them.

        Returns
        -------
        Canonical
            The result.

        Raises
        ------
        UnsupportedModelError
            If an output depends on something that has no canonical form.
        """
        bindings = [b for block in self.function.body.blocks for b in block.bindings]
        environment: dict[relax.Var, Any] = {}
        graph = self._input_graph(bindings)
        for variable in self.function.params[: len(self.input_names)]:
            environment[variable] = self._from_inputs(variable, graph)
        for variable in self.function.params[len(self.input_names) :]:
            name = self._names.get(variable.name, variable.name)
            environment[variable] = Weight(
                name, self._parameters[variable.name], layer=layer_of(name)
            )
        with self._builder.function("main"):
            with self._builder.dataflow():
                for binding in bindings:
                    environment[binding.var] = self._interpret(binding, environment, graph)
                # The builder has to be closed before an error may leave: TVM complains otherwise.
                failure: UnsupportedModelError | None = None
                try:
                    outputs = self._outputs(environment, output_names)
                except UnsupportedModelError as error:
                    failure, outputs = error, []
                variables = [self._builder.emit_output(item.var) for item in outputs]
            self._builder.emit_func_output(
                variables[0] if len(variables) == 1 else relax.Tuple(variables),
                [*self.input_vars.values(), *(var for var, _ in self._weights.values())],
            )
        if failure is not None:
            raise failure
        module = self._builder.get()
        module["main"] = module["main"].with_attr("num_input", len(self.input_vars))
        check_canonical(module)
        return Canonical(
            module,
            {name: array for name, (_, array) in self._weights.items()},
            tuple(self.input_vars),
            tuple((item.name, item.var.ty.ndim) for item in outputs),
            self.num_layers,
            self.report,
            next(iter(self._masks), None),
            tuple(name for name in self.input_vars if name not in self.input_names),
        )

    def _input_graph(self, bindings: Sequence[relax.Binding]) -> InputGraph:
        """Find the bindings that depend on inputs and constants only, and who else reads them."""
        known = set(self.function.params[: len(self.input_names)])
        own: list[relax.Binding] = []
        wanted: dict[relax.Var, None] = {}
        for binding in bindings:
            reads = list(relax.analysis.free_vars(binding.value))
            if all(variable in known for variable in reads) and isinstance(
                binding.var.ty, relax.TensorType
            ):
                known.add(binding.var)
                own.append(binding)
            else:
                wanted.update((variable, None) for variable in reads if variable in known)
        inputs = self.function.params[: len(self.input_names)]
        return InputGraph(inputs, self.input_names, own, list(wanted), self.probes)

    def _from_inputs(self, variable: relax.Var, graph: InputGraph) -> FromInputs:
        return FromInputs(lambda: graph.samples(variable), static_shape(variable))

    def _interpret(
        self, binding: relax.Binding, environment: Mapping[relax.Var, Any], graph: InputGraph
    ) -> Any:
        value = binding.value
        if isinstance(value, relax.Call):
            operands = [self._operand(argument, environment) for argument in value.args]
            refused = next((item for item in _leaves(operands) if isinstance(item, Refusal)), None)
            if refused is not None:
                return refused
            try:
                return self._call(binding.var, value, operands, graph)
            except (Mismatch, ViewError) as error:
                near = next((v.layer for v in _leaves(operands) if v.layer), "")
                op = getattr(error, "op", "") or str(value.op.name)
                layer = getattr(error, "layer", "") or near
                self.report.refusals.append(RefusedOp(op, layer, str(error)))
                return Refusal(op, str(error), layer=layer)
        if isinstance(value, relax.TupleGetItem):
            parts = self._operand(value.tuple_value, environment)
            return parts if isinstance(parts, Refusal) else parts[value.index]
        return self._operand(value, environment)

    def _operand(self, argument: Any, environment: Mapping[relax.Var, Any]) -> Any:
        """Interpretation of an argument; None for shapes and scalars that rules read directly."""
        if isinstance(argument, relax.Var):
            return environment[argument]
        if isinstance(argument, relax.Tuple):
            return [self._operand(item, environment) for item in argument.fields]
        if isinstance(argument, tvm.ir.GenericConst):
            array = argument.value.numpy()
            return FromInputs(lambda: [array], tuple(array.shape), array)
        return None

    def _call(
        self, variable: relax.Var, call: relax.Call, operands: list[Any], graph: InputGraph
    ) -> Any:
        tensors = [item for item in _leaves(operands) if isinstance(item, Value)]
        if all(isinstance(item, FromInputs) for item in tensors):
            return self._from_inputs(variable, graph)
        name = str(call.op.name)
        if all(isinstance(item, (Weight, FromInputs)) for item in tensors):
            folded = self._fold(call, tensors)
            if folded is not None:
                return folded
        rule = self.rules.get(name)
        if rule is None:
            raise Mismatch("no canonical operator computes it")
        return rule(self, call, operands)

    def _fold(self, call: relax.Call, tensors: Sequence[Value]) -> Weight | None:
        """Compute an operator on weights now; None if it is a look-up, which stays."""
        name = str(call.op.name)
        if name == "relax.take":
            return None
        arrays = []
        for item in tensors:
            array = None
            if isinstance(item, Weight):
                array = item.array
            elif isinstance(item, FromInputs):
                array = constant_array(item)
            if array is None:
                return None
            arrays.append(array)
        source = next(item for item in tensors if isinstance(item, Weight))
        if name not in _MOVES:
            self.report.foldings.append(Folding(source.name, f"{name} computed at import"))
        return Weight(source.name, fold(call, arrays), layer=source.layer)

    def _outputs(
        self, environment: Mapping[relax.Var, Any], output_names: Sequence[str]
    ) -> list[Emitted]:
        body = self._operand(self.function.body.body, environment)
        values = body if isinstance(body, list) else [body]
        result = []
        names = output_names or [f"output{index}" for index in range(len(values))]
        for name, value in zip(names, values, strict=True):
            if isinstance(value, Refusal):
                raise self._refused(value, name)
            try:
                hidden = self.hidden(value)
                tokens: list[Axis] = [(self.batch,), (self.seq_len,)]
                channels = channel_axis(hidden.source.channels)
                expected = [*tokens[: len(hidden.view) - 1], channels]
                if [merged(axis) for axis in hidden.view] != expected or hidden.missing:
                    raise Mismatch(
                        f"its layout is {describe(hidden.view)}, not [batch, sequence, channels] "
                        "or [batch, channels]"
                    )
                result.append(self.emit(hidden))
            except (Mismatch, ViewError) as error:
                op = getattr(error, "op", "") or "output"
                layer = getattr(error, "layer", "") or getattr(value, "layer", "")
                self.report.refusals.append(RefusedOp(op, layer, str(error)))
                raise self._refused(Refusal(op, str(error), layer=layer), name) from error
        return result

    def _refused(self, refusal: Refusal, output: str) -> UnsupportedModelError:
        error = UnsupportedModelError(
            f"{refusal.op} has no integer form here",
            where=f"operator {refusal.op}, layer {refusal.layer or 'unknown'} (needed by {output})",
            why=refusal.why,
            todo="use a model built from linear, attention, layer_norm, gelu, relu, tanh, "
            "embedding and add, or change this part of it; `ibert inspect` shows what was matched",
        )
        error.report = self.report
        return error

    # -- emission ---------------------------------------------------------------------------

    def unique(self, name: str) -> str:
        """Return `name`, with a number appended if it is taken, and take it."""
        candidate, count = name, 1
        while candidate in self._taken:
            count += 1
            candidate = f"{name}#{count}"
        self._taken.add(candidate)
        return candidate

    def weight(self, name: str, array: NDArray[Any]) -> relax.Var:
        """Return the parameter `name` of the canonical function with these elements.

        The same name with other elements (a slice, a scaled copy) becomes another parameter.
        """
        data = np.ascontiguousarray(array, dtype=np.float32)
        candidate, count = name, 1
        while candidate in self._weights:
            variable, known = self._weights[candidate]
            if known.shape == data.shape and (
                known.ctypes.data == data.ctypes.data or np.array_equal(known, data)
            ):
                return variable
            count += 1
            candidate = f"{name}#{count}"
        variable = relax.Var(candidate, relax.TensorType(list(data.shape), "float32"))
        self._weights[candidate] = (variable, data)
        return variable

    def record(self, call: relax.Call, name: str, channels: int, ops: Sequence[str]) -> Emitted:
        """Emit a canonical call and note what it replaces."""
        self.report.matched.append(MatchedOp(str(call.op.name), name, tuple(ops)))
        return Emitted(name, channels, tuple(ops), self._builder.emit(call))

    def emit(self, hidden: Hidden) -> Emitted:
        """Return the canonical value that `hidden` shows, emitting what still waits."""
        source = hidden.source
        if hidden.factor != 1.0:
            source = self._scaled(source, hidden.factor)
        if isinstance(source, Emitted):
            return source
        if id(source) not in self._emitted:
            self._keep.append(source)  # keeps the id from being given to another object
            self._emitted[id(source)] = self._emit(source)
        return self._emitted[id(source)]

    def _emit(self, source: Computed) -> Emitted:
        name = self.unique(source.name)
        if isinstance(source, Embedded):
            table = self.weight(source.table.name, source.table.array)
            call = build.embedding(table, source.ids, name=name)
        elif isinstance(source, Linear):
            weight = self.weight(source.weight.name, source.weight.array)
            bias = source.bias
            if bias is None:
                bias_name = layer_of(source.weight.name) + ".bias"
                bias = Weight(bias_name, np.zeros(source.channels, np.float32))
                self.report.foldings.append(Folding(name, "the source has no bias: zeros"))
            call = build.linear(source.x.var, weight, self.weight(bias.name, bias.array), name=name)
        else:
            raise Mismatch(f"{source.name} is the same row for every token, whatever the input")
        return self.record(call, name, source.channels, source.ops)

    def _scaled(self, source: Computed, factor: float) -> Linear:
        if not isinstance(source, Linear):
            raise Mismatch(
                f"{source.name} is multiplied by {factor:g}, which only a linear layer or the "
                "scale of an attention can absorb"
            )
        self.report.foldings.append(Folding(source.name, f"factor {factor:g} moved to the weights"))
        weight = Weight(source.weight.name, source.weight.array * np.float32(factor))
        bias = source.bias
        if bias is not None:
            bias = Weight(bias.name, bias.array * np.float32(factor))
        return Linear(source.name, source.channels, source.ops, source.x, weight, bias)

    def positions(self, ids: Ids, name: str) -> relax.Var:
        """Return the position ids that `ids` describes, emitted once per kind."""
        key = (ids.kind, ids.input, ids.value)
        if key not in self._positions:
            name = self.unique(name)
            tokens = self.input_vars[ids.input or self.input_names[0]]
            absolute = ids.kind == "absolute"
            call = build.position_ids(
                tokens,
                name=name,
                kind=ids.kind,
                offset=ids.value if absolute else 0,
                padding_index=0 if absolute else ids.value,
            )
            self._positions[key] = self.record(call, name, 0, ()).var
        return self._positions[key]

    def attention_mask(self, name: str | None) -> relax.Var:
        """Return the input that masks keys; a source without any mask gets ``attention_mask``.

        Raises
        ------
        Mismatch
            If the model has a padding mask that this attention does not use.
        """
        self._masks.add(name)
        if len(self._masks) > 1 or (name is None and "attention_mask" in self.input_names):
            raise Mismatch("this attention ignores the padding mask that the model takes")
        if name is not None:
            return self.input_vars[name]
        if "attention_mask" not in self.input_vars:
            self.input_vars["attention_mask"] = relax.Var("attention_mask", self._token_type)
            self.report.foldings.append(
                Folding("attention_mask", "the source masks no padding: an input was added for it")
            )
        return self.input_vars["attention_mask"]

    # -- helpers of rules -------------------------------------------------------------------

    def hidden(self, value: Any) -> Hidden:
        """Return `value` as a hidden tensor, recognising an activation function where needed.

        Raises
        ------
        Mismatch
            If it is something else, or an unknown function.
        """
        if isinstance(value, Hidden):
            return value
        if not isinstance(value, Pointwise):
            raise Mismatch(f"a hidden tensor is needed, and this is {_kind(value)}")
        slope = functions.slope(value.samples)
        if slope is not None:
            return Hidden(
                value.base.source,
                value.base.view,
                value.base.factor * slope,
                value.base.missing,
                ops=value.ops,
                layer=value.layer,
            )
        known = functions.name_function(value.samples)
        if known is None and value.parts:
            left, right = value.parts
            return self.add(left, right, ("relax.add",))
        if known is None:
            raise Mismatch(
                f"the function {value.text} is none of gelu (erf or tanh form), relu, tanh",
                op=next(op for op in reversed(value.ops) if op in functions.ELEMENTWISE),
                layer=value.layer,
            )
        kind, form = known
        x = self.emit(value.base)
        key = (x.name, kind, form)
        if key not in self._activations:  # several operators may read one activation
            name = self.unique(f"{x.name}.{kind}")
            attributes = {"form": form} if kind == "gelu" else {}
            call = getattr(build, kind)(x.var, name=name, **attributes)
            self._activations[key] = self.record(call, name, x.channels, value.ops)
        return self.show(self._activations[key], value.base)

    def show(self, source: Computed, like: Hidden) -> Hidden:
        """Return `source` in the layout of `like`."""
        return Hidden(source, like.view, missing=like.missing, layer=layer_of(source.name))

    def add(self, left: Any, right: Any, ops: Sequence[str]) -> Hidden:
        """Emit the sum of two hidden tensors of one layout."""
        a, b = self.hidden(left), self.hidden(right)
        shape = tuple(np.broadcast_shapes(shape_of(a.view), shape_of(b.view)))
        view_a = broadcast(a.view, shape, a.missing)
        view_b = broadcast(b.view, shape, b.missing)
        if [merged(axis) for axis in view_a] != [merged(axis) for axis in view_b]:
            raise Mismatch(
                f"the terms are laid out differently: {describe(view_a)} and {describe(view_b)}"
            )
        x, y = self.emit(a), self.emit(b)
        if x.channels != y.channels or x.var.ty.ndim != y.var.ty.ndim:
            raise Mismatch(f"the terms {x.name} and {y.name} have different shapes")
        newest = max(x, y, key=self._age)
        name = self.unique(f"{newest.name}.add")
        emitted = self.record(
            build.add(x.var, y.var, name=name), name, x.channels, (*a.ops, *b.ops, *ops)
        )
        held = set(flatten(view_a))
        missing = tuple(atom for atom in a.missing if atom in b.missing and atom not in held)
        return Hidden(emitted, view_a, missing=missing, layer=layer_of(newest.name))

    def _age(self, value: Emitted) -> int:
        names = [item.name for item in self.report.matched]
        return names.index(value.name)

    def require_all_channels(self, hidden: Hidden) -> None:
        """Check that the last axis enumerates all channels and the others none of them.

        Raises
        ------
        Mismatch
            If an operator over the last axis would see a part of the channels.
        """
        if not hidden.view or merged(hidden.view[-1]) != channel_axis(hidden.source.channels):
            raise Mismatch(
                f"the last axis of {describe(hidden.view)} is not all {hidden.source.channels} "
                "channels"
            )


# Operators that move weights without computing anything.
_MOVES = {
    "relax.astype",
    "relax.broadcast_to",
    "relax.expand_dims",
    "relax.permute_dims",
    "relax.reshape",
    "relax.squeeze",
}

_KINDS = {
    "FromInputs": "a tensor that depends on inputs or constants only",
    "Weight": "a weight",
    "Scores": "attention scores before the softmax",
    "Probabilities": "attention probabilities",
    "MaskedHidden": "a hidden tensor times the padding mask",
    "list": "a tuple of tensors",
}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value).__name__, type(value).__name__)


def _leaves(operands: Sequence[Any]) -> list[Any]:
    result: list[Any] = []
    for item in operands:
        if isinstance(item, list):
            result.extend(_leaves(item))
        elif item is not None:
            result.append(item)
    return result
