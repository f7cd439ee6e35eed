"""Random integer programs, made of what the operators' records declare.

An operator takes part by being in the table of examples of attributes, which
`tests.integer.test_operator_records` keeps complete: operands, shapes and types are those that its
record declares. What the record or the analysis of ranges refuses is not a program, and is drawn
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from ibert_tvm.relay_passes.dialect.record import Operand
from ibert_tvm.relay_passes.dialect.types import SymbolicDim, TensorType
from ibert_tvm.relay_passes.errors import CompilerError
from ibert_tvm.relay_passes.integer import OPERATORS, Operator
from ibert_tvm.relay_passes.integer.operator import Serial
from ibert_tvm.relay_passes.integer.program import Program, Step
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges, longest_sequence
from tests.integer.test_operator_records import ATTRIBUTES

VOCABULARY, LONGEST = 40, 24
_KINDS_TRIED, _TRIES = 20, 6
_NEWEST = 0.7
_BATCH, _LENGTH = SymbolicDim("batch"), SymbolicDim("seq_len")
_CHANNELS = (1, 3, 4, 8, 12, 16, 17)
_INPUTS = {
    "input_ids": TensorType((_BATCH, _LENGTH), "int32"),
    "attention_mask": TensorType((_BATCH, _LENGTH), "int32"),
}
_NUMBERS = ("shift", "low", "high", "zero_point")


@dataclass
class Draft:
    """A program that grows."""

    parameters: dict[str, np.ndarray] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    @property
    def types(self) -> dict[str, TensorType]:
        """Of all values that a step may read."""
        made = {step.name: step.type for step in self.steps}
        return {**_INPUTS, **made}

    def program(self, outputs: tuple[str, ...]) -> Program:
        """What there is so far."""
        kinds = {n: TensorType(a.shape, str(a.dtype)) for n, a in self.parameters.items()}
        return Program(_INPUTS, kinds, tuple(self.steps), outputs)


def random_program(seed: int, chains: int = 1, length: int = 5) -> tuple[Program, dict[str, Any]]:
    """Make a program of several independent chains of operators.

    Parameters
    ----------
    seed : int
        Of all that is random.
    chains : int
        How many, each with an output of its own.
    length : int
        Most operators of a chain, besides the embedding that it begins with.

    Returns
    -------
    program, parameters
        Its intervals are proven.
    """
    draft, outputs = Draft(), []
    for chain in range(chains):
        random = np.random.default_rng([seed, chain])
        outputs += _add_chain(draft, random, f"p{chain}", int(random.integers(1, length + 1)))
    return pruned(draft.program(()), draft.parameters, tuple(outputs))


def _add_chain(draft: Draft, random: np.random.Generator, name: str, length: int) -> list[str]:
    """Add a chain; return the names of what nothing in it reads, which are its outputs."""
    known = set(_INPUTS)
    kinds = sorted(OPERATORS)
    for number in range(length + 1):
        value = f"{name}.v{number}"
        for _ in range(_KINDS_TRIED):
            kind = OPERATORS["integer.embedding" if number == 0 else str(random.choice(kinds))]
            if any(_drawn(draft, random, kind, value, known) for _ in range(_TRIES)):
                known.add(value)
                break
    own = [step for step in draft.steps if step.name.startswith(f"{name}.")]
    read = {operand for step in own for operand in step.operands.values()}
    return [step.name for step in own if step.name not in read and _can_be_given(step.type)]


def _can_be_given(type_: TensorType) -> bool:
    return type_.shape[0] == _BATCH and (
        (len(type_.shape) == 2 and type_.shape[1] != _LENGTH)
        or (len(type_.shape) == 3 and type_.shape[1] == _LENGTH)
    )


def pruned(
    program: Program, parameters: Mapping[str, np.ndarray], outputs: tuple[str, ...]
) -> tuple[Program, dict[str, np.ndarray]]:
    """Leave what some outputs need."""
    needed, kept = set(outputs), []
    for step in reversed(program.steps):
        if step.name in needed:
            needed |= set(step.operands.values())
            kept.append(step)
    arrays = {name: array for name, array in parameters.items() if name in needed}
    kinds = {name: program.parameters[name] for name in arrays}
    return Program(program.inputs, kinds, tuple(kept[::-1]), outputs), arrays


def _drawn(
    draft: Draft, random: np.random.Generator, kind: type[Operator], name: str, known: set[str]
) -> Step | None:
    """Add a step if operands can be found, and its intervals proven."""
    short = kind.OP.removeprefix("integer.")
    if short not in ATTRIBUTES or issubclass(kind, Serial):
        return None
    operator = _with_attributes(random, kind, ATTRIBUTES[short], name)
    if operator is None:
        return None
    dims: dict[str, Any] = {}
    operands: dict[str, str] = {}
    made: dict[str, np.ndarray] = {}
    for operand in operator.OPERANDS:
        # Where padding is left out, which tokens are where is for the compiler to say.
        places = operand.dtypes == ("int32",) and operand.shape in ("b s", "n")
        if places and not operand.optional:
            return None  # where padding is left out, the compiler says which tokens are where
        if operand.optional and (places or random.random() < 0.5):
            continue
        if operand.is_constant:
            place = f"{name}.{operand.name}"
            array = _constant(random, operand, operator.dtypes_of(operand), dims)
            made[place] = array
            operands[operand.name] = place
            continue
        choices = [
            value
            for value in sorted(known)
            if (value == "attention_mask") == operand.is_mask
            and _suits(draft.types[value], operand, operator.dtypes_of(operand), dims)
        ]
        if not choices:
            if operand.optional:
                continue
            return None
        newest = draft.steps[-1].name if draft.steps else ""
        is_drawn = newest in choices and random.random() < _NEWEST
        value = newest if is_drawn else str(random.choice(choices))
        operands[operand.name] = value
        _bind(draft.types[value], operand, dims)
    types = {n: draft.types[v] if v in known else _type(made[v]) for n, v in operands.items()}
    before = list(draft.steps), dict(draft.parameters)
    try:
        step = Step(operator, operands, operator.result_type(types))
        draft.steps.append(step)
        draft.parameters.update(made)
        program, arrays = pruned(draft.program(()), draft.parameters, (name,))
        if longest_sequence(program) < LONGEST:
            raise ValueError("a table ends before the longest sequence")
        analyse_ranges(program, arrays, max_seq_len=LONGEST)
        return step
    except (CompilerError, ValueError, IndexError):
        draft.steps, draft.parameters = before
        return None


def _type(array: np.ndarray) -> TensorType:
    return TensorType(array.shape, str(array.dtype))


def _with_attributes(
    random: np.random.Generator, kind: type[Operator], examples: list[dict[str, Any]], name: str
) -> Operator | None:
    """One of the examples, with other numbers where the attributes are plain ones."""
    operator = kind(name, **examples[int(random.integers(len(examples)))])
    changes: dict[str, Any] = {}
    for item in fields(operator):
        if item.name not in _NUMBERS or random.random() < 0.3:
            continue
        if item.name == "shift":
            changes["shift"] = int(random.integers(0, 24))
        elif item.name == "zero_point":
            changes["zero_point"] = int(random.integers(-128, 128))
    try:
        return replace(operator, **changes)
    except (CompilerError, ValueError):
        return None


def _forms(operand: Operand) -> list[list[str]]:
    return [form.split() for form in operand.shape.split(" or ")]


def _suits(type_: TensorType, operand: Operand, dtypes: Any, dims: Mapping[str, Any]) -> bool:
    return type_.dtype in dtypes and _bind(type_, operand, dict(dims))


def _bind(type_: TensorType, operand: Operand, dims: dict[str, Any]) -> bool:
    """Whether a value has the declared shape; what its dimensions are is added to `dims`."""
    for form in _forms(operand):
        extents: list[Any] = list(type_.shape)
        if form[0] == "...":
            count = len(extents) - len(form) + 1
            if count < 1:
                continue
            extents = [tuple(extents[:count]), *extents[count:]]
        if len(extents) != len(form):
            continue
        names = [token.rpartition("|")[2] for token in form]
        if all(
            extent == int(n) if n.isdigit() else dims.get(n, extent) == extent
            for n, extent in zip(names, extents, strict=True)
        ):
            dims.update((n, e) for n, e in zip(names, extents, strict=True) if not n.isdigit())
            return True
    return False


def _constant(
    random: np.random.Generator, operand: Operand, dtypes: Any, dims: dict[str, Any]
) -> np.ndarray:
    """Random integers of a declared shape: of all magnitudes, often at the ends of the type."""
    form = _forms(operand)[int(random.integers(len(_forms(operand))))]
    shape = []
    for token in form:
        one, _, dim = token.rpartition("|")
        if one and random.random() < 0.5:
            shape.append(int(one))
        elif dim.isdigit():
            shape.append(int(dim))
        else:
            drawn = VOCABULARY if dim == "V" else int(random.choice(_CHANNELS))
            extent = dims.setdefault(dim, drawn)
            shape.append(extent if isinstance(extent, int) else LONGEST)
    dtype = np.dtype(str(random.choice(list(dtypes))))
    ends = np.iinfo(dtype)
    bits = int(random.integers(1, ends.bits + 1))
    low, high = max(ends.min, -(1 << bits - 1)), min(ends.max, (1 << bits) - 1)
    kind = random.random()
    if kind < 0.3:
        low = max(low, 1)
    array = random.integers(low, high, shape, dtype=np.int64, endpoint=True)
    if kind > 0.85:
        array = np.where(random.random(shape) < 0.3, random.choice([low, high, 0]), array)
    return np.asarray(array).astype(dtype)
