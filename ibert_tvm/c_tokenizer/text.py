"""Text in, outputs out: what is compiled with a model that comes with its tokenizer."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..common.errors import TargetError, UsageError, VerificationError
from ..model.tokenization import Tokenizer
from ..model.tokenizer_behaviour import PROBE_LENGTHS, PROBES, probe_rows
from .source import CTokenizer, c_tokenizer

if TYPE_CHECKING:
    from ibert_tvm.targets.aot import Interface, TextSources

    from ..model.artefact import QuantizedModel

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
            self._tokenize = ctypes.CDLL(str(folder / "tokenizer.so")).ibert_tokenize
        self._work = ctypes.create_string_buffer(work_bytes or form.work_bytes)

    def ids(self, text: bytes, capacity: int) -> list[int]:
        """Ids of a text that is cut to so many.

        Raises
        ------
        ValueError
            With the status, if the C function returns another than 0.
        """
        # Arrays of their exact sizes: a sanitiser sees what is read or written beyond.
        ids, count = np.empty(capacity, np.int32), ctypes.c_int32()
        status = self._tokenize(
            text or None,
            ctypes.c_size_t(len(text)),
            ids.ctypes.data_as(ctypes.c_void_p),
            capacity,
            ctypes.byref(count),
            self._work,
            ctypes.c_size_t(len(self._work)),
        )
        if status != 0:
            raise ValueError(f"status {status}")
        return [int(one) for one in ids[: count.value]]


def check_on_probes(host: HostTokenizer, tokenizer: Tokenizer) -> int:
    """Compare the C form with the package on `PROBES`, and return how many texts that were.

    Raises
    ------
    VerificationError
        With the first text of which the ids differ.
    """
    texts = [text for text in PROBES if isinstance(text, str)]
    longest = tokenizer.model_max_length or max(PROBE_LENGTHS)
    for text in texts:
        for length in PROBE_LENGTHS:
            # The model's own limit is a part of the C form.
            wanted = probe_rows(tokenizer, text, min(length, longest))[0]
            found = host.ids(text.encode(), len(wanted) + 8 if length > longest else length)
            check_same(text, found, wanted)
    return len(texts)


def check_same(text: str, found: Iterable[int], wanted: Iterable[int]) -> None:
    """Refuse ids that are not those of the package; a `VerificationError`."""
    found, wanted = [*found], [*wanted]
    if found != wanted:
        raise VerificationError(
            "the tokenizer in C does not do what the model's tokenizer does",
            why=f"of {text!r:.200} it makes the ids {found}, and the package tokenizers {wanted}",
            todo="compile without --tokenizer, and report it with the model's tokenizer.json",
        )


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
        Its report has ``table_bytes``, ``work_bytes``, and ``probes``, how many texts were
        compared: None without a C compiler for this machine.

    Raises
    ------
    UsageError
        If the model has no tokenizer, takes something else than one text, or no shape has batch 1.
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
    if quantized.info.reads_pairs or not {*inputs} <= {*_ARRAYS}:
        raise _unused("the model does not take the tokens of one text")
    if not tokens:
        raise _unused("no shape has batch 1", "add 1 to --batch")
    tokenizer = Tokenizer(quantized.tokenizer, quantized.info.vocab_size)
    form = c_tokenizer(tokenizer)
    values = {"tokens": tokens, "inputs": inputs, "arrays": _ARRAYS}
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
