"""The two models that are compared, behind one interface: tokens in, one output out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..common.errors import UsageError
from ..common.types import Floats
from ..model.heads import HEADS
from ..model.model_info import ModelInfo
from ..model.tokenization import TokenizedBatch, Tokenizer, Window
from .errors import DataError
from .samples import Text

if TYPE_CHECKING:
    from ..encoder import Encoder
    from ..frontend import CanonicalModel

BATCH = 32
Progress = Callable[[int, int], None]
_Item = TypeVar("_Item", Text, Window)


@dataclass(frozen=True)
class Side:
    """One of the models.

    Attributes
    ----------
    info
        Of the integer model, for both.
    tokenizer
        The integer model's, for both.
    max_length
        Tokens that texts are cut off at, and windows have.
    run
        From tokens to all outputs in the model's order, float32 [batch, ...] each.
    progress
        Called with the texts done and the texts there are.
    output
        The output that is read.
    """

    info: ModelInfo
    tokenizer: Tokenizer
    max_length: int
    run: Callable[[TokenizedBatch], Sequence[Floats]]
    progress: Progress = lambda _done, _total: None
    output: int = 0

    @property
    def kind(self) -> str:
        """What the output is, of `ibert_tvm.model.heads.KINDS`."""
        return self.info.outputs[self.output].kind

    def reading(self, task: str, *kinds: str) -> Side:
        """Return the side that reads the first output of one of `kinds`.

        Raises
        ------
        DataError
            If the model has none.
        """
        return replace(self, output=output_read(self.info, task, kinds))

    def outputs(self, texts: Sequence[Text]) -> Floats:
        """Outputs [texts, ...] of a model that gives one row per text.

        Empty texts are special tokens alone.
        """
        lengths = [len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts]
        encode = partial(self.tokenizer.encode, max_length=self.max_length, allow_empty=True)
        return np.stack(self._rows(texts, lengths, encode))

    def windows(self, windows: Sequence[Window]) -> list[Floats]:
        """Outputs [tokens, ...] of every window."""
        lengths = [len(window.ids) for window in windows]
        rows = self._rows(windows, lengths, self.tokenizer.batch_of)
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    def _rows(
        self,
        items: Sequence[_Item],
        lengths: Sequence[int],
        tokens: Callable[[list[_Item]], TokenizedBatch],
    ) -> list[Floats]:
        """Outputs of all items in their order; computed from the longest on."""
        order = np.argsort(-np.array(lengths), kind="stable")
        rows = [np.zeros(0, np.float32)] * len(items)
        for start in range(0, len(items), BATCH):
            places = order[start : start + BATCH]
            outputs = self.run(tokens([items[place] for place in places]))[self.output]
            for place, row in zip(places, outputs, strict=True):
                rows[place] = row
            self.progress(start + len(places), len(items))
        return rows


def output_read(info: ModelInfo, task: str, kinds: Sequence[str]) -> int:
    """Return the place of the first output of one of `kinds`.

    Raises
    ------
    DataError
        If the model has none.
    """
    found = [place for place, output in enumerate(info.outputs) if output.kind in kinds]
    if found:
        return found[0]
    heads = ", or ".join(
        " or ".join(h.name for h in HEADS.values() if h.kind == kind and h.tokens) for kind in kinds
    )
    given = ", ".join(output.kind.replace("_", " ") for output in info.outputs)
    raise DataError(
        f"the model cannot be evaluated on the task {task}",
        why=f"its head is {info.head}, which gives {given}",
        todo=f"quantise the model with the head {heads}",
    )


def encoder_of(model: Path, length: int | None, usual: int, device: str | None) -> Encoder:
    """The library's encoder; a NAME.ibert folder is compiled for this machine, once."""
    from ..encoder import Encoder
    from ..frontend.sources import is_source
    from ..model.artefact import read_info

    if model.exists() and is_source(model):
        raise UsageError(
            "a float model was given as the integer one",
            where=str(model),
            todo="give a NAME.ibert folder or a library, and this model with --against",
        )
    if model.is_dir():
        length = length or min(usual, read_info(model).max_sequence_length or usual)
    return Encoder(model, device=device, max_seq_length=length)


def integer_side(encoder: Encoder) -> Side:
    """Return the side of a compiled library.

    Parameters
    ----------
    encoder
        Of the library.
    """
    library = encoder.library
    names = [record.name for record in library.metadata.inputs]
    outputs = [record.name for record in library.metadata.outputs]

    def run(tokens: TokenizedBatch) -> list[Floats]:
        given: dict[str, Any] = dict(tokens.inputs(names))
        found = library.run(**given)
        return [np.asarray(found[name]) for name in outputs]

    return Side(library.metadata.info, encoder.tokenizer, encoder.max_seq_length, run)


def float_side(reference: CanonicalModel, integers: Side) -> Side:
    """Return the side of the float model.

    Parameters
    ----------
    reference
        The float model, as quantisation begins with it.
    integers
        The integer model, whose tokenizer and length it gets.

    Raises
    ------
    UsageError
        If the two do not belong together.
    """
    from ibert_tvm.relay_passes.canonical import FloatModel

    from ..evaluation.evaluate import check_pair, with_ids_of

    check_pair(integers.info, reference.info)
    reference = with_ids_of(integers.info, reference, integers.tokenizer)
    model = FloatModel(reference.module, reference.parameters)

    def run(tokens: TokenizedBatch) -> tuple[Floats, ...]:
        return model.run(tokens.inputs(model.input_names)).outputs

    return Side(integers.info, integers.tokenizer, integers.max_length, run)
