"""From an ONNX graph to plain Relax at one static shape.

Nodes are visited once. What depends on constants and shapes only is computed on the way (the probe
shape makes every shape known), everything else becomes Relax, operator by operator; the functions
that do it are registered in `operators` and its neighbours. Nothing is recognised here: what a
chain of operators means is for the canonicaliser to decide. A node without translation becomes a
variable that carries the reason, so that the rest of the model can still be reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from tvm import relax

from ...common.errors import error_lines
from ...common.strict_json import shown
from ...common.types import Array
from ..errors import ModelSourceError
from ..report import Folding, Origin
from . import folding
from .naming import Naming, label
from .signature import GraphInput, ProbeShape
from .values import Known, Operand, Refused, Traced, Untranslatable, constant

Result: TypeAlias = Operand | Sequence[Operand | None]
"""What a translation returns: one value, or several (None for unused results)."""

Operator: TypeAlias = "Callable[[Translator, Node], Result]"

_Operator = TypeVar("_Operator", bound=Operator)
_Unary = TypeVar("_Unary", bound="Callable[[Translator, Node, Traced], Result]")

OPERATORS: dict[tuple[str, str], Operator] = {}
"""Translations by domain and operator; `operators` has them all."""

ORT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


def operator(*names: str, domain: str = "") -> Callable[[_Operator], _Operator]:
    """Register the translation of some operators."""

    def register(function: _Operator) -> _Operator:
        for name in names:
            OPERATORS[domain, name] = function
        return function

    return register


def unary(*names: str, domain: str = "") -> Callable[[_Unary], _Unary]:
    """Register the translation of operators of one tensor, which it takes as well."""

    def register(function: _Unary) -> _Unary:
        operator(*names, domain=domain)(lambda t, node: function(t, node, node.traced()))
        return function

    return register


@dataclass(frozen=True, eq=False)
class Node:
    """A node with its operands.

    Parameters
    ----------
    proto
        The node.
    operands
        Its operands; None for those that are left out.
    version
        Version of its operator set.
    attributes
        Values of its attributes by name.
    """

    proto: onnx.NodeProto
    operands: tuple[Operand | None, ...]
    version: int
    attributes: Mapping[str, Any]

    @property
    def op(self) -> str:
        """Its operator."""
        return str(self.proto.op_type)

    def operand(self, index: int) -> Operand | None:
        """Return operand `index`; None if it is left out."""
        return self.operands[index] if index < len(self.operands) else None

    def tensors(self, count: int) -> list[Operand]:
        """Return the first `count` operands.

        Raises
        ------
        Untranslatable
            If one of them is left out.
        """
        present = [item for item in self.operands[:count] if item is not None]
        if len(present) != count:
            raise Untranslatable(f"it has {len(present)} operands, not {count}")
        return present

    def traced(self, index: int = 0) -> Traced:
        """Return operand `index`, which may not be a constant.

        Raises
        ------
        Untranslatable
            If it is a constant, or left out.
        """
        value = self.operand(index)
        if not isinstance(value, Traced):
            raise Untranslatable(
                f"its operand {index} is {'left out' if value is None else 'a constant'}, and "
                "another one depends on the inputs"
            )
        return value

    def constant(self, index: int, what: str) -> Array | None:
        """Return the elements of operand `index`, None if it is left out.

        Raises
        ------
        Untranslatable
            If it depends on the data.
        """
        value = self.operand(index)
        if isinstance(value, Traced):
            raise Untranslatable(f"its {what} depends on the data, so shapes cannot be known")
        return None if value is None else value.array

    def required(self, index: int, what: str) -> Array:
        """Return the elements of operand `index`, which may not be left out either."""
        array = self.constant(index, what)
        if array is None:
            raise Untranslatable(f"it has no {what}")
        return array

    def integers(self, index: int, attribute: str) -> list[int] | None:
        """Return integers that older operator sets have as attribute, newer ones as operand."""
        if attribute in self.attributes:
            value = self.attributes[attribute]
            return [int(item) for item in value]
        array = self.constant(index, attribute)
        return None if array is None else [int(item) for item in np.atleast_1d(array)]


@dataclass
class Translation:
    """A translated graph.

    Parameters
    ----------
    module
        One function ``main``: inputs, then weights.
    parameters
        Weights by variable name.
    names
        Their names, for the canonical form, by variable name.
    weights
        Initializers by those names, where they differ.
    origins
        Nodes and tensors by variable name.
    foldings
        What was computed from weights at import.
    """

    module: tvm.IRModule = field(default_factory=tvm.IRModule)
    parameters: dict[str, Array] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    foldings: list[Folding] = field(default_factory=list)


class Translator:
    """Translates one graph.

    Parameters
    ----------
    initializers
        Its weights and constants.
    nodes
        Its nodes in order, without calls of local functions.
    inputs
        Its inputs that are no weights.
    opsets
        Versions of the operator sets by domain.
    shape
        The shape at which it is translated.
    operators : mapping of (str, str) to callable
        Translations by domain and operator.

    Attributes
    ----------
    naming : Naming
        Names of weights.
    masks : dict of str to Traced
        Masks [batch, seq_len] by the variables that hold how many tokens they mark per row.
    """

    def __init__(
        self,
        initializers: Sequence[onnx.TensorProto],
        nodes: Sequence[onnx.NodeProto],
        inputs: Sequence[GraphInput],
        opsets: Mapping[str, int],
        shape: ProbeShape,
        operators: Mapping[tuple[str, str], Operator],
    ) -> None:

        self.opsets = dict(opsets)
        self.naming = Naming(nodes)
        self.masks: dict[str, Traced] = {}
        self.shape = shape
        self._operators = operators
        self._nodes = nodes
        self._inputs = inputs
        self._builder = relax.BlockBuilder()
        self._values: dict[str, Operand | Refused] = {
            item.name: Known(numpy_helper.to_array(item), item.name) for item in initializers
        }
        weights = sum(math.prod(item.dims) for item in initializers)
        # A weight may be moved, cast and cut several times on its way.
        self._room = 2 * folding.LARGEST_RESULT + 8 * weights
        self._parameters: dict[tuple[str, int], relax.Var] = {}
        self._made = Translation()
        self._tensors: dict[str, list[str]] = {}
        self._emitted: list[str] = []

    def run(self, outputs: Sequence[str]) -> Translation:
        """Translate the graph.

        Parameters
        ----------
        outputs
            Tensors to return.

        Returns
        -------
        Translation
            The Relax module and where its parts come from.

        Raises
        ------
        ModelSourceError
            If a node reads a tensor that nothing before it computes.
        """
        self._check_operands()
        with self._builder.function("main"):
            with self._builder.dataflow():
                variables = [self._input(item) for item in self._inputs]
                self._visit(self._nodes)
                results = [self._builder.emit_output(self._result(name)) for name in outputs]
            self._builder.emit_func_output(
                results[0] if len(results) == 1 else relax.Tuple(results),
                [*variables, *self._parameters.values()],
            )
        made = self._made
        for name, tensors in self._tensors.items():
            if name in made.origins:
                made.origins[name] = replace(made.origins[name], tensors=tuple(tensors))
        made.module = self._builder.get()
        return made

    def _check_operands(self) -> None:
        known = {*self._values, *(item.name for item in self._inputs), ""}
        for proto in self._nodes:
            for name in proto.input:
                if name not in known:
                    raise ModelSourceError(
                        "the model is malformed",
                        where=f"node {label(proto)} ({proto.op_type})",
                        why=f"its operand {name} is no input, no initializer and no result of an "
                        "earlier node",
                        todo="export it again",
                    )
            known.update(proto.output)

    def _input(self, item: GraphInput) -> relax.Var:
        """Declare an input, in the canonical form, and cast token tensors to the graph's type."""
        if item.real:
            pixels = relax.TensorType([self.shape.batch, *item.real], "float32")
            var = relax.Var(item.canonical, pixels)
            self._values[item.name] = Traced(var, False)
            return var
        shape = [self.shape.batch, self.shape.seq_len]
        var = cast = relax.Var(item.canonical, relax.TensorType(shape, "int64"))
        if item.dtype == "bool":
            cast = self._builder.emit(relax.op.not_equal(var, relax.const(0, "int64")))
        elif item.dtype != "int64":
            cast = self._builder.emit(relax.op.astype(var, item.dtype))
        self._values[item.name] = Traced(cast, True)
        return var

    def _result(self, name: str) -> relax.Expr:
        value = self._values.get(name)
        if value is None:
            raise ModelSourceError(
                "the model is malformed",
                where=f"output {shown(name)}",
                why="it is no input, no initializer and no result of a node",
                todo="export it again",
            )
        if isinstance(value, Known):
            return constant(value.array)
        return value.var

    # -- nodes ------------------------------------------------------------------------------

    def _visit(self, nodes: Sequence[onnx.NodeProto]) -> None:
        for proto in nodes:
            operands = [self._values[name] if name else None for name in proto.input]
            refused = next((item for item in operands if isinstance(item, Refused)), None)
            if refused is not None:
                self._values.update((name, refused) for name in proto.output if name)
                continue
            self._emitted = []
            present = tuple(item for item in operands if not isinstance(item, Refused))
            try:
                results = self._node(proto, present)
            except Untranslatable as error:
                stand_in = Refused(self._stand_in(present))
                self._values.update((name, stand_in) for name in proto.output if name)
                self._note(proto, str(error))
                continue
            self._note(proto, "")
            for name, value in zip(proto.output, results, strict=False):
                if name and value is not None:
                    self._values[name] = value
                    if isinstance(value, Traced):
                        self._tensors.setdefault(value.var.name, []).append(name)

    def _note(self, proto: onnx.NodeProto, refused: str) -> None:
        for name in self._emitted:
            self._made.origins[name] = Origin(label(proto), str(proto.op_type), (), refused)

    def _node(
        self, proto: onnx.NodeProto, operands: tuple[Operand | None, ...]
    ) -> Sequence[Operand | None]:

        domain = "" if proto.domain == "ai.onnx" else proto.domain
        attributes = {item.name: helper.get_attribute_value(item) for item in proto.attribute}
        if proto.op_type == "If":
            return self._if(proto, operands, attributes)
        function = self._operators.get((domain, proto.op_type))
        if function is None or proto.op_type not in _OWN_CONSTANTS:
            constant = not any(isinstance(item, Traced) for item in operands)
        else:
            constant = not _is_look_up(proto.op_type, operands)
        if constant:
            return self._fold(proto, operands)
        if function is None:
            place = f"{proto.domain}." if proto.domain else ""
            raise Untranslatable(f"the operator {place}{proto.op_type} is not known here")
        node = Node(proto, operands, self.opsets.get(domain, 1), attributes)
        try:
            result = function(self, node)
        except TypeError as error:  # TVM's, which tells all that it knows of the operator
            raise Untranslatable("it does not fit the types of its operands") from error
        except (RuntimeError, ValueError, IndexError) as error:
            line = error_lines(error)[-1]
            raise Untranslatable(f"it does not fit its operands: {line}") from error
        return [result] if isinstance(result, Operand) else result

    def _fold(self, proto: onnx.NodeProto, operands: Sequence[Operand | None]) -> list[Known]:
        known = [x for x in operands if not isinstance(x, Traced)]
        results = folding.fold(proto, known, self.opsets, self._room)
        self._room -= sum(result.array.size for result in results)
        for result in results:
            if result.name and proto.op_type not in _MOVES and result.array.size > 1:
                what = f"{proto.op_type} computed at import"
                self._made.foldings.append(Folding(result.name, what, (label(proto),)))
        return results

    def _if(
        self,
        proto: onnx.NodeProto,
        operands: Sequence[Operand | None],
        attributes: Mapping[str, Any],
    ) -> list[Operand | None]:
        """Take the branch of an If whose condition is known, as that of a shape is."""
        condition = operands[0]
        if not isinstance(condition, Known):
            raise Untranslatable("its condition depends on the data, so it would be a branch")

        branch = attributes["then_branch" if condition.array.all() else "else_branch"]
        for item in branch.initializer:
            self._values[item.name] = Known(numpy_helper.to_array(item), item.name)
        self._visit(branch.node)
        self._emitted = []
        values = [self._values[item.name] for item in branch.output]
        refused = [item for item in values if isinstance(item, Refused)]
        if refused:
            raise Untranslatable("a node of the branch that is taken cannot be translated")
        return [item for item in values if not isinstance(item, Refused)]

    def _stand_in(self, operands: Sequence[Operand | None]) -> relax.Var:
        """Emit a call that reads the operands and computes nothing."""
        read = [item.var for item in operands if isinstance(item, Traced)]
        call = relax.call_pure_packed("ibert.untranslatable", *read, ty_args=[_NOTHING])
        var = self._builder.emit(call)
        self._emitted.append(var.name)
        return var

    # -- for translations -------------------------------------------------------------------

    def emit(self, expr: relax.Expr, *operands: Operand | None) -> Traced:
        """Emit an expression.

        Parameters
        ----------
        expr
            The expression.
        *operands
            What it was made of: the result depends on inputs only if all of these do.

        Returns
        -------
        Traced
            Its value.
        """
        var = self._builder.emit(expr)
        shape = getattr(var.ty, "shape", None)
        sizes = [int(n) for n in shape.values] if isinstance(shape, relax.ShapeExpr) else []
        if math.prod(sizes) > folding.LARGEST_RESULT:
            raise Untranslatable(
                f"its result has {math.prod(sizes)} elements at the shape that it is imported with"
            )
        self._emitted.append(var.name)
        tokens = all(item.tokens for item in operands if isinstance(item, Traced))
        args = [arg for arg in getattr(expr, "args", ()) if isinstance(arg, relax.Var)]
        return Traced(var, tokens and not any(arg.name in self._made.parameters for arg in args))

    def expr(
        self, node: Node, value: Operand, part: str = "weight", *, weight: bool = True
    ) -> relax.Expr:
        """Return an operand as an expression.

        Parameters
        ----------
        node
            The reader.
        value
            The operand.
        part
            ``weight`` or ``bias``, for the name of a weight that has lost its own.
        weight
            False where an array of numbers is a constant and no weight, as in masks.

        Returns
        -------
        relax.Expr
            A variable, or a constant if it is no array of numbers.
        """
        if isinstance(value, Traced):
            return value.var
        array = value.array
        if not weight or array.dtype.kind != "f" or array.size <= 1:
            return constant(array)
        name = self.naming.weight(node.proto, value.name, part)
        key = (name, id(array))
        if key not in self._parameters:
            variable = f"weight{len(self._parameters)}"
            self._parameters[key] = relax.Var(
                variable, relax.TensorType(list(array.shape), str(array.dtype))
            )
            self._made.parameters[variable] = array
            self._made.names[variable] = name
            if value.name and value.name != name:
                self._made.weights[name] = value.name
        return self._parameters[key]

    def value(self, name: str) -> Operand | None:
        """Return a tensor by name; None if it is unknown or could not be translated."""
        value = self._values.get(name)
        return None if isinstance(value, Refused) else value

    def fold(self, name: str, what: str, node: Node) -> None:
        """Note in the report what was left out or computed at import."""
        self._made.foldings.append(Folding(name, what, (label(node.proto),)))


def _is_look_up(op: str, operands: Sequence[Operand | None]) -> bool:
    """Tell whether a node is left in the graph although all that it reads is known."""
    if op != "Gather" or any(isinstance(item, Traced) for item in operands):
        return True
    data, ids = operands[:2]
    return (
        isinstance(data, Known)
        and isinstance(ids, Known)
        and data.name != ""
        and data.array.dtype.kind == "f"
        and data.array.ndim == 2
        and ids.array.ndim > 0
    )


_NOTHING = relax.TensorType([1], "float32")
# Translated even if all operands are known: to keep names of weights, and the look-ups that tables
# of positions are for.
_OWN_CONSTANTS = frozenset(("Identity", "Slice", "Gather"))
# Operators that move weights without computing anything.
_MOVES = frozenset(
    ("Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Slice", "Gather", "Split", "Cast")
)
