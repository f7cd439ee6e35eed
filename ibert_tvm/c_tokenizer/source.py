"""The tokenizer of a model as C: the text of its source, and of its part of the header."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.strict_json import JsonDict
from .errors import refused
from .normalizer import (
    FIRST,
    FLAGS,
    KEEP,
    SPACED,
    cluster_flags,
    mark_classes,
    needs_classes,
    stages_of,
)
from .parts import Template, model_part, words_part
from .tables import Array

if TYPE_CHECKING:
    from ..model.tokenization import Tokenizer

# Tokens that are found in a text before it is normalised, the longest first.

_MOST = 1024
_WHERE = "added_tokens"


def added_arrays(tokens: Sequence[JsonDict], normalised: bool) -> tuple[Array, ...]:
    """Texts, lengths, ids and trimmed sides of added tokens.

    Parameters
    ----------
    tokens
        ``added_tokens`` of tokenizer.json.
    normalised
        Whether the tokenizer has a normaliser.

    Raises
    ------
    TokenizerFormError
        If one is found otherwise.
    """
    if len(tokens) > _MOST:
        raise refused(_WHERE, f"there are {len(tokens)}; {_MOST} are allowed")
    for token in tokens:
        text = token["content"]
        if token["single_word"]:
            raise refused(_WHERE, f"{text!r} is found as a single word only")
        if token["normalized"] and normalised:
            raise refused(_WHERE, f"{text!r} is found behind the normaliser")
        if text != text.strip() or not text or "\ufffd" in text:
            raise refused(_WHERE, f"{text!r} is empty, or has a space at an end, or U+FFFD")
    for one, other in product(tokens, tokens):
        if one["normalized"] and not other["normalized"]:
            _check_apart(one["content"], other["content"])
    ordered = sorted(tokens, key=lambda token: -len(token["content"].encode()))
    texts = [token["content"].encode() for token in ordered]
    return (
        Array("added_texts", [byte for text in texts for byte in text]),
        Array("added_lengths", [len(text) for text in texts]),
        Array("added_ids", [int(token["id"]) for token in ordered]),
        Array("added_trims", [token["lstrip"] | token["rstrip"] << 1 for token in ordered]),
    )


def _check_apart(one: str, other: str) -> None:
    """The package looks for those that are not normalised first: the others must not overlap."""
    lengths = range(1, min(len(one), len(other)) + 1)
    touching = any(one[-n:] == other[:n] or other[-n:] == one[:n] for n in lengths)
    if touching or one in other or other in one:
        raise refused(_WHERE, f"{one!r} and {other!r} may overlap, and only one is normalised")


_SOURCE = Path(__file__).with_name("tokenizer.c.in")
_HEADER = Path(__file__).with_name("tokenizer.h.in")


@dataclass(frozen=True)
class CTokenizer:
    """A tokenizer in C99, whose names begin with ``ibert``.

    Attributes
    ----------
    declarations
        For the header of the model.
    source
        Includes that header, by the name of ``ibert_model.h``.
    table_bytes
        Of constants, in flash.
    work_bytes
        Of memory that a call needs.
    """

    declarations: str
    source: str
    table_bytes: int
    work_bytes: int


def c_tokenizer(tokenizer: Tokenizer) -> CTokenizer:
    """Write a tokenizer in C.

    Parameters
    ----------
    tokenizer
        The model's.

    Raises
    ------
    TokenizerFormError
        If the C form does not implement a part of it.
    """
    from ibert_tvm.targets.aot.c_text import rendered

    fast = tokenizer.fast_copy()
    document = json.loads(fast.to_str())
    stages = stages_of(document["normalizer"])
    words = words_part(document["pre_tokenizer"])
    model = model_part(document["model"])
    added = document["added_tokens"]
    added_tables = added_arrays(added, bool(stages))
    own = [stage.table for stage in stages if stage.table is not None]
    clustered = any(stage.kind == "clusters" for stage in stages)
    tables = [
        *own,
        *([mark_classes()] if needs_classes(stages) else []),
        *([cluster_flags()] if clustered else []),
        *words.tables,
    ]
    trimmed = any(token["lstrip"] or token["rstrip"] for token in added)
    arrays = [
        *(array for stage in stages for array in stage.arrays),
        *(array for table in tables if table not in own for array in table.arrays),
        *words.arrays,
        *model.arrays,
        *(array for array in added_tables if array.name != "added_trims" or trimmed),
    ]
    table_bytes = sum(array.nbytes for array in arrays)
    values = {
        **{"KEEP": KEEP, "SPACED": SPACED, "FIRST": FIRST},
        **FLAGS,
        "scheme": None,
        **words.values,
        **model.values,
        "stages": stages,
        "tables": tables,
        "arrays": arrays,
        "words": words.template,
        "model": model.template,
        "added": added,
        "trimmed": trimmed,
        "left": tokenizer.truncation_side == "left",
        "template": Template.of(fast, tokenizer.has_types),
        "max_length": tokenizer.model_max_length,
        "table_bytes": table_bytes,
    }
    return CTokenizer(
        declarations=rendered(_HEADER, **values),
        source=rendered(_SOURCE, **values),
        table_bytes=table_bytes,
        work_bytes=int(str(model.values["work_bytes"])),
    )
