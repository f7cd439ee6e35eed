"""Text in, outputs out: what is compiled with a model that comes with its tokenizer."""

from __future__ import annotations

import ctypes
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..common.errors import TargetError, UsageError, VerificationError
from ..common.strict_json import JsonDict
from ..model.heads import HEADS
from ..model.tokenization import Tokenizer
from ..model.tokenizer_behaviour import PROBE_LENGTHS, PROBES, probe_rows
from .errors import refused
from .normalizer import (
    FIRST,
    FLAGS,
    KEEP,
    SPACED,
    Stage,
    cluster_flags,
    mark_classes,
    needs_classes,
    stages_of,
)
from .parts import Template, model_part, words_part
from .tables import Array

if TYPE_CHECKING:
    from ibert_tvm.targets.aot import Interface, TextSources

    from ..model.artefact import QuantizedModel

# The tokenizer of a model as C: the text of its source, and of its part of the header.

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


_FORM_SOURCE = Path(__file__).with_name("tokenizer.c.in")
_FORM_HEADER = Path(__file__).with_name("tokenizer.h.in")


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
    pairs
        Whether it has a function for two texts.
    """

    declarations: str
    source: str
    table_bytes: int
    work_bytes: int
    pairs: bool = False


def c_tokenizer(tokenizer: Tokenizer, pairs: bool = False) -> CTokenizer:
    """Write a tokenizer in C.

    Parameters
    ----------
    tokenizer
        The model's.
    pairs
        Whether it takes two texts, too.

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
    model = model_part(document["model"], "byte_level" in words.values)
    added = document["added_tokens"]
    added_tables = added_arrays(added, bool(stages))
    if words.values.get("prefix_space"):
        stages.append(Stage("prepend", "prefix", text=" ", again=False))
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
        *(array for array in added_tables if added and (array.name != "added_trims" or trimmed)),
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
        "pair": Template.of(fast, tokenizer.has_types, 2) if pairs else None,
        "max_length": tokenizer.model_max_length,
        "table_bytes": table_bytes,
    }
    return CTokenizer(
        declarations=rendered(_FORM_HEADER, **values),
        source=rendered(_FORM_SOURCE, **values),
        table_bytes=table_bytes,
        work_bytes=int(str(model.values["work_bytes"])),
        pairs=pairs,
    )


# The C form on this machine, compared with the package tokenizers.

_FLAGS = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-shared", "-fPIC")
_TOP = "#include <stddef.h>\n#include <stdint.h>\n"


def header_alone(form: CTokenizer) -> str:
    """A header for the C form without a model."""
    from ibert_tvm.targets.aot.header import STATUSES

    statuses = "".join(f"#define {name} {code}\n" for code, name, _ in STATUSES)
    return _TOP + statuses + form.declarations


class HostTokenizer:
    """The C form, compiled for this machine.

    Parameters
    ----------
    form
        Its names begin with ``ibert``.
    flags
        More for the C compiler.
    work_bytes
        Memory for a word; by default what the header says.

    Raises
    ------
    TargetError
        If there is no C compiler, or it refuses the source.
    """

    def __init__(
        self, form: CTokenizer, flags: Sequence[str] = (), work_bytes: int | None = None
    ) -> None:
        from ibert_tvm.targets import get_target
        from ibert_tvm.targets.linking import Tools

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "ibert_model.h").write_text(header_alone(form))
            (folder / "tokenizer.c").write_text(form.source)
            arguments = [*_FLAGS, *flags, "tokenizer.c", "-o", "tokenizer.so"]
            Tools(get_target("host")).compile(arguments, folder, "cannot compile the tokenizer")
            self._library = ctypes.CDLL(str(folder / "tokenizer.so"))
        self.pairs = form.pairs
        self._work = ctypes.create_string_buffer(work_bytes or form.work_bytes)

    def ids(self, text: bytes, capacity: int) -> list[int]:
        """Ids of a text that is cut to so many.

        Raises
        ------
        ValueError
            With the status, if the C function returns another than 0.
        """
        return self._call(self._library.ibert_tokenize, [text], 1, capacity)[0]

    def pair(self, first: bytes, second: bytes, capacity: int) -> tuple[list[int], list[int]]:
        """Ids and types of two texts; errors as of `ids`."""
        ids, types = self._call(self._library.ibert_tokenize_pair, [first, second], 2, capacity)
        return ids, types

    def _call(
        self, function: Callable[..., int], texts: Sequence[bytes], arrays: int, capacity: int
    ) -> list[list[int]]:
        # Arrays of their exact sizes: a sanitiser sees what is read or written beyond.
        found, count = np.empty((arrays, capacity), np.int32), ctypes.c_int32()
        status = function(
            *(one for text in texts for one in (text or None, ctypes.c_size_t(len(text)))),
            *(row.ctypes.data_as(ctypes.c_void_p) for row in found),
            capacity,
            ctypes.byref(count),
            self._work,
            ctypes.c_size_t(len(self._work)),
        )
        if status != 0:
            raise ValueError(f"status {status}")
        rows: list[list[int]] = found[:, : count.value].tolist()
        return rows


def check_on_probes(host: HostTokenizer, tokenizer: Tokenizer) -> int:
    """Compare the C form with the package on `PROBES`, and return how many texts that were.

    Raises
    ------
    VerificationError
        With the first text of which the ids differ.
    """
    probes = [probe for probe in PROBES if host.pairs or isinstance(probe, str)]
    longest = tokenizer.model_max_length or max(PROBE_LENGTHS)
    for probe in probes:
        for length in PROBE_LENGTHS:
            # The model's own limit is a part of the C form.
            ids, types, _ = probe_rows(tokenizer, probe, min(length, longest))
            room = len(ids) + 8 if length > longest else length
            if isinstance(probe, str):
                check_same(probe, host.ids(probe.encode(), room), ids)
            else:
                first, second = (text.encode() for text in probe)
                check_pair(probe, host.pair(first, second, room), (ids, types))
    return len(probes)


def check_same(text: object, found: Iterable[int], wanted: Iterable[int], of: str = "ids") -> None:
    """Refuse ids that are not those of the package; a `VerificationError`."""
    found, wanted = [*found], [*wanted]
    if found != wanted:
        raise VerificationError(
            "the tokenizer in C does not do what the model's tokenizer does",
            why=f"of {text!r:.200} it makes the {of} {found}, and the package tokenizers {wanted}",
            todo="compile without --tokenizer, and report it with the model's tokenizer.json",
        )


def check_pair(
    pair: tuple[str, str], found: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]
) -> None:
    """Refuse ids or types that are not those of the package; a `VerificationError`."""
    for name, mine, theirs in zip(("ids", "types"), found, wanted, strict=True):
        check_same(pair, mine, theirs, name)


_ARRAYS = {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "types"}
_PROBE_BYTES = 2**16
"""Memory for a probe that is one word."""
_SOURCE = Path(__file__).with_name("embed.c.in")
_HEADER = Path(__file__).with_name("embed.h.in")


def text_sources(quantized: QuantizedModel, interface: Interface) -> TextSources:
    """Write the tokenizer of a model in C, and compare it with the package tokenizers.

    Parameters
    ----------
    quantized
        The model.
    interface
        Of the compiled model.

    Returns
    -------
    ibert_tvm.targets.aot.TextSources
        Its report has ``table_bytes``, ``work_bytes``, ``pairs``, whether two texts are taken, and
        ``probes``, how many texts were compared: None without a C compiler for this machine.

    Raises
    ------
    UsageError
        If the model has no tokenizer, takes something else than texts, or no shape has batch 1.
    TokenizerFormError
        If the C form does not implement a part of the tokenizer.
    VerificationError
        If a probe has other ids.
    """
    from ibert_tvm.targets.aot import TextSources
    from ibert_tvm.targets.aot.c_text import prefixed, rendered

    inputs = [spec.name for spec in interface.inputs]
    tokens = max((shape.seq_len for shape in interface.functions if shape.batch == 1), default=0)
    if not quantized.tokenizer:
        raise _unused("the model has no tokenizer")
    if not {*inputs} <= {*_ARRAYS}:
        raise _unused("the model takes something else than tokens")
    head = HEADS[quantized.info.head]
    if head.pairs and not head.labelled:
        raise _unused("where answers stand in a text cannot be told from token ids")
    if not tokens:
        raise _unused("no shape has batch 1", "add 1 to --batch")
    tokenizer = Tokenizer(quantized.tokenizer, quantized.info.vocab_size)
    form = c_tokenizer(tokenizer, head.pairs)
    values = {"tokens": tokens, "inputs": inputs, "arrays": _ARRAYS, "pairs": form.pairs}
    prefix = interface.prefix

    def renamed(text: str) -> str:
        return prefixed(text, prefix).replace('"ibert_model.h"', f'"{prefix}_model.h"')

    sources = {"tokenizer": form.source, "text": rendered(_SOURCE, **values)}
    return TextSources(
        declarations=form.declarations + rendered(_HEADER, **values),
        sources={f"{prefix}_{name}.c": renamed(text) for name, text in sources.items()},
        report={
            "table_bytes": form.table_bytes,
            "work_bytes": form.work_bytes,
            "pairs": form.pairs,
            "probes": compared_probes(form, tokenizer),
        },
    )


def compared_probes(form: CTokenizer, tokenizer: Tokenizer) -> int | None:
    """Compare a C form with its tokenizer on texts; None without a C compiler for this machine."""
    try:
        host = HostTokenizer(form, work_bytes=max(form.work_bytes, _PROBE_BYTES))
    except TargetError:
        return None
    return check_on_probes(host, tokenizer)


def _unused(why: str, todo: str = "leave it out") -> UsageError:
    return UsageError("--tokenizer cannot be used", why=why, todo=todo)
