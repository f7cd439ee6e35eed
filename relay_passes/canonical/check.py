"""The rules of canonical form, checked over a whole module.

Frontends call `check_canonical` on what they made, lowering calls it on what it is given.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax, tirx
from tvm.ir import Op

from ..dialect.calls import bindings, infer_type, operands_of, record_of, register
from . import operators  # noqa: F401  (defines the records)
from .errors import CanonicalError
from .operator import FLOAT, INDEX, OPERATORS

for _record in OPERATORS.values():
    register(_record)


def value_name(call: relax.Call) -> str:
    """Return the canonical name of the value that a call of a canonical operator produces."""
    return str(call.attrs["name"])


def matrix_of(call: relax.Call) -> tuple[str, str]:
    """Return the matrix of a call that is stored in integers: its section of the table, its name.

    Parameters
    ----------
    call : tvm.relax.Call
        Of a canonical operator.

    Returns
    -------
    section, parameter : str
        "weights" or "embeddings", and the parameter's name; both "" where the operator has none.
    """
    sections = {operand.name: operand.section for operand in OPERATORS[call.op.name].OPERANDS}
    for name, value in operands_of(call).items():
        if sections[name]:
            return sections[name], str(value.name)
    return "", ""


def is_canonical(expr: relax.Expr) -> bool:
    """Tell whether `expr` is a call of a canonical operator."""
    return isinstance(expr, relax.Call) and isinstance(expr.op, Op) and expr.op.name in OPERATORS


def main_function(module: tvm.IRModule) -> relax.Function:
    """Return the function ``main`` of `module`.

    Parameters
    ----------
    module
        A canonical module.

    Returns
    -------
    relax.Function
        The function.

    Raises
    ------
    CanonicalError
        If there is none.
    """
    for variable, function in module.functions.items():
        if variable.name_hint == "main" and isinstance(function, relax.Function):
            return function
    raise CanonicalError(
        "the module has no Relax function 'main'",
        where="the module",
        why="a canonical module has exactly one function, main",
        todo="build it with relax.BlockBuilder().function('main', ...)",
    )


def canonical_calls(module: tvm.IRModule) -> Iterator[tuple[relax.Var, relax.Call]]:
    """Yield (variable, call) for every canonical operator of `module`, in order.

    Parameters
    ----------
    module
        A canonical module.

    Yields
    ------
    tuple of (relax.Var, relax.Call)
        The bound variable and its call.
    """
    for binding in bindings(main_function(module)):
        if is_canonical(binding.value):
            yield binding.var, binding.value


def output_fields(function: relax.Function) -> list[relax.Expr]:
    """Expressions that `function` returns, with aliases and tuples of the last block resolved."""
    aliases = _aliases(function)
    body = function.body.body
    body = aliases.get(body, body)
    fields = list(body.fields) if isinstance(body, relax.Tuple) else [body]
    return [_follow(item, aliases) for item in fields]


def _aliases(function: relax.Function) -> dict[relax.Var, relax.Expr]:
    return {
        binding.var: binding.value
        for binding in bindings(function)
        if isinstance(binding.value, (relax.Var, relax.Tuple))
    }


def _follow(item: relax.Expr, aliases: dict[relax.Var, relax.Expr]) -> relax.Expr:
    while item in aliases:
        item = aliases[item]
    return item


def num_inputs(function: relax.Function) -> int:
    """Return the number of leading parameters of `function` that are inputs, not weights.

    Parameters
    ----------
    function
        ``main`` of a canonical module.

    Returns
    -------
    int
        Function attribute ``num_input``.

    Raises
    ------
    CanonicalError
        If it is missing or out of range.
    """
    attrs = function.attrs
    if attrs is None or "num_input" not in attrs.keys():  # noqa: SIM118 (DictAttrs is no dict)
        raise CanonicalError(
            "main has no attribute num_input",
            where="function main",
            why="it tells inputs from weights, which are both parameters",
            todo="set it with function.with_attr('num_input', n)",
        )
    count = int(attrs["num_input"])
    if not 1 <= count <= len(function.params):
        raise CanonicalError(
            f"num_input is {count}",
            where="function main",
            why=f"main has {len(function.params)} parameters and at least one input",
            todo="count the leading parameters that are not weights",
        )
    return count


def check_canonical(module: tvm.IRModule) -> None:
    """Check that `module` is in canonical form.

    Parameters
    ----------
    module
        The module.

    Raises
    ------
    CanonicalError
        At the first broken rule, with the value concerned.
    """
    function = main_function(module)
    if len(module.functions) != 1:
        names = ", ".join(sorted(v.name_hint for v in module.functions))
        raise CanonicalError(
            f"the module has {len(module.functions)} functions: {names}",
            where="the module",
            why="a canonical module has exactly one function, main",
            todo="inline or remove the others",
        )
    inputs = num_inputs(function)
    _check_parameters(function, inputs)
    defined = set(function.params)
    mask_candidates = set(function.params[:inputs])
    seen: set[str] = set()
    for binding in bindings(function):
        _check_binding(binding, defined, mask_candidates, seen)
        defined.add(binding.var)
    _check_outputs(function)
    try:
        relax.analysis.well_formed(module)
    except Exception as error:  # TVM raises several classes here
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CanonicalError(
            f"Relax finds the module malformed: {reason[-1]}",
            where="the module",
            why="variables must be defined once, before use, with matching types",
            todo="build it with relax.BlockBuilder",
        ) from error


_INPUTS = ((INDEX[0], 2), (FLOAT[0], 3), (FLOAT[0], 4))
"""Storage type and number of dimensions that an input may have."""


def _check_parameters(function: relax.Function, inputs: int) -> None:
    names: set[str] = set()
    for index, variable in enumerate(function.params):
        name = variable.name
        kind = variable.ty
        where = f"parameter {name!r}"
        if name in names:
            raise CanonicalError(
                f"two parameters are named {name}",
                where=where,
                why="parameters are bound by name",
                todo="rename one",
            )
        names.add(name)
        if not isinstance(kind, relax.TensorType) or kind.shape is None:
            raise CanonicalError(
                f"its type is {kind}",
                where=where,
                why="inputs and weights are tensors of known shape",
                todo="give it a TensorType with dimensions",
            )
        shape = list(kind.shape.values)
        if index < inputs:
            if (str(kind.dtype), len(shape)) not in _INPUTS:
                raise CanonicalError(
                    f"input {name} is {kind.dtype} with {len(shape)} dimensions",
                    where=where,
                    why=f"inputs are {INDEX[0]} [batch, seq_len] or {FLOAT[0]} [batch, channels, "
                    "height, width] or [batch, channels, frames]",
                    todo="cast or reshape in the frontend",
                )
        elif str(kind.dtype) != FLOAT[0] or not all(isinstance(d, tirx.IntImm) for d in shape):
            raise CanonicalError(
                f"weight {name} is {kind}",
                where=where,
                why=f"weights are {FLOAT[0]} with a static shape",
                todo="cast it, and bind its shape",
            )


def _check_binding(
    binding: relax.Binding, defined: set[relax.Var], inputs: set[relax.Var], seen: set[str]
) -> None:
    value = binding.value
    if isinstance(value, (relax.Var, relax.Tuple)):
        return  # the output of the dataflow block
    if not is_canonical(value):
        label = f"{value.op.name}" if isinstance(value, relax.Call) else type(value).__name__
        raise CanonicalError(
            f"{label} is not a canonical operator",
            where=f"variable {binding.var.name!r}",
            why=f"the canonical form has only: {', '.join(OPERATORS)}",
            todo="canonicalise the module first (ibert_tvm.frontend)",
        )
    operator = record_of(value)
    if not operator.name or operator.name in seen:
        raise CanonicalError(
            "the name is empty" if not operator.name else f"two values are named {operator.name}",
            where=operator.where,
            why="scales, reports and errors are keyed by it",
            todo="give every value its own name",
        )
    seen.add(operator.name)
    known = {operand.name: operand for operand in type(operator).OPERANDS}
    for label, argument in operands_of(value).items():
        if not isinstance(argument, relax.Var) or argument not in defined:
            raise CanonicalError(
                f"operand {label} is a {type(argument).__name__}, not a defined variable",
                where=operator.where,
                why="operands are results of canonical operators or parameters, never constants",
                todo="emit it, or make it a parameter",
            )
        if known[label].is_input and argument not in inputs:
            raise CanonicalError(
                f"operand {label} is {argument.name}, which is not an input of the model",
                where=operator.where,
                why="the padding mask (0 is padding) and pixels are inputs themselves: nothing "
                "computes them in integers",
                todo="pass the input itself",
            )
    infer_type(value)


def _check_outputs(function: relax.Function) -> None:
    kinds = function.body.body.ty
    fields = list(kinds.fields) if isinstance(kinds, relax.TupleType) else [kinds]
    for index, kind in enumerate(fields):
        if not isinstance(kind, relax.TensorType) or str(kind.dtype) != FLOAT[0]:
            raise CanonicalError(
                f"output {index} is {kind}",
                where="function main",
                why=f"outputs are {FLOAT[0]} tensors",
                todo="return a value of a canonical operator other than position_ids",
            )
