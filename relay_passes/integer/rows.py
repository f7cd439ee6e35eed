"""Fewer rows in the tables of a program that an input's ids look up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..dialect.arrays import AnyArray
from ..errors import LoweringError
from .program import Program, Step


def fixed_ids(program: Program, ids: str) -> int:
    """How many ids of an input, from 0, have a meaning that a program depends on."""
    readers = [step for step in program.steps if ids in step.operands.values()]
    return max((step.operator.fixed_ids() for step in readers), default=0)


def tables_of(program: Program, ids: str) -> set[str]:
    """Parameters of which an input's ids number the rows.

    Raises
    ------
    LoweringError
        If one of them is read in another way too.
    """
    found = {name for step in program.steps for name in _tables(program, step, ids)}
    for step in program.steps:
        for name in sorted(found.intersection(step.operands.values())):
            if name in _tables(program, step, ids):
                continue
            raise LoweringError(
                f"the rows of {name} cannot be chosen",
                step.name,
                f"{step.operator.OP} reads them too, and not by {ids}",
                "keep all rows: leave the vocabulary as it is",
            )
    return found


def _tables(program: Program, step: Step, ids: str) -> Iterator[str]:
    for operand in step.operator.OPERANDS:
        if not operand.rows_of or step.operands[operand.rows_of] != ids:
            continue
        name = step.operands[operand.name]
        if program.parameters[name].shape[0] != 1:  # what is the same for all rows stays
            yield name


def keep_rows(
    program: Program, parameters: Mapping[str, AnyArray], ids: str, rows: NDArray[np.int64]
) -> tuple[Program, dict[str, AnyArray]]:
    """Keep some rows of the tables that an input looks up; id i then means row ``rows[i]``.

    Parameters
    ----------
    program, parameters
        What is changed.
    ids
        Name of the input.
    rows
        In ascending order, `fixed_ids` of them the first.

    Raises
    ------
    LoweringError
        See `tables_of`.
    """
    tables = tables_of(program, ids)
    types = {
        name: replace(type_, shape=(len(rows), *type_.shape[1:])) if name in tables else type_
        for name, type_ in program.parameters.items()
    }
    arrays = {name: a[rows] if name in tables else a for name, a in parameters.items()}
    return replace(program, parameters=types), arrays
