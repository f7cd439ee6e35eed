"""Read an integer Relax function as a plain list of operator calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import IRModule, relax

from ..errors import LoweringError
from .ops import attributes, operator_name


@dataclass(frozen=True)
class Step:
    """One operator call.

    Parameters
    ----------
    op : str
        "integer.linear" and so on.
    attrs : OpAttrs
        Its attributes as a dataclass.
    result : relax.Var
        The variable it defines; its type has shape and dtype.
    operands : tuple of relax.Var
        Aliases are resolved: each is a parameter or the `result` of an earlier step.
    """

    op: str
    attrs: Any
    result: relax.Var
    operands: tuple[relax.Var, ...]

    @property
    def name(self) -> str:
        """Canonical name of the value."""
        return str(self.attrs.name)


@dataclass(frozen=True)
class Program:
    """A function of the integer dialect.

    Parameters
    ----------
    inputs : tuple of relax.Var
        Leading parameters that are not weights (ids, mask).
    parameters : tuple of relax.Var
        Integer constants of the model.
    steps : tuple of Step
        In order of execution.
    outputs : tuple of relax.Var
        One variable per output.
    """

    inputs: tuple[relax.Var, ...]
    parameters: tuple[relax.Var, ...]
    steps: tuple[Step, ...]
    outputs: tuple[relax.Var, ...]


def read_program(module: IRModule, function: str = "main") -> Program:
    """Read one function of a module.

    Parameters
    ----------
    module : IRModule
        A module of the integer dialect.
    function : str
        Name of the function.

    Returns
    -------
    Program

    Raises
    ------
    LoweringError
        If there is no such function, or it holds anything but calls of integer operators, aliases
        and tuples.
    """
    names = [variable.name_hint for variable in module.functions]
    if function not in names:
        raise LoweringError(
            f"no function {function!r} in the module",
            why=f"it has: {', '.join(names)}",
            todo="name one of them",
        )
    body = module[function].body
    aliases: dict[relax.Var, relax.Expr] = {}
    tuples: dict[relax.Var, tuple[relax.Expr, ...]] = {}
    steps: list[Step] = []

    def resolve(expr: relax.Expr) -> relax.Expr:
        while isinstance(expr, relax.Var) and expr in aliases:
            expr = aliases[expr]
        if isinstance(expr, relax.TupleGetItem):
            return resolve(members(expr.tuple_value)[int(expr.index)])
        return expr

    def members(expr: relax.Expr) -> tuple[relax.Expr, ...]:
        expr = aliases.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            return tuple(member for field in expr.fields for member in members(field))
        return tuples.get(expr, (resolve(expr),))

    def variable(expr: relax.Expr, user: Any) -> relax.Var:
        expr = resolve(expr)
        if not isinstance(expr, relax.Var):
            raise LoweringError(
                f"an operand is a {type(expr).__name__}",
                f"{user.op.name} {user.attrs['name']!r}",
                "integer programs keep their constants as parameters of the function, and bind "
                "every intermediate value to a variable",
                "emit the operand with a block builder, or make it a parameter",
            )
        return expr

    blocks = body.blocks if isinstance(body, relax.SeqExpr) else []
    for block in blocks:
        for binding in block.bindings:
            value: Any = getattr(binding, "value", None)
            op = operator_name(value)
            if op:
                operands = tuple(variable(argument, value) for argument in value.args)
                steps.append(Step(op, attributes(value), binding.var, operands))
            elif isinstance(value, (relax.Var, relax.TupleGetItem)):
                if value in tuples:
                    tuples[binding.var] = tuples[value]
                else:
                    aliases[binding.var] = value
            elif isinstance(value, relax.Tuple):
                tuples[binding.var] = members(value)
            else:
                raise LoweringError(
                    f"{type(value).__name__} is not a call of an integer operator",
                    f"{function}, binding {binding.var.name!r}",
                    f"the integer dialect has calls of its operators and tuples only: {value}",
                    "lower this operator to the integer dialect",
                )
    parameters = tuple(module[function].params)
    attrs = module[function].attrs
    count = int(attrs["num_input"]) if attrs is not None and "num_input" in attrs else 0
    end = body.body if isinstance(body, relax.SeqExpr) else body
    return Program(parameters[:count], parameters[count:], tuple(steps), members(end))
