"""Many texts through a library: in batches of like length, tokenised while others are computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ..common.types import Longs
from ..model.tokenization import TokenizedBatch, Tokenizer
from ..runtime import IntegerOutput, Library

Text = str | tuple[str, str]
_AHEAD = 2
"""Batches of tokens that wait for the library: enough that it never waits, few in memory."""


@dataclass(frozen=True)
class Part:
    """What one batch gave.

    Attributes
    ----------
    rows
        Places of its texts among all texts, int64 [batch].
    tokens
        Its texts as tokens [batch, length].
    outputs
        Integers by output.
    """

    rows: Longs
    tokens: TokenizedBatch
    outputs: dict[str, IntegerOutput]


def run_batches(
    library: Library, tokenizer: Tokenizer, texts: Sequence[Text], batch_size: int, max_length: int
) -> Iterator[Part]:
    """Run a library on texts, the longest first.

    A batch holds texts of nearly one length, so there is little padding where a library computes
    it. The `tokenizers` library lets go of Python's lock, so a thread makes the tokens of the next
    batches while this one is computed.

    Parameters
    ----------
    library
        What runs them.
    tokenizer
        Its tokenizer.
    texts
        Any number.
    batch_size
        Texts of a batch.
    max_length
        Tokens that a text is cut off at.

    Yields
    ------
    Part
        Every text in one of them.

    Raises
    ------
    InputError
        If a text is no text.
    """
    lengths = [len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts]
    order = np.argsort(-np.array(lengths, dtype=np.int64), kind="stable")
    names = [record.name for record in library.metadata.inputs]

    def tokens(rows: Longs) -> TokenizedBatch:
        return tokenizer.encode([texts[row] for row in rows], max_length, allow_empty=True)

    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    if len(batches) == 1:  # nothing to do meanwhile, and a thread to start costs more than one text
        batch = tokens(order)
        yield Part(order, batch, library.run(**batch.inputs(names), dequantize=False))
        return
    with ThreadPoolExecutor(1, thread_name_prefix="ibert-tokens") as pool:
        waiting: list[Future[TokenizedBatch]] = []
        try:
            for place, rows in enumerate(batches):
                while len(waiting) <= min(_AHEAD, len(batches) - 1 - place):
                    waiting.append(pool.submit(tokens, batches[place + len(waiting)]))
                batch = waiting.pop(0).result()
                yield Part(rows, batch, library.run(**batch.inputs(names), dequantize=False))
        finally:
            for future in waiting:
                future.cancel()
