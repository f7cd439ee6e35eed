"""The C form on this machine, compared with the package tokenizers."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..common.errors import VerificationError
from ..model.tokenizer_behaviour import PROBE_LENGTHS, PROBES, probe_rows
from .source import CTokenizer

if TYPE_CHECKING:
    from ..model.tokenization import Tokenizer

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
