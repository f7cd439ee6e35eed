"""A compiled library, loaded: what callers give it, and what they get.

The compiled code is integer only. Inputs are checked and padded to a compiled shape before it, and
outputs are, by the caller's choice, multiplied by their scale after it. Loading maps the file: the
parameters are views of the mapped pages and exist in memory once.
"""

from __future__ import annotations

import base64
import binascii
import functools
import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.errors import InputError, LibraryError
from .batching import Call, plan_calls
from .contexts import ContextPool
from .engine import Engine
from .inputs import check_inputs
from .mapping import why_mapped
from .metadata import LibraryMetadata, OutputRecord

if TYPE_CHECKING:
    from ..model.tokenization import TokenizedBatch, Tokenizer

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class IntegerOutput:
    """An output as the compiled code gives it.

    Attributes
    ----------
    values
        Integers, of the output's shape.
    scale
        Real size of one step: the real value is `values * scale`.
    """

    values: np.ndarray
    scale: float

    def dequantize(self) -> NDArray[np.float32]:
        """Real values, float32."""
        return (self.values.astype(np.float64) * self.scale).astype(np.float32)


class Library:
    """A compiled library, loaded. Made by `load_library`.

    Calls may come from any thread, and run at the same time: twice as many as there are
    processors, on a GPU up to four, on a board one. More callers than that wait for their turn.
    Weights and threads are shared; each call at a time takes buffers of its own, which are kept.
    Used as a context manager, a library is closed at the end of the block.

    Attributes
    ----------
    metadata
        What the library says about itself.
    num_threads
        Most threads that a call uses; callers at the same time divide the processors among them.
    device
        What kernels run on: ``"cpu"``, ``"cuda:0"`` ...
    contexts
        What calls run in.
    """

    def __init__(self, metadata: LibraryMetadata, num_threads: int, engine: Engine) -> None:
        self.metadata = metadata
        self.num_threads = num_threads
        self.device = engine.device
        self.contexts = ContextPool(engine, f"the library {metadata.path}")

    @property
    def engine(self) -> Engine:
        """The loaded code, on this machine's processor, on its GPU, or on a board.

        Raises
        ------
        LibraryError
            If the library was closed.
        """
        return self.contexts.engine

    def close(self) -> str | None:
        """Wait for calls that run, and let go of buffers and code; later calls are refused.

        Returns
        -------
        str or None
            Why the file is still mapped; None if it is not. It is unmapped once nothing refers to
            it: another `Library` of the same content and arrays of `parameters` do. For good stay
            a library for a GPU, and the first whose kernels ran in several threads of this process.
        """
        self.contexts.close()
        return why_mapped(self.metadata.digest)

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        shapes = ", ".join(f"{f.batch}x{f.seq_len}" for f in self.metadata.functions)
        return f"Library({str(self.metadata.path)!r}, shapes={shapes})"

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """Read-only views of the integer parameters in the mapped file, by name."""
        views = {}
        for record in self.metadata.parameters:
            array = self.engine.parameter(record)
            array.flags.writeable = False
            views[record.name] = array
        return views

    @functools.cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The embedded tokenizer; None if the library has none."""
        from ..model.tokenization import Tokenizer

        if not self.metadata.tokenizer:
            return None
        return Tokenizer(tokenizer_files(self.metadata), self.metadata.info.vocab_size or None)

    def run(
        self,
        input_ids: ArrayLike | None = None,
        attention_mask: ArrayLike | None = None,
        token_type_ids: ArrayLike | None = None,
        dequantize: bool = True,
        *,
        pixel_values: ArrayLike | None = None,
        input_features: ArrayLike | None = None,
    ) -> dict[str, Any]:
        """Run the model on token ids, on images or on features.

        Parameters
        ----------
        input_ids : array_like of int
            Token ids [batch, length], any batch; no longer than the longest compiled sequence.
        attention_mask : array_like of int or bool
            1 for tokens, 0 for padding, of the same shape; all 1 by default.
        token_type_ids : array_like of int
            Of the same shape; all 0 by default.
        dequantize
            Give real values (float32) instead of integers with their scale.
        pixel_values : array_like of float
            Images [batch, channels, height, width] as the model's image processor gives them, for
            a model that takes images; they become integers here (`ibert_tvm.runtime.pixels`).
        input_features : array_like of float
            Features [batch, channels, frames], likewise, for a model that takes these.

        Returns
        -------
        dict of str to numpy.ndarray or IntegerOutput
            Outputs by name, padding cut off. What a padding token of the input itself gives in an
            output per token has no meaning.

        Raises
        ------
        InputError
            If an input's dtype, rank, shape or values do not fit the model.
        LibraryError
            If the library was closed.
        """
        inputs = check_inputs(
            self.metadata,
            {
                "input_ids": input_ids,
                "attention_mask": attention_mask,
                "token_type_ids": token_type_ids,
                "pixel_values": pixel_values,
                "input_features": input_features,
            },
        )
        batch, length = self._extents(inputs)
        parts = [
            self._call(call, inputs, length)
            for call in plan_calls(self.metadata.functions, batch, length)
        ]
        outputs: dict[str, Any] = {}
        for index, record in enumerate(self.metadata.outputs):
            joined = parts[0][index]
            if len(parts) > 1:
                joined = np.concatenate([part[index] for part in parts])
            integer = IntegerOutput(joined, record.scale)
            outputs[record.name] = integer.dequantize() if dequantize else integer
        return outputs

    def encode(
        self, texts: Sequence[str | tuple[str, str]], max_length: int | None = None
    ) -> TokenizedBatch:
        """Encode texts with the embedded tokenizer, truncating where nothing longer was compiled.

        Parameters
        ----------
        texts
            Texts or pairs of texts, none of them empty.
        max_length
            Truncate to this many tokens; by default to the longest compiled sequence.

        Raises
        ------
        InputError
            If the library has no tokenizer, or a text is empty.
        """
        if self.tokenizer is None:
            raise InputError(
                "the library cannot take texts",
                where=str(self.metadata.path),
                why="its model came without tokenizer files",
                todo="give token ids: run(input_ids=...) or --inputs FILE.npz",
            )
        longest = self.metadata.max_seq_len
        limit = longest if max_length is None else min(max_length, longest)
        batch = self.tokenizer.encode(texts, max_length=limit)
        if batch.truncated:
            _logger.warning(
                "%d of %d texts were cut off at %d tokens (text %s), the longest length compiled; "
                "compile with a larger --seq-len to keep them whole",
                len(batch.truncated),
                len(texts),
                limit,
                ", ".join(map(str, batch.truncated[:5])) + (" ..." * (len(batch.truncated) > 5)),
            )
        return batch

    def run_texts(
        self, texts: Sequence[str | tuple[str, str]], dequantize: bool = True
    ) -> dict[str, Any]:
        """Run the model on texts with the tokenizer that is embedded in the library.

        Parameters
        ----------
        texts
            Texts or pairs of texts. Longer ones than the longest compiled sequence are cut off,
            with a warning in the log.
        dequantize
            As in `run`.

        Returns
        -------
        dict of str to numpy.ndarray or IntegerOutput
            As `run` returns; outputs per token are 0 behind the end of a text.

        Raises
        ------
        InputError
            If the library has no tokenizer, or a text is empty.
        """
        return self.run_tokens(self.encode(texts), dequantize)

    def run_tokens(self, batch: TokenizedBatch, dequantize: bool = True) -> dict[str, Any]:
        """Run the model on texts that are tokens already, the short ones apart from the long ones.

        Parameters
        ----------
        batch
            Texts of any lengths, padded at their end to that of the longest.
        dequantize
            As in `run`.

        Returns
        -------
        dict of str to numpy.ndarray or IntegerOutput
            As `run` returns; outputs per token are 0 behind the end of a text.

        Raises
        ------
        InputError, LibraryError
            As `run` raises.
        """
        inputs = batch.inputs([record.name for record in self.metadata.inputs])
        lengths = batch.attention_mask.sum(axis=1)
        compiled = np.unique([function.seq_len for function in self.metadata.functions])
        if lengths.max(initial=0) > compiled[-1]:
            return self.run(**inputs, dequantize=dequantize)  # which says what is wrong
        classes = compiled[np.searchsorted(compiled, lengths)]
        if all(function.packed for function in self.metadata.functions):
            classes[:] = classes.max()  # no padding is computed: as few calls as possible
        # Short texts do not pay for a long one beside them: each class of lengths runs alone.
        parts = []
        for length in np.unique(classes):
            rows = np.flatnonzero(classes == length)
            short = {name: array[rows, :length] for name, array in inputs.items()}
            parts.append((rows, self.run(**short, dequantize=False)))
        outputs: dict[str, Any] = {}
        for record in self.metadata.outputs:
            extents = dict(zip(("batch", "seq_len"), batch.input_ids.shape, strict=True))
            shape = [extents.get(str(axis), axis) for axis in record.shape]
            whole = np.zeros(shape, dtype=record.dtype)
            for rows, part in parts:
                values = part[record.name].values
                if record.per_token:
                    whole[rows, : values.shape[1]] = values
                else:
                    whole[rows] = values
            integer = IntegerOutput(whole, record.scale)
            outputs[record.name] = integer.dequantize() if dequantize else integer
        return outputs

    def _call(self, call: Call, inputs: Mapping[str, np.ndarray], length: int) -> list[np.ndarray]:
        """Run one compiled function on some rows; return the outputs with the padding cut off."""
        context = self.contexts.take()
        try:
            self._fill(context.inputs(call.function), inputs, call)
            results = context.run(call.function, self.num_threads)
            # Copies: the memory belongs to the context's next call.
            return [
                np.array(self._cut(record, array, call, length))
                for record, array in zip(self.metadata.outputs, results, strict=True)
            ]
        finally:
            self.contexts.give_back(context)

    def _fill(
        self, buffers: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray], call: Call
    ) -> None:
        """Copy rows of the inputs to the front of the buffers; what is left is padding."""
        for name, buffer in buffers.items():
            given = inputs[name][call.start : call.start + call.rows]
            if given.shape != buffer.shape:
                # Padding ids must be the model's own: RoBERTa counts positions by them.
                buffer.fill(self.metadata.info.pad_token_id if name == "input_ids" else 0)
            buffer[: given.shape[0], : given.shape[1]] = given

    def _extents(self, inputs: Mapping[str, np.ndarray]) -> tuple[int, int]:
        """Rows and tokens of a call's inputs; images and features have one number of tokens."""
        first = next(iter(inputs.values()))
        images = self.metadata.info.image_size is not None
        return first.shape[0], self.metadata.max_seq_len if images else first.shape[1]

    @staticmethod
    def _cut(record: OutputRecord, array: np.ndarray, call: Call, length: int) -> np.ndarray:
        extents: dict[int | str, int] = {"batch": call.rows, "seq_len": length}
        index = tuple(
            slice(extents[axis]) if axis in extents else slice(None) for axis in record.shape
        )
        return array[index]


def tokenizer_files(metadata: LibraryMetadata) -> dict[str, bytes]:
    """Files of the tokenizer in a library, by name; LibraryError if they cannot be used."""
    return {name: _inflated(name, text) for name, text in metadata.tokenizer.items()}


def _inflated(name: str, text: str) -> bytes:
    """A tokenizer file as a library holds it; a little text can become gigabytes."""
    from ..model.tokenization import MAX_TOKENIZER_BYTES, TOKENIZER_FILES

    why = "it is no compressed file"
    try:
        inflater = zlib.decompressobj()
        content = inflater.decompress(base64.b64decode(text, validate=True), MAX_TOKENIZER_BYTES)
        if inflater.eof and name in TOKENIZER_FILES:
            return content
        if inflater.unconsumed_tail:
            why = f"it has more than {MAX_TOKENIZER_BYTES} bytes"
        elif name not in TOKENIZER_FILES:
            why = "no tokenizer has such a file"
    except (zlib.error, binascii.Error) as error:
        why = str(error)
    raise LibraryError(
        "the library's tokenizer cannot be read",
        where=name,
        why=why,
        todo="make the library again with `ibert compile NAME.ibert -o model.so`",
    )
