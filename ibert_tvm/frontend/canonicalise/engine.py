"""The canonicaliser: one walk over an imported Relax function, interpreting every tensor.

It knows nothing of torch, ONNX or any architecture: it is given a Relax function at a static probe
shape, its weights, and the names they have in the source. Rules (`rules_*.py`) are looked up by
operator and decide on the types of their operands; what a tensor means comes from how it was
computed, never from its name or from the number of layers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from ibert_tvm.relay_passes.canonical import check_canonical

from ..errors import UnsupportedModelError
from ..report import Folding, ImportReport, Origin, RefusedOp, ShownTensor, SourceOp
from .arrays import Array
from .emitter import Emitter, layer_of
from .images import image_view
from .inputs import TOKEN_IDS, InputGraph, constant_array, in_every_run
from .operands import fold, folds, static_shape, table_of
from .padding import leave_out_masks
from .revisit import Revisit
from .values import (
    Emitted,
    FromInputs,
    Hidden,
    Mismatch,
    Pixels,
    Refusal,
    Table,
    Value,
    Weight,
)
from .views import (
    ViewError,
    channel_axis,
    describe,
    is_tokens,
    merged,
)

Rule = Callable[[Emitter, relax.Call, list[Any]], Any]
"""``rule(emitter, call, operands) -> value``; raises Mismatch with the reason."""


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
    by_distance : bool
        Whether an attention has a window or a bias.
    rotations : tuple of numpy.ndarray
        Tables of the rotations.
    positions : int or None
        Of the smallest table that is looked up, or cut to the length; None if none is.
    absent_id : int or None
        Token id that the vocabulary was cut at.
    """

    module: tvm.IRModule
    parameters: dict[str, NDArray[np.float32]]
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, int], ...]
    num_layers: int
    report: ImportReport
    mask: str | None
    added_inputs: tuple[str, ...]
    by_distance: bool = False
    rotations: tuple[NDArray[np.float32], ...] = ()
    positions: int | None = None
    absent_id: int | None = None


class Canonicaliser(Emitter):
    """Rewrite one Relax function to canonical form.

    Parameters
    ----------
    function : relax.Function
        The imported function, static shapes; the first parameters are its inputs.
    inputs : sequence of str
        Canonical names of the inputs, all [batch, seq_len] in the source, or images or features.
    parameters : mapping of str to numpy.ndarray
        Values of the other parameters by variable name.
    names : mapping of str to str
        Source names of parameters by variable name.
    rules : mapping of str to Rule
        Rules by operator.
    origins : mapping of str to Origin
        Nodes and tensors of the source by variable name.
    revisit : Revisit, optional
        See `Emitter`.
    absent_id : int, optional
        A token id that no text has: the vocabulary is cut there.
    """

    def __init__(
        self,
        function: relax.Function,
        inputs: Sequence[str],
        parameters: Mapping[str, Array],
        names: Mapping[str, str],
        rules: Mapping[str, Rule],
        origins: Mapping[str, Origin],
        *,
        revisit: Revisit | None = None,
        absent_id: int | None = None,
    ) -> None:
        variables = function.params[: len(inputs)]
        images = _image_sizes(variables, inputs)
        batch, seq_len = _probe_shape(variables, images)
        compared = _compared_ids(function, dict(zip(inputs, variables, strict=True)))
        super().__init__(
            *(inputs, batch, seq_len, images),
            revisit=revisit,
            compared=compared,
            absent_id=absent_id,
        )
        self.function = function
        self.rules = rules
        self._parameters = parameters
        self._names = names
        self._origins = origins

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
        for name, variable in zip(self.input_names, self.function.params, strict=False):
            if name in self.images:
                environment[variable] = Pixels(name, image_view(self.batch, self.images[name]))
            else:
                environment[variable] = self._from_inputs(variable, graph)
        for variable in self.function.params[len(self.input_names) :]:
            environment[variable] = self._parameter(variable)
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
                self._note_tensors(environment)
            self._builder.emit_func_output(
                variables[0] if len(variables) == 1 else relax.Tuple(variables),
                [*self.input_vars.values(), *(var for var, _ in self._weights.values())],
            )
        if failure is not None:
            raise failure
        module = self._builder.get()
        module["main"] = module["main"].with_attr("num_input", len(self.input_vars))
        check_canonical(module)
        module, products = leave_out_masks(module)
        self.report.foldings += [
            Folding(name, "nothing sees that padding is set to 0") for name in products
        ]
        return Canonical(
            module,
            {name: array for name, (_, array) in self._weights.items()},
            tuple(self.input_vars),
            tuple((item.name, item.var.ty.ndim) for item in outputs),
            self.num_layers,
            self.report,
            next(iter(self._masks), None),
            tuple(name for name in self.input_vars if name not in self.input_names),
            self.by_distance,
            tuple(self.rotations),
            self.looked_up,
            self.absent_id,
        )

    def _parameter(self, variable: relax.Var) -> Weight:
        name = self._names.get(variable.name, variable.name)
        return Weight(name, self._parameters[variable.name], layer=layer_of(name))

    def _note_tensors(self, environment: Mapping[relax.Var, Any]) -> None:
        """Note which tensors of the source show canonical values."""
        for variable, value in environment.items():
            origin = self._origins.get(variable.name)
            shown = self.shown(value) if origin is not None else None
            if origin is not None and shown is not None:
                self.report.tensors += [ShownTensor(name, *shown) for name in origin.tensors]

    def _input_graph(self, bindings: Sequence[relax.Binding]) -> InputGraph:
        """Find the bindings that depend on inputs and constants only, and who else reads them."""
        inputs = [
            variable
            for name, variable in zip(self.input_names, self.function.params, strict=False)
            if name not in self.images
        ]
        known = set(inputs)
        own: list[relax.Binding] = []
        wanted: dict[relax.Var, None] = {}
        for binding in bindings:
            reads = list(relax.analysis.free_vars(binding.value))
            translated = not self._origins.get(binding.var.name, Origin()).refused
            if (
                translated
                and all(variable in known for variable in reads)
                and isinstance(binding.var.ty, (relax.TensorType, relax.TupleType))
            ):
                known.add(binding.var)
                own.append(binding)
            else:
                wanted.update((variable, None) for variable in reads if variable in known)
        return InputGraph(inputs, own, list(wanted), self.probes)

    def _from_inputs(self, variable: relax.Var, graph: InputGraph) -> FromInputs:
        whole = isinstance(variable.ty, relax.TensorType)
        shape = static_shape(variable) if whole else ()
        return FromInputs(lambda: graph.samples(variable), shape)

    def _interpret(
        self, binding: relax.Binding, environment: Mapping[relax.Var, Any], graph: InputGraph
    ) -> Any:
        value = binding.value
        origin = self._origins.get(binding.var.name, Origin())
        self.current = (origin.node, origin.kind)
        if isinstance(value, relax.Call):
            operands = [self._operand(argument, environment) for argument in value.args]
            refused = next((item for item in _leaves(operands) if isinstance(item, Refusal)), None)
            if refused is not None:
                return refused
            try:
                if origin.refused:
                    raise Mismatch(origin.refused)
                return self._call(binding.var, value, operands, graph)
            except (Mismatch, ViewError) as error:
                self._flush(operands)
                near = next((v.layer for v in _leaves(operands) if v.layer), "")
                op = getattr(error, "op", "") or self.op(value)
                layer = getattr(error, "layer", "") or near
                return self._refusal(op, layer, str(error))
        if isinstance(value, relax.TupleGetItem):
            if binding.var in graph.variables:
                return self._from_inputs(binding.var, graph)
            parts = self._operand(value.tuple_value, environment)
            return parts if isinstance(parts, Refusal) else parts[value.index]
        return self._operand(value, environment)

    def _flush(self, operands: Sequence[Any]) -> None:
        """Emit what a refused operator would have read, so that the report shows it as matched."""
        for value in _leaves(operands):
            with contextlib.suppress(Mismatch, ViewError):
                self.emit(self.hidden(value))

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
        if all(isinstance(item, FromInputs) for item in tensors) and variable in graph.variables:
            first = tensors[0] if tensors else None
            if isinstance(first, FromInputs) and first.constant is not None:
                self._cut_table(call, first.constant)
            rows = self._constant_positions(call, tensors)
            return self._from_inputs(variable, graph) if rows is None else rows
        name = str(call.op.name)
        if all(isinstance(item, (Weight, FromInputs)) for item in tensors):
            folded = self._fold(call, tensors)
            if folded is not None:
                return folded
            if folds(name):
                return self._with_inputs(variable, call, tensors)
        rule = self.rules.get(name)
        if rule is None:
            raise Mismatch("no canonical operator computes it")
        rows = self._rows(call, tensors)
        if rows is None:
            return rule(self, call, operands)
        try:
            found = rule(self, call, operands)
        except (Mismatch, ViewError):
            return rows
        if isinstance(found, list):
            return [_with_rows(part, own) for part, own in zip(found, rows, strict=True)]
        return _with_rows(found, rows)

    def _rows(self, call: relax.Call, tensors: Sequence[Any]) -> Any:
        """What an operator makes of rows that are looked up by position, at the probe shape.

        They are a hidden tensor where they are added to one, and numbers where they turn it. None
        if other tensors are read as well.
        """
        found = [item.rows if isinstance(item, Hidden) else None for item in tensors]
        looked = [rows for rows in found if rows is not None]
        if not looked or len(looked) < len(found) or not folds(str(call.op.name)):
            return None
        made = fold(call, [rows.array for rows in looked])
        name, layer = looked[0].name, looked[0].layer
        if isinstance(made, list):
            return [Weight(name, array, layer=layer) for array in made]
        return Weight(name, made, layer=layer)

    def _constant_positions(self, call: relax.Call, tensors: Sequence[Any]) -> Weight | None:
        """A slice, one row per token, of a table of positions that is no parameter: sinusoids."""
        array = tensors[0].constant if len(tensors) == 1 else None
        if call.op.name != "relax.strided_slice" or array is None or array.dtype.kind != "f":
            return None
        table = table_of(call, array, self.seq_len.extent)
        if table is None:
            return None
        self.report.foldings.append(Folding("positions", "a constant of the graph is a parameter"))
        return Weight("positions", fold(call, [array]), table)

    def _fold(self, call: relax.Call, tensors: Sequence[Any]) -> Weight | list[Weight] | None:
        """Compute an operator on weights now; None if it is a look-up, which stays."""
        name = str(call.op.name)
        if name == "relax.take":
            return None
        arrays = []
        for item in tensors:
            array = item.array if isinstance(item, Weight) else constant_array(item)
            if array is None:
                return None
            arrays.append(array)
        source = next((item for item in tensors if isinstance(item, Weight)), None)
        if source is None:
            return None
        if name not in _MOVES:
            node = (self.current[0],) if self.current[0] else ()
            what = f"{self.op(call).kind} computed at import"
            self.report.foldings.append(Folding(source.name, what, node))
        result = fold(call, arrays)
        if isinstance(result, list):
            return [Weight(source.name, part, layer=source.layer) for part in result]
        table = self._table(call, source, result)
        return Weight(source.name, result, table, layer=source.layer)

    def _with_inputs(
        self, variable: relax.Var, call: relax.Call, tensors: Sequence[Any]
    ) -> FromInputs:
        """A weight computed with what depends on inputs: a bias of scores with their mask."""
        names = (t.name if isinstance(t, Weight) else t.weight for t in tensors)

        @functools.cache
        def samples() -> list[Array]:
            runs = zip(*(in_every_run(item, self.probes) for item in tensors), strict=True)
            return [fold(call, list(arrays)) for arrays in runs]

        layer = next((item.layer for item in tensors if item.layer), "")
        weight = next((name for name in names if name), "")
        return FromInputs(samples, static_shape(variable), weight=weight, layer=layer)

    def _table(self, call: relax.Call, source: Weight, result: Array) -> Table | None:
        """Follow a table of positions from the slice that cuts it to where it is added."""
        if call.op.name == "relax.strided_slice":
            return self._cut_table(call, source.array)
        if call.op.name in _MOVES and result.shape[-2:] == source.array.shape[-2:]:
            return source.table
        return None

    def _cut_table(self, call: relax.Call, array: Array) -> Table | None:
        """Table of positions that is cut to the length; None if it is none."""
        sliced = call.op.name == "relax.strided_slice"
        table = table_of(call, array, self.seq_len.extent) if sliced else None
        if table is not None:
            self.note_positions(len(table.array) - table.offset)
        return table

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
                channels = channel_axis(hidden.source.channels)
                ends = [merged(axis) for axis in (hidden.view[0], hidden.view[-1])]
                inner = hidden.view[1:-1]
                fits = ends == [self.rows, channels] and all(map(is_tokens, inner))
                if not fits or len(inner) > 1 or hidden.missing:
                    raise Mismatch(
                        f"its layout is {describe(hidden.view)}, not [batch, sequence, channels] "
                        "or [batch, channels]"
                    )
                result.append(self.emit(hidden))
            except (Mismatch, ViewError) as error:
                op = getattr(error, "op", "") or "output"
                layer = getattr(error, "layer", "") or getattr(value, "layer", "")
                raise self._refused(self._refusal(op, layer, str(error)), name) from error
        return result

    def _refusal(self, op: str, layer: str, why: str) -> Refusal:
        kind, node = getattr(op, "kind", op), getattr(op, "node", "")
        self.report.refusals.append(RefusedOp(kind, layer, why, node))
        return Refusal(SourceOp(kind, node), why, layer=layer)

    def _refused(self, refusal: Refusal, output: str) -> UnsupportedModelError:
        node = getattr(refusal.op, "node", "")
        place = f"operator {refusal.op}" + (f", node {node}" if node else "")
        layer = f", layer {refusal.layer}" if refusal.layer else ""
        error = UnsupportedModelError(
            f"{refusal.op} has no integer form here",
            where=f"{place}{layer} (needed by {output})",
            why=refusal.why,
            todo="use a model built from linear, attention, layer_norm, gelu, relu, tanh, "
            "embedding and add, or change this part of it; `ibert inspect` shows what was matched",
        )
        error.report = self.report
        return error


# Operators that move weights without computing anything.
_MOVES = {
    "relax.astype",
    "relax.broadcast_to",
    "relax.expand_dims",
    "relax.permute_dims",
    "relax.reshape",
    "relax.squeeze",
}


def _image_sizes(
    variables: Sequence[relax.Var], names: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """Planes, height and width of the inputs that hold images; planes and frames of features."""
    shapes = {
        name: static_shape(variable)
        for name, variable in zip(names, variables, strict=True)
        if str(variable.ty.dtype) == "float32"
    }
    sizes = {}
    for name, shape in shapes.items():
        if len(shape) not in (3, 4) or shape[0] < 2 or len(variables) != 1:
            raise UnsupportedModelError(
                f"the input {name} is float32 of shape {list(shape)}",
                where="canonicalisation",
                why="a float input is a batch of images [batch, channels, height, width] or of "
                "features [batch, channels, frames], batch above 1, and the only input",
                todo="import the part of the model that takes token ids, or images alone",
            )
        sizes[name] = shape[1:]
    return sizes


def _probe_shape(
    inputs: Sequence[relax.Var], images: Mapping[str, tuple[int, ...]]
) -> tuple[int, int]:
    if images:
        return static_shape(inputs[0])[0], 0
    shapes = {static_shape(variable) for variable in inputs}
    shape = next(iter(shapes))
    if len(shapes) != 1 or len(shape) != 2 or shape[1] < 2 or shape[0] == shape[1]:
        raise UnsupportedModelError(
            f"the inputs have shapes {sorted(shapes)}",
            where="canonicalisation",
            why="every input is [batch, seq_len] of one probe shape, seq_len above 1 and unequal "
            "to batch, so that the two axes can be told apart",
            todo="import the model with such example inputs, for example 2 x 13",
        )
    return shape[0], shape[1]


def _with_rows(found: Any, rows: Weight) -> Any:
    """A hidden tensor that is looked up by position, with its rows; else the rows alone."""
    return replace(found, rows=rows) if isinstance(found, Hidden) else rows


def _leaves(operands: Sequence[Any]) -> list[Any]:
    result: list[Any] = []
    for item in operands:
        if isinstance(item, list):
            result.extend(_leaves(item))
        elif item is not None:
            result.append(item)
    return result


def _compared_ids(function: relax.Function, inputs: Mapping[str, relax.Var]) -> list[int]:
    """Numbers that token ids are tested to equal."""
    ids, found = {inputs[name] for name in inputs if name == TOKEN_IDS}, []
    for binding in (b for block in function.body.blocks for b in block.bindings):
        call = binding.value
        if not isinstance(call, relax.Call) or not ids.intersection(call.args):
            continue
        name = str(getattr(call.op, "name", ""))
        if name == "relax.astype":
            ids.add(binding.var)
        numbers = [
            item.value.numpy() for item in call.args if isinstance(item, tvm.ir.GenericConst)
        ]
        if name == "relax.equal" and numbers and numbers[0].size == 1:
            found.append(int(numbers[0].reshape(-1)[0]))
    return found
