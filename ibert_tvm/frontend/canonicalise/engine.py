"""The canonicaliser: one walk over an imported Relax function, interpreting every tensor.

It knows nothing of torch, ONNX or any architecture: it is given a Relax function at a static probe
shape, its weights, and the names they have in the source. Rules (`rules_*.py`) are looked up by
operator and decide on the types of their operands; what a tensor means comes from how it was
computed, never from its name or from the number of layers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import relax

from ibert_tvm.relay_passes.canonical import check_canonical

from ...common.types import Array, Floats
from ..errors import UnsupportedModelError
from ..report import ImportReport, Origin, RefusedOp, ShownTensor, SourceOp
from .builder import Builder, Revisit, layer_of
from .dispatch import Rule
from .images import Pixels, image_view
from .inputs import TOKEN_IDS, InputGraph, Probes
from .mismatch import Mismatch
from .operands import Table, fold, folds, static_shape, table_of
from .padding import leave_out_masks
from .rules_attention import ATTENTION_RULES
from .rules_convolution import CONVOLUTION_RULES
from .rules_layout import LAYOUT_RULES, TOKEN_RULES
from .rules_math import MATH_RULES
from .rules_pooling import POOLING_RULES
from .values import Emitted, FromInputs, Given, Hidden, Refusal, Several, Value, Weight, together
from .views import channel_axis, describe, is_tokens, merged

_Environment = Mapping[relax.Var, Value]

RULES: dict[str, Rule] = {
    **LAYOUT_RULES,
    **ATTENTION_RULES,
    **MATH_RULES,
    **POOLING_RULES,
    **CONVOLUTION_RULES,
    **TOKEN_RULES,
}
"""Rules by operator."""


@dataclass(frozen=True)
class Canonical:
    """Result of canonicalisation.

    Parameters
    ----------
    module
        The canonical module.
    parameters
        Its weights, float32.
    inputs
        Names of its inputs.
    outputs
        Canonical name and number of dimensions of every output.
    num_layers
        Attention operators in it.
    report
        What was done.
    mask
        The input that masks keys.
    added_inputs
        Inputs that the source does not have.
    by_distance
        Whether an attention has a window or a bias.
    rotations
        Tables of the rotations.
    positions
        Of the smallest table that is looked up, or cut to the length; None if none is.
    absent_id
        Token id that the vocabulary was cut at.
    """

    module: tvm.IRModule
    parameters: dict[str, Floats]
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, int], ...]
    num_layers: int
    report: ImportReport
    mask: str | None
    added_inputs: tuple[str, ...]
    by_distance: bool = False
    rotations: tuple[Floats, ...] = ()
    positions: int | None = None
    absent_id: int | None = None


class Canonicaliser:
    """Rewrite one Relax function to canonical form.

    Parameters
    ----------
    function
        The imported function, static shapes; the first parameters are its inputs.
    inputs
        Canonical names of the inputs, all [batch, seq_len] in the source, or images or features.
    parameters
        Values of the other parameters by variable name.
    names
        Source names of parameters by variable name.
    origins
        Nodes and tensors of the source by variable name.
    revisit
        See `Builder`.
    absent_id
        A token id that no text has: the vocabulary is cut there.

    Attributes
    ----------
    c : Builder
        The canonical function under construction.
    """

    def __init__(
        self,
        function: relax.Function,
        inputs: Sequence[str],
        parameters: Mapping[str, Array],
        names: Mapping[str, str],
        origins: Mapping[str, Origin],
        *,
        revisit: Revisit | None = None,
        absent_id: int | None = None,
    ) -> None:
        variables = function.params[: len(inputs)]
        images = _image_sizes(variables, inputs)
        tokens = tuple(name for name in inputs if name not in images)
        compared = _compared_ids(function, dict(zip(inputs, variables, strict=True)))
        shape = _probe_shape(variables, images)
        probes = Probes(tokens, *shape, revisit is not None, tuple(compared), absent_id)
        self.c = Builder(probes, images, revisit)
        self.function = function
        self._parameters = parameters
        self._names = names
        self._origins = origins
        self._bindings = [b for block in function.body.blocks for b in block.bindings]
        self._graph = self._input_graph()

    def run(self, output_names: Sequence[str]) -> Canonical:
        """Canonicalise the function.

        Parameters
        ----------
        output_names
            Names of the outputs, for messages; empty to number them.

        Raises
        ------
        UnsupportedModelError
            If an output depends on something that has no canonical form.
        """
        c, environment = self.c, dict[relax.Var, Value]()
        for name, variable in zip(c.input_names, self.function.params, strict=False):
            if name in c.images:
                environment[variable] = Pixels(name, image_view(c.batch, c.images[name]))
            else:
                environment[variable] = self._from_inputs(variable)
        for variable in self.function.params[len(c.input_names) :]:
            name = self._names.get(variable.name, variable.name)
            array = self._parameters[variable.name]
            environment[variable] = Weight(name, array, layer=layer_of(name))
        with c.block.function("main"):
            with c.block.dataflow():
                for binding in self._bindings:
                    environment[binding.var] = self._interpret(binding, environment)
                # The builder has to be closed before an error may leave: TVM complains otherwise.
                failure: UnsupportedModelError | None = None
                try:
                    outputs = self._outputs(environment, output_names)
                except UnsupportedModelError as error:
                    failure, outputs = error, []
                variables = [c.block.emit_output(item.var) for item in outputs]
                self._note_tensors(environment)
            c.block.emit_func_output(
                variables[0] if len(variables) == 1 else relax.Tuple(variables),
                [*c.input_vars.values(), *(var for var, _ in c.parameters.values())],
            )
        if failure is not None:
            raise failure
        module = c.block.get()
        module["main"] = module["main"].with_attr("num_input", len(c.input_vars))
        check_canonical(module)
        module, products = leave_out_masks(module)
        for name in products:
            c.note(name, "nothing sees that padding is set to 0")
        return Canonical(
            module,
            {name: array for name, (_, array) in c.parameters.items()},
            tuple(c.input_vars),
            tuple((item.name, item.var.ty.ndim) for item in outputs),
            c.num_layers,
            c.report,
            next(iter(c.masks), None),
            tuple(name for name in c.input_vars if name not in c.input_names),
            c.by_distance,
            tuple(c.rotations),
            c.looked_up,
            c.absent_id,
        )

    def _note_tensors(self, environment: _Environment) -> None:
        """Note which tensors of the source show canonical values."""
        for variable, value in environment.items():
            origin = self._origins.get(variable.name)
            shown = value.shown(self.c) if origin is not None else None
            if origin is not None and shown is not None:
                self.c.report.tensors += [ShownTensor(name, *shown) for name in origin.tensors]

    def _input_graph(self) -> InputGraph:
        """Find the bindings that depend on inputs and constants only, and who else reads them."""
        inputs = [
            variable
            for name, variable in zip(self.c.input_names, self.function.params, strict=False)
            if name not in self.c.images
        ]
        known = set(inputs)
        own: list[relax.Binding] = []
        wanted: dict[relax.Var, None] = {}
        for binding in self._bindings:
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
        return InputGraph(inputs, own, list(wanted), self.c.probes)

    def _from_inputs(self, variable: relax.Var) -> FromInputs:
        whole = isinstance(variable.ty, relax.TensorType)
        shape = static_shape(variable) if whole else ()
        return FromInputs(lambda: self._graph.samples(variable), shape)

    def _interpret(self, binding: relax.Binding, environment: _Environment) -> Value:
        value = binding.value
        origin = self._origins.get(binding.var.name, Origin())
        self.c.current = (origin.node, origin.kind)
        if isinstance(value, relax.TupleGetItem):
            if binding.var in self._graph.variables:
                return self._from_inputs(binding.var)
            return _known(self._operand(value.tuple_value, environment)).result(value.index)
        if not isinstance(value, relax.Call):
            return _known(self._operand(value, environment))
        given = (self._operand(argument, environment) for argument in value.args)
        operands = [operand for operand in given if operand is not None]
        leaves = [leaf for operand in operands for leaf in operand.leaves()]
        refused = next((item for item in leaves if isinstance(item, Refusal)), None)
        if refused is not None:
            return refused
        try:
            if origin.refused:
                raise Mismatch(origin.refused)
            return self._call(binding.var, value, operands, leaves)
        except Mismatch as error:
            for leaf in leaves:  # so that the report shows what is read as matched
                with contextlib.suppress(Mismatch):
                    leaf.hidden(self.c).emit(self.c)
            near = next((leaf.layer for leaf in leaves if leaf.layer), "")
            return self._refusal(error, self.c.op(value), near)

    def _operand(self, argument: relax.Expr, environment: _Environment) -> Value | None:
        """Interpretation of an argument; None for shapes and scalars that rules read directly."""
        match argument:
            case relax.Var():
                return environment[argument]
            case relax.Tuple():
                given = (self._operand(item, environment) for item in argument.fields)
                parts = tuple(part for part in given if part is not None)
                return Several(parts) if parts else None
            case tvm.ir.GenericConst():
                return FromInputs.of(argument.value.numpy())
        return None

    def _call(
        self,
        variable: relax.Var,
        call: relax.Call,
        operands: Sequence[Value],
        leaves: Sequence[Value],
    ) -> Value:
        op = self.c.op(call)
        given = [item for item in leaves if isinstance(item, Given)]
        if len(given) == len(leaves):
            known = self._given(variable, call, given)
            if known is not None:
                return known
        rule = RULES.get(str(op))
        if rule is None:
            raise Mismatch("no canonical operator computes it")
        rows = self._rows(call, leaves)
        try:
            found = rule(self.c, call, op, *operands)
        except Mismatch:
            if rows is None:
                raise
            return together(rows)
        return found if rows is None else found.with_rows(*rows)

    def _given(
        self, variable: relax.Var, call: relax.Call, tensors: Sequence[Given]
    ) -> Value | None:
        """What an operator makes of weights and of what depends on inputs; None if a rule says."""
        first = tensors[0] if tensors else None
        if variable in self._graph.variables and not any(isinstance(t, Weight) for t in tensors):
            if isinstance(first, FromInputs) and first.constant is not None:
                self._cut_table(call, first.constant)
            rows = self._constant_positions(call, tensors)
            return self._from_inputs(variable) if rows is None else rows
        folded = self._fold(call, tensors)
        if folded is not None or not folds(str(call.op.name)):
            return folded
        return self._with_inputs(variable, call, tensors)

    def _rows(self, call: relax.Call, tensors: Sequence[Value]) -> list[Weight] | None:
        """What an operator makes of rows that are looked up by position, at the probe shape.

        They are a hidden tensor where they are added to one, and numbers where they turn it. None
        if other tensors are read as well.
        """
        found = [item.rows if isinstance(item, Hidden) else None for item in tensors]
        looked = [rows for rows in found if rows is not None]
        if not looked or len(looked) < len(found) or not folds(str(call.op.name)):
            return None
        return _like(looked[0], fold(call, [rows.array for rows in looked]))

    def _constant_positions(self, call: relax.Call, tensors: Sequence[Given]) -> Weight | None:
        """A slice, one row per token, of a table of positions that is no parameter: sinusoids."""
        only = tensors[0] if len(tensors) == 1 else None
        array = only.constant if isinstance(only, FromInputs) else None
        if call.op.name != "relax.strided_slice" or array is None or array.dtype.kind != "f":
            return None
        table = table_of(call, array, self.c.seq_len.extent)
        if table is None:
            return None
        self.c.note("positions", "a constant of the graph is a parameter")
        return Weight("positions", fold(call, [array])[0], table)

    def _fold(self, call: relax.Call, tensors: Sequence[Given]) -> Value | None:
        """Compute an operator on weights now; None if it is a look-up, which stays."""
        name = str(call.op.name)
        source = next((item for item in tensors if isinstance(item, Weight)), None)
        if source is None or name == "relax.take":
            return None
        arrays = [array for item in tensors if (array := item.fixed()) is not None]
        if len(arrays) < len(tensors):
            return None
        if name not in _MOVES:
            node = (self.c.current[0],) if self.c.current[0] else ()
            self.c.note(source.name, f"{self.c.op(call).kind} computed at import", node)
        made = _like(source, fold(call, arrays))
        if len(made) > 1:
            return Several(tuple(made))
        return replace(made[0], table=self._table(call, source, made[0].array))

    def _with_inputs(
        self, variable: relax.Var, call: relax.Call, tensors: Sequence[Given]
    ) -> FromInputs:
        """A weight computed with what depends on inputs: a bias of scores with their mask."""

        @functools.cache
        def samples() -> list[Array]:
            runs = zip(*(item.in_every_run(self.c.probes) for item in tensors), strict=True)
            return [fold(call, list(arrays))[0] for arrays in runs]

        layer = next((item.layer for item in tensors if item.layer), "")
        name = next((item.name for item in tensors if item.name), "")
        return FromInputs(samples, static_shape(variable), name=name, layer=layer)

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
        table = table_of(call, array, self.c.seq_len.extent) if sliced else None
        if table is not None:
            self.c.note_positions(len(table.array) - table.offset)
        return table

    def _outputs(self, environment: _Environment, output_names: Sequence[str]) -> list[Emitted]:
        body = _known(self._operand(self.function.body.body, environment))
        values = list(body.leaves())
        names = output_names or [f"output{index}" for index in range(len(values))]
        return [self._output(*pair) for pair in zip(names, values, strict=True)]

    def _output(self, name: str, value: Value) -> Emitted:
        if isinstance(value, Refusal):
            raise self._refused(value, name)
        try:
            hidden = value.hidden(self.c)
            channels = channel_axis(hidden.source.channels)
            ends = [merged(axis) for axis in (hidden.view[0], hidden.view[-1])]
            inner = hidden.view[1:-1]
            fits = ends == [self.c.rows, channels] and all(map(is_tokens, inner))
            if not fits or len(inner) > 1 or hidden.missing:
                raise Mismatch(
                    f"its layout is {describe(hidden.view)}, not [batch, sequence, channels] "
                    "or [batch, channels]"
                )
            return hidden.emit(self.c)
        except Mismatch as error:
            refusal = self._refusal(error, SourceOp("output"), value.layer)
            raise self._refused(refusal, name) from error

    def _refusal(self, error: Mismatch, own: SourceOp, layer: str) -> Refusal:
        op = error.op or own
        layer = error.layer or layer
        kind, node = getattr(op, "kind", op), getattr(op, "node", "")
        self.c.report.refusals.append(RefusedOp(kind, layer, str(error), node))
        return Refusal(SourceOp(kind, node), str(error), layer=layer)

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
        error.report = self.c.report
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


def _like(weight: Weight, arrays: Sequence[Array]) -> list[Weight]:
    """What an operator made of a weight, which may have several results."""
    return [Weight(weight.name, array, layer=weight.layer) for array in arrays]


def _known(value: Value | None) -> Value:
    assert value is not None  # a tensor, not a shape
    return value


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
