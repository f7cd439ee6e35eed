"""A model with fewer words: the pieces that a corpus or a language needs, and their rows.

Tokenizer and program are cut together. A text whose pieces are all kept has the same integers as
before; another falls into smaller pieces, as the tokenizer's own model decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from ..common.errors import UsageError
from ..model.artefact import QuantizedModel
from ..model.tokenization import Tokenizer
from ..model.tokenizer_behaviour import behaviour
from ..model.tokenizer_pieces import Pieces
from .batches import Text, parts_of

_IDS = "input_ids"


@dataclass(frozen=True)
class VocabularyCut:
    """What became of a vocabulary.

    Attributes
    ----------
    pieces, pieces_before
        Tokens of the tokenizer.
    weight_bytes, weight_bytes_before
        Of the integers.
    tokenizer_bytes, tokenizer_bytes_before
        Of the tokenizer's files.
    heldout_texts
        Texts that were looked at.
    changed_texts
        Those of them that have other pieces than before.
    unknown_texts
        Those that have more unknown words than before.
    """

    pieces: int
    pieces_before: int
    weight_bytes: int
    weight_bytes_before: int
    tokenizer_bytes: int
    tokenizer_bytes_before: int
    heldout_texts: int
    changed_texts: int
    unknown_texts: int


def cut_vocabulary(
    model: QuantizedModel,
    texts: Sequence[Text],
    count: int | None = None,
    heldout: Sequence[Text] = (),
) -> QuantizedModel:
    """Keep the pieces that texts need.

    Parameters
    ----------
    model
        The model; it is left as it is.
    texts
        Their pieces are kept, with the smaller pieces that these consist of.
    count
        Keep so many pieces: those of the texts, the most frequent first, then others as the
        tokenizer ranks them. By default those of the texts alone.
    heldout
        Texts of which is told how many change.

    Returns
    -------
    QuantizedModel
        Its `quantization["vocabulary"]` is a `VocabularyCut`.

    Raises
    ------
    UsageError
        If the model has no tokenizer, or `count` is too small, or not below what there is.
    ModelError
        If the tokenizer of fewer pieces would not do the same.
    LoweringError
        If the table of words is read in another way too.
    """
    from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
    from ibert_tvm.relay_passes.integer.rows import fixed_ids, keep_rows

    if not model.tokenizer:
        raise UsageError(
            "a vocabulary cannot be cut",
            why="the model came without tokenizer files",
            todo="give them with --tokenizer, or leave --vocabulary out",
        )
    before = Tokenizer(model.tokenizer)
    pieces = Pieces(before)
    needed = {*pieces.needed, *range(fixed_ids(model.program, _IDS)), model.info.pad_token_id}
    chosen = _chosen(pieces, needed, _counted(before, texts), count)
    kept = sorted(chosen)
    ids = {old: new for new, old in enumerate(kept)}
    after = pieces.cut(ids)
    for text in (*texts, *heldout):
        pieces.check_same(after, ids, text, 2**20)
    rows = np.array([index for index in kept if index < model.info.vocab_size], np.int64)
    program, parameters = keep_rows(model.program, model.parameters, _IDS, rows)
    analyse_ranges(program, parameters)
    cut = QuantizedModel(
        program=program,
        parameters=parameters,
        info=replace(
            model.info,
            vocab_size=len(rows),
            source_vocab_size=model.info.source_vocab_size or model.info.vocab_size,
            pad_token_id=ids[model.info.pad_token_id],
            tokenizer_behaviour=behaviour(after),
        ),
        quantization=model.quantization,
        tokenizer=after.files,
    )
    changed, unknown = _changes(pieces, after, ids, heldout)
    report = VocabularyCut(
        pieces=len(kept),
        pieces_before=len(pieces.ids),
        weight_bytes=cut.num_bytes,
        weight_bytes_before=model.num_bytes,
        tokenizer_bytes=sum(map(len, cut.tokenizer.values())),
        tokenizer_bytes_before=sum(map(len, model.tokenizer.values())),
        heldout_texts=len(heldout),
        changed_texts=changed,
        unknown_texts=unknown,
    )
    return replace(cut, quantization={**cut.quantization, "vocabulary": asdict(report)})


def _counted(tokenizer: Tokenizer, texts: Sequence[Text]) -> list[int]:
    """Ids in texts, the most frequent first."""
    flat = [part for text in texts for part in parts_of(text)]
    counts = Counter(index for row in tokenizer.ids_of(flat) for index in row)
    return sorted(counts, key=lambda index: (-counts[index], index))


def _chosen(pieces: Pieces, needed: set[int], wanted: list[int], count: int | None) -> set[int]:
    """Ids to keep, each with its parts."""
    chosen = set(needed)
    if count is None:
        for index in wanted:
            chosen |= pieces.with_parts(index, chosen)
        return chosen
    if not len(chosen) <= count < len(pieces.ids):
        raise UsageError(
            f"a vocabulary of {count} pieces",
            why=f"the model's has {len(pieces.ids)}, of which {len(chosen)} are always kept",
            todo="choose a number between them",
        )
    for index in dict.fromkeys((*wanted, *pieces.in_order())):
        more = pieces.with_parts(index, chosen)
        if len(chosen) + len(more) <= count:
            chosen |= more
    return chosen


def _changes(
    pieces: Pieces, after: Tokenizer, ids: dict[int, int], texts: Sequence[Text]
) -> tuple[int, int]:
    """How many texts have other pieces, and how many more unknown ones."""
    changed = unknown = 0
    for text in texts:
        parts = parts_of(text)
        old = [index for row in pieces.tokenizer.ids_of(parts) for index in row]
        new = [index for row in after.ids_of(parts) for index in row]
        changed += [ids.get(index) for index in old] != new
        if pieces.unknown is not None:
            unknown += new.count(ids[pieces.unknown]) > old.count(pieces.unknown)
    return changed, unknown
