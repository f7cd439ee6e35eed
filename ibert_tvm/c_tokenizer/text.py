"""Text in, outputs out: what is compiled with a model that comes with its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..common.errors import TargetError, UsageError
from ..model.tokenization import Tokenizer
from .host import HostTokenizer, check_on_probes
from .source import CTokenizer, c_tokenizer

if TYPE_CHECKING:
    from ibert_tvm.targets.aot import Interface, TextSources

    from ..model.artefact import QuantizedModel

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
