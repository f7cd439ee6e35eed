"""Evaluate an integer program with NumPy: the reference that compiled code equals bit for bit.

Every operator's body runs on arrays (`ibert_tvm.relay_passes.integer.arrays`), for any batch and
sequence length.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import CompilerError, LoweringError, RangeError
from .arrays import Array, ArrayDomain, ArrayTensor, Numbers, NumpyNumbers
from .operator import Operator, Serial
from .program import Program, Step
from .types import TensorType, dtype_bounds, is_per_token, rows_of, static

Arrays = Mapping[str, np.ndarray]


def _store(value: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """Store a result in its declared type, refusing one that does not fit."""
    low, high = dtype_bounds(dtype)
    if value.size and (value.min() < low or value.max() > high):
        raise RangeError(
            f"a value in [{value.min()}, {value.max()}] cannot be stored as {dtype}",
            name,
            f"{dtype} holds [{low}, {high}]",
            "use a coarser scale for this value",
        )
    return value.astype(dtype)


def check_array(name: str, type_: TensorType, array: np.ndarray) -> np.ndarray:
    """Check an array against the type of the parameter it is bound to, and convert it.

    Parameters
    ----------
    name
        Of a parameter of an integer function.
    type_
        Its type; symbolic dimensions take any extent.
    array
        Integers of any width.

    Returns
    -------
    numpy.ndarray
        With the dtype of the parameter.

    Raises
    ------
    LoweringError
        If the rank, a static dimension or the kind of number differs.
    RangeError
        If a value does not fit the parameter's dtype.
    """
    array = np.asarray(array)
    shape = [dim if isinstance(dim, int) else None for dim in type_.shape]
    fits = len(shape) == array.ndim and all(
        dim is None or dim == actual for dim, actual in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype.kind not in "iub":
        wanted = ", ".join("any" if dim is None else str(dim) for dim in shape)
        raise LoweringError(
            f"array of {array.dtype} {list(array.shape)} for parameter {name!r}",
            "evaluation of the integer module",
            f"the parameter is {type_.dtype} [{wanted}]",
            "pass the integers that were saved with this module",
        )
    return _store(array, type_.dtype, name)


def lookup(types: Mapping[str, TensorType], arrays: Arrays) -> dict[str, np.ndarray]:
    """Find the arrays of parameters.

    Parameters
    ----------
    types
        Of the parameters.
    arrays
        May hold more than is needed.

    Raises
    ------
    LoweringError
        If an array is missing, or differs from the parameter's type.
    """
    missing = [name for name in types if name not in arrays]
    if missing:
        raise LoweringError(
            f"no array for {', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''}",
            "parameters of the integer module",
            f"{len(missing)} of {len(types)} parameters are missing",
            "pass the arrays that were saved with this module",
        )
    return {name: check_array(name, type_, arrays[name]) for name, type_ in types.items()}


def run_operator(
    operator: Operator,
    operands: Arrays,
    kind: type = np.int64,
    stages: dict[str, np.ndarray] | None = None,
) -> np.ndarray:
    """Evaluate one operator.

    Parameters
    ----------
    operator
        What is computed.
    operands
        By name, in their storage types; hidden values are [batch, seq_len, channels].
    kind
        ``numpy.int64``, or ``object`` for integers without bounds.
    stages
        Receives the intermediates by name, or of what meets the tokens of a sequence the least and
        the largest entry of each.

    Returns
    -------
    numpy.ndarray
        Of `kind`, in the shape that the operator's type rule gives.
    """
    if isinstance(operator, Serial):
        return operator.evaluate(**operands)
    if operator.TRAITS.by_sequence:
        return _by_sequence(operator, operands, kind, stages)
    dtypes = {name: str(array.dtype) for name, array in operands.items()}
    made: dict[str, ArrayTensor] = {}
    kept = None if stages is None else made
    result = run_whole(operator, operands, dtypes, NumpyNumbers(kind), kept)
    if stages is not None:
        stages.update((name, tensor.array) for name, tensor in made.items())
    return result


def run_whole(
    operator: Operator,
    operands: Mapping[str, Array],
    dtypes: Mapping[str, str],
    numbers: Numbers,
    stages: dict[str, ArrayTensor] | None = None,
) -> Array:
    """Run the body of an operator on all sequences at once.

    Parameters
    ----------
    operator
        What is computed; not `Serial`.
    operands
        By name; hidden values are [batch, seq_len, channels].
    dtypes
        Their storage types.
    numbers
        What their arrays are made of.
    stages
        Receives the intermediates.

    Returns
    -------
    Array
        In the shape that the operator's type rule gives.
    """
    domain = ArrayDomain(next(iter(operands.values())).shape[0], operator.name, numbers, stages)
    types = {name: TensorType(tuple(a.shape), dtypes[name]) for name, a in operands.items()}
    split = operator.rows_per_token(types)
    tensors = {}
    for operand in operator.OPERANDS:
        if operand.name not in operands:
            continue
        shape = tuple(operands[operand.name].shape)
        array = numbers.array(operands[operand.name], shape)
        by_row = is_per_token(shape) or (split > 1 and not operand.is_constant)
        if by_row and not operand.by_pair:
            array = array.reshape(rows_of(shape, split))
        tensors[operand.name] = ArrayTensor(array, dtypes[operand.name], numbers)
    result = operator.body(domain, **tensors)
    assert isinstance(result, ArrayTensor)
    return result.array.reshape(static(operator.result_type(types).shape))


def _by_sequence(
    operator: Operator, operands: Arrays, kind: type, stages: dict[str, np.ndarray] | None
) -> np.ndarray:
    """Evaluate one sequence at a time, which bounds the memory of what has a row per token."""
    numbers, operands = NumpyNumbers(kind), dict(operands)
    batch, length, channels = next(iter(operands.values())).shape
    starts = operands.pop("starts", np.arange(batch + 1) * length)
    known = {operand.name: operand for operand in operator.OPERANDS}
    result = np.zeros((batch * length, channels), kind)
    for item in range(batch):
        rows = slice(int(starts[item]), int(starts[item + 1]))
        if rows.start == rows.stop:
            continue
        tensors = {}
        for name, array in operands.items():
            if known[name].by_token:
                array = array.reshape(1, -1)[:, rows]
            elif known[name].by_pair:
                array = array[item : item + 1]  # never packed
            elif known[name].shape.startswith("b s "):
                array = array.reshape(-1, array.shape[-1])[rows]
            whole = numbers.array(array, array.shape)
            tensors[name] = ArrayTensor(whole, str(array.dtype), numbers)
        made: dict[str, ArrayTensor] = {}
        domain = ArrayDomain(1, operator.name, numbers, None if stages is None else made)
        merged = operator.body(domain, **tensors)
        assert isinstance(merged, ArrayTensor)
        result[rows] = merged.array
        if stages is not None:
            for name, tensor in made.items():
                seen = [*([stages[name]] if name in stages else []), tensor.array.reshape(-1)]
                stages[name] = np.array([min(a.min() for a in seen), max(a.max() for a in seen)])
    return result.reshape(batch, length, channels)


def evaluate(
    module: object, inputs: Arrays, parameters: Arrays, function: str = "main"
) -> list[np.ndarray]:
    """Run an integer function with NumPy.

    Parameters
    ----------
    module, inputs, parameters, function
        See `evaluate_all`.

    Returns
    -------
    list of numpy.ndarray
        One array per output, in the declared dtype.
    """
    outputs, _values = evaluate_all(module, inputs, parameters, function)
    return outputs


def evaluate_all(
    module: object, inputs: Arrays, parameters: Arrays, function: str = "main"
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Run an integer function with NumPy, and keep every value.

    Parameters
    ----------
    module : Program or IRModule
        A program, or a module of the integer dialect, with symbolic or static batch and sequence
        length.
    inputs
        The leading, non-weight parameters by name (input_ids, attention_mask ...).
    parameters
        The integer constants by name.
    function
        Name of the function.

    Returns
    -------
    outputs : list of numpy.ndarray
        One array per output, in the declared dtype.
    values : dict of str to numpy.ndarray
        Canonical name to value, in the declared dtype.

    Raises
    ------
    LoweringError
        If the function is not of the integer dialect, or an array is missing or of another type.
    RangeError
        If a value does not fit the dtype it is stored in.
    """
    program = as_program(module, function)
    values = lookup({**program.inputs, **program.parameters}, {**parameters, **inputs})
    for step in program.steps:
        values[step.name] = run_step(step, values)
    made = {step.name: values[step.name] for step in program.steps}
    return [values[name] for name in program.outputs], made


def run_step(step: Step, values: Arrays) -> np.ndarray:
    """Evaluate one step of a program, in its declared dtype; errors as of `evaluate_all`."""
    operands = {name: values[value] for name, value in step.operands.items()}
    try:
        result = run_operator(step.operator, operands)
    except CompilerError as error:
        raise error.at(step.operator.where) from None
    return _store(result, step.type.dtype, step.name)


def as_program(module: object, function: str = "main") -> Program:
    """Return a program as it is, and read that of a Relax function."""
    if isinstance(module, Program):
        return module
    from .relax_ops import read_program

    return read_program(module, function)
