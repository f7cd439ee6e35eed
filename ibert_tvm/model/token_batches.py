"""Tokens of texts as models take them: padded batches, and windows of what is long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.types import Ints

Row = tuple[Sequence[int], Sequence[int]]
"""Ids and types of a text's tokens."""


@dataclass(frozen=True)
class TokenizedBatch:
    """Token ids of some texts, padded to one length.

    Attributes
    ----------
    input_ids, attention_mask, token_type_ids
        int32 [texts, length]. The mask is 1 for tokens and 0 for padding.
    truncated
        Indices of the texts that were longer than allowed.
    """

    input_ids: Ints
    attention_mask: Ints
    token_type_ids: Ints
    truncated: tuple[int, ...]

    def inputs(self, names: Sequence[str]) -> dict[str, Ints]:
        """Return the arrays that a model with the inputs `names` takes."""
        return {name: getattr(self, name) for name in names}

    def batches(
        self, size: int, step: int, longest: int, pad_id: int
    ) -> Iterator[tuple[list[int], TokenizedBatch]]:
        """Texts of like lengths together, in few different shapes: each costs a compilation.

        Parameters
        ----------
        size
            Rows of every batch; those that are missing in a last one are padding alone.
        step
            Lengths are multiples of it.
        longest
            But no length exceeds it.
        pad_id
            Token of padding.

        Yields
        ------
        rows : list of int
            Which texts.
        batch : TokenizedBatch
            Their tokens, [size, length].
        """
        lengths = self.attention_mask.sum(axis=1)
        groups: dict[int, list[int]] = {}
        for row in np.argsort(lengths, kind="stable").tolist():
            groups.setdefault(min(-(-int(lengths[row]) // step) * step, longest), []).append(row)

        def part(array: Ints, rows: list[int], length: int, fill: int) -> Any:
            whole = np.full((size, length), fill, np.int32)
            cut = array[rows, :length]
            whole[: len(rows), : cut.shape[1]] = cut
            return whole

        for length, members in groups.items():
            for start in range(0, len(members), size):
                rows = members[start : start + size]
                yield (
                    rows,
                    TokenizedBatch(
                        part(self.input_ids, rows, length, pad_id),
                        part(self.attention_mask, rows, length, 0),
                        part(self.token_type_ids, rows, length, 0),
                        (),
                    ),
                )


@dataclass(frozen=True)
class Window:
    """Tokens of a text, or of a part of it, and where they come from.

    Attributes
    ----------
    ids, type_ids
        Of every token.
    offsets
        First character of every token and the one behind its last, in the text it comes from.
    texts
        0 or 1: the text of a pair that a token comes from; None for special tokens.
    words
        The word of its text that a token belongs to; None for special tokens.
    """

    ids: tuple[int, ...]
    type_ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    texts: tuple[int | None, ...]
    words: tuple[int | None, ...]
