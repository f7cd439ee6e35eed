"""The table of words in 4 bits: half of what a sentence encoder's integers take.

A table that the ids look up is rewritten, from its 8 bits, in half bytes by groups with a small
scale each (`ibert_tvm.relay_passes.spec.nibbles`). Nothing else of the program changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.relay_passes.spec import nibbles
from ibert_tvm.relay_passes.spec.nibbles import NibbleRows

from ..common.errors import UsageError, VerificationError
from ..common.types import Array, Doubles, Longs
from ..model.artefact import QuantizedModel, rebuilt

if TYPE_CHECKING:
    from ibert_tvm.relay_passes.integer.program import Step

    from .narrow_weights import Mix

WORD_BITS = (8, 4)
WORDS = "input_ids"
"""The ids that look words up."""
_ROWS_AT_ONCE = 4096
# Steps of a group beside the one at which its largest entry is not clipped, in steps of its row.
_STEPS = (0, -1, -2, -3)


def with_word_bits(model: QuantizedModel, bits: int) -> QuantizedModel:
    """Return the model with its table of words in so many bits.

    Parameters
    ----------
    model
        Of 8 bits; it is left as it is.
    bits
        8 or 4.

    Raises
    ------
    UsageError
        If the model has no table of words of 8 bits, or another number of bits is asked for.
    """
    if bits not in WORD_BITS:
        raise UsageError(
            f"a table of words in {bits} bits",
            why=f"there are forms of {' and '.join(map(str, WORD_BITS))} bits",
            todo="choose one of them",
        )
    if bits == 8:
        return model
    arrays: dict[str, Array] = dict(model.parameters)
    steps = narrow_words(model.program.steps, arrays)
    if steps == model.program.steps:
        raise UsageError(
            "the model has no table of words of 8 bits",
            why="no ids look one up",
            todo="leave --word-table-bits out",
        )
    return rebuilt(model, steps, arrays, {"word_table_bits": bits})


def narrow_words(steps: Sequence[Step], arrays: dict[str, Array]) -> tuple[Step, ...]:
    """Return the steps of a program with its table of words in 4 bits, if it has one of 8.

    Parameters
    ----------
    steps
        Of the program.
    arrays
        Its parameters, to which those of the table are added.
    """
    from ibert_tvm.relay_passes.integer.operators.tokens import Embedding, NibbleEmbedding
    from ibert_tvm.relay_passes.integer.program import Step
    from ibert_tvm.relay_passes.lower.forms import multipliers

    def narrow(step: Step) -> Step:
        operator = step.operator
        if not isinstance(operator, Embedding) or step.operands["ids"] != WORDS:
            return step
        table = arrays[step.operands["table"]]
        if table.dtype != np.int8:
            return step
        factors = np.ldexp(arrays[step.operands["multiplier"]], -operator.shift)
        packed, unit = packed_rows(table, np.broadcast_to(factors, len(table)))
        dyadic = multipliers(np.array([unit]), nibbles.LARGEST)
        made = {
            f"{step.name}.{what}": array
            for what, array in (
                ("table", packed.table),
                ("scales", packed.scales),
                ("rows", packed.rows),
                ("multiplier", dyadic.multipliers),
            )
        }
        arrays.update(made)
        return Step(
            NibbleEmbedding(operator.name, dyadic.shift, table.shape[1]),
            {"ids": WORDS, **{name.rpartition(".")[2]: name for name in made}},
            step.type,
        )

    return tuple(map(narrow, steps))


def within_bytes(
    model: QuantizedModel, most: int, mix: Callable[[QuantizedModel], Mix] | None = None
) -> QuantizedModel:
    """Return the form of a model that loses least of those that fit.

    Parameters
    ----------
    model
        Of 8 bits.
    most
        Bytes that its integers may take.
    mix
        Makes its mix, where matrices may have 4 bits, too; those are more dear than words.

    Raises
    ------
    VerificationError
        If none fits; says what the least takes.
    """
    if model.num_bytes <= most:
        return model
    least = f"they take {model.num_bytes}"
    with suppress(UsageError):  # a model of images has no words
        model = with_word_bits(model, min(WORD_BITS))
        if model.num_bytes <= most:
            return model
        least += f", and {model.num_bytes} with a table of words in {min(WORD_BITS)} bits"
    if mix is not None:
        mixed = mix(model)
        found = mixed.within_bytes(most)
        if found is not None:
            return found
        least += f", and {mixed.narrow.num_bytes} with all matrices in 4 bits"
    raise VerificationError(
        f"no form of the model's integers fits {most} bytes",
        where="--max-bytes",
        why=least,
        todo="give --weights mixed, keep fewer words (--vocabulary), or allow more bytes",
    )


def packed_rows(table: NDArray[np.int8], factors: Doubles) -> tuple[NibbleRows, float]:
    """Round rows to half bytes.

    Parameters
    ----------
    table
        [V, C].
    factors
        What an entry of each row stands for, [V].

    Returns
    -------
    packed : NibbleRows
    unit
        What an entry of it stands for.
    """
    parts = [
        np.abs(table[at : at + _ROWS_AT_ONCE].astype(np.int16)).max(axis=1)
        for at in range(0, len(table), _ROWS_AT_ONCE)
    ]
    # The step of a row's coarsest group: its largest entry is then the largest half byte.
    steps = np.concatenate(parts) * factors / (nibbles.MOST * nibbles.LARGEST_SCALE)
    unit = float(steps.max(initial=0.0)) / nibbles.LARGEST_ROW or 1.0
    rows = np.clip(np.rint(steps / unit), 1, nibbles.LARGEST_ROW).astype(np.int64)
    packed = []
    for at in range(0, len(table), _ROWS_AT_ONCE):
        part = slice(at, at + _ROWS_AT_ONCE)
        real = table[part].astype(np.float64) * (factors[part] / (unit * rows[part]))[:, None]
        entries, scales = _rounded(_by_group(real))
        packed.append(NibbleRows.pack(entries, scales, rows[part]))
    names = ("table", "scales", "rows")
    whole = {name: np.concatenate([getattr(one, name) for one in packed]) for name in names}
    return NibbleRows(**whole), unit


def _by_group(real: Doubles) -> Doubles:
    missing = -real.shape[1] % nibbles.GROUP
    return np.pad(real, ((0, 0), (0, missing))).reshape(len(real), -1, nibbles.GROUP)


def _rounded(groups: Doubles) -> tuple[NDArray[np.int8], Longs]:
    """Half bytes [V, groups, 32] and scales [V, groups] of the least squared error."""
    first = np.ceil(np.abs(groups).max(axis=2) / nibbles.MOST - 1e-3)
    best = np.zeros(first.shape, np.int64)
    entries = np.zeros(groups.shape, np.int8)
    least = np.full(first.shape, np.inf)
    for step in _STEPS:
        scale = np.clip(first + step, 1, nibbles.LARGEST_SCALE)[..., None]
        found = np.clip(np.rint(groups / scale), nibbles.LEAST, nibbles.MOST)
        error = ((found * scale - groups) ** 2).sum(axis=2)
        better = error < least
        least = np.where(better, error, least)
        best = np.where(better, scale[..., 0], best).astype(np.int64)
        entries = np.where(better[..., None], found, entries).astype(np.int8)
    return entries, best
