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
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..common.errors import InputError, LibraryError
from ..common.types import Floats
from .engine import Engine, ExecutionContext
from .inputs import check_inputs
from .mapping import why_mapped
from .metadata import FunctionRecord, LibraryMetadata, OutputRecord

if TYPE_CHECKING:
    from ..model.tokenization import TokenizedBatch, Tokenizer

# The execution contexts of a library: as many as it has callers at a time, up to a limit.


class ContextPool:
    """Lends contexts to callers.

    A caller gets the context that was used last, whose buffers are in the caches; one more is made
    where all are lent. At the limit callers wait, and whoever came first goes on first: a caller
    that comes back at once cannot overtake the others.

    Parameters
    ----------
    engine
        Makes contexts, the first one at once: what is wrong with the library shows here.
    owner
        What they belong to, for errors.

    Raises
    ------
    IbertError
        As `Engine.create_context` raises.
    """

    def __init__(self, engine: Engine, owner: str) -> None:
        self._engine: Engine | None = engine
        self._owner = owner
        self._lock = threading.Lock()
        self._none_lent = threading.Condition(self._lock)
        self._idle = [engine.create_context()]
        self._waiting: deque[_Caller] = deque()
        self._lent = 0

    def __len__(self) -> int:
        """How many contexts there are."""
        return len(self._idle) + self._lent

    @property
    def engine(self) -> Engine:
        """What makes the contexts.

        Raises
        ------
        LibraryError
            If `close` was called.
        """
        if self._engine is None:
            raise self._refusal()
        return self._engine

    @contextmanager
    def lent(self) -> Iterator[ExecutionContext]:
        """A context for the duration of a block; see `take`."""
        context = self.take()
        try:
            yield context
        finally:
            self.give_back(context)

    def take(self) -> ExecutionContext:
        """Lend a context, which `give_back` ends.

        Returns
        -------
        ExecutionContext
            Nobody else has it meanwhile.

        Raises
        ------
        LibraryError
            If `close` was called.
        IbertError
            As `Engine.create_context` raises; the next caller tries again.
        """
        context = self._enter()
        if context is not None:
            return context
        try:
            return self.engine.create_context()
        except BaseException:
            self.give_back(None)
            raise

    def give_back(self, context: ExecutionContext | None) -> None:
        """Take a context back, or None if it could not be made; who waits longest is next."""
        with self._lock:
            if self._waiting:
                caller = self._waiting.popleft()
                caller.context, caller.served = context, True
                caller.go_on()
                return
            self._lent -= 1
            if context is not None and self._engine is not None:
                self._idle.append(context)
            if self._lent == 0:
                self._none_lent.notify_all()

    def close(self) -> None:
        """Refuse callers from now on, wait for those that run, and let go of all that there is.

        Callers that wait for a context are refused, too. A second call does nothing.
        """
        with self._lock:
            self._engine = None
            while self._waiting:
                self._waiting.popleft().go_on()
            self._none_lent.wait_for(lambda: self._lent == 0)
            self._idle.clear()

    def _enter(self) -> ExecutionContext | None:
        """Wait until a context may be had; give one that there is, or None to make one."""
        with self._lock:
            if self._lent < self.engine.max_contexts:
                self._lent += 1
                return self._idle.pop() if self._idle else None
            caller = _Caller()
            self._waiting.append(caller)
        try:
            caller.wait()
        except BaseException:  # an interrupt from the keyboard
            with self._lock:
                if caller in self._waiting:
                    self._waiting.remove(caller)
            if caller.served:
                self.give_back(caller.context)
            raise
        if not caller.served:
            raise self._refusal()
        return caller.context

    def _refusal(self) -> LibraryError:
        return LibraryError(
            f"{self._owner} is closed",
            why="`close` was called, or the block that it was loaded for has ended",
            todo="load it again",
        )


class _Caller:
    """A caller that waits.

    Attributes
    ----------
    served
        Whether it may go on; one that goes on and may not is refused.
    context
        What it is given; None to make one.
    """

    def __init__(self) -> None:
        self.served = False
        self.context: ExecutionContext | None = None
        self._turn = threading.Lock()
        self._turn.acquire()

    def wait(self) -> None:
        """Wait for `go_on`."""
        self._turn.acquire()

    def go_on(self) -> None:
        """End its wait."""
        self._turn.release()


# Which compiled shapes to call for a batch of any size.
#
# Compiled functions have fixed shapes. A batch is cut into calls so that as few padded tokens as
# possible are computed; of two ways that cost the same, the one with fewer calls is taken.
# Functions that pack tokens compute no padding, so for them it is the calls that count: every one
# reads all weights.


@dataclass(frozen=True)
class Call:
    """One call: `rows` rows of the batch from `start`, padded to the function's shape."""

    function: FunctionRecord
    start: int
    rows: int


def plan_calls(functions: Sequence[FunctionRecord], batch: int, length: int) -> list[Call]:
    """Cut a batch into calls.

    Parameters
    ----------
    functions
        The compiled shapes; at least one has `seq_len >= length`.
    batch
        Number of rows, at least 1.
    length
        Tokens per row.

    Returns
    -------
    list of Call
        Calls that cover rows 0 to `batch - 1` in order, full calls first.
    """
    fitting = [f for f in functions if f.seq_len >= length]
    # For n rows: cheapest[n] = (computed tokens, calls, tokens there is room for), and
    # first[n - 1] = function of the first call.
    cheapest = [(0, 0, 0)]
    first: list[FunctionRecord] = []
    for rows in range(1, batch + 1):
        options = []
        for index, function in enumerate(fitting):
            tokens, calls, room = cheapest[max(0, rows - function.batch)]
            size = function.batch * function.seq_len
            computed = min(rows, function.batch) * length if function.packed else size
            options.append((tokens + computed, calls + 1, room + size, index))
        tokens, calls, room, index = min(options)
        cheapest.append((tokens, calls, room))
        first.append(fitting[index])
    chosen = []
    rows = batch
    while rows > 0:
        chosen.append(first[rows - 1])
        rows -= first[rows - 1].batch
    calls_in_order = []
    start = 0
    for function in sorted(chosen, key=lambda f: -f.batch):
        taken = min(function.batch, batch - start)
        calls_in_order.append(Call(function, start, taken))
        start += taken
    return calls_in_order


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

    def dequantize(self) -> Floats:
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
        with self.contexts.lent() as context:
            self._fill(context.inputs(call.function), inputs, call)
            results = context.run(call.function, self.num_threads)
            # Copies: the memory belongs to the context's next call.
            return [
                np.array(self._cut(record, array, call, length))
                for record, array in zip(self.metadata.outputs, results, strict=True)
            ]

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
