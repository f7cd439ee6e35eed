"""Running a compiled library.

    library = load_library("model.so")
    outputs = library.run(input_ids=ids, attention_mask=mask)     # {name: float array}

The compiled code is integer only. Inputs are checked and padded to a compiled shape before it, and
outputs are, by the caller's choice, multiplied by their scale after it. Loading maps the file: the
parameters are views of the mapped pages and exist in memory once.
"""

from __future__ import annotations

import base64
import functools
import logging
import os
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ibert_tvm.batching import Call, plan_calls
from ibert_tvm.device import choose_device
from ibert_tvm.errors import InputError, UsageError
from ibert_tvm.inputs import check_inputs
from ibert_tvm.library_file import FunctionRecord, LibraryMetadata, OutputRecord, read_metadata
from ibert_tvm.loading import load_engine
from ibert_tvm.threads import default_threads

if TYPE_CHECKING:
    from ibert_tvm.loading import AnyEngine
    from ibert_tvm.tokenization import TokenizedBatch, Tokenizer

__all__ = ["IntegerOutput", "Library", "load_library", "run"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class IntegerOutput:
    """An output as the compiled code gives it.

    Attributes
    ----------
    values : numpy.ndarray
        Integers, of the output's shape.
    scale : float
        Real size of one step: the real value is `values * scale`.
    """

    values: NDArray[Any]
    scale: float

    def dequantize(self) -> NDArray[np.float32]:
        """Real values, float32."""
        return (self.values.astype(np.float64) * self.scale).astype(np.float32)


class Library:
    """A compiled library, loaded. Made by `load_library`.

    One call runs at a time: calls from several threads wait for each other.

    Attributes
    ----------
    metadata : LibraryMetadata
        What the library says about itself.
    num_threads : int
        Threads that a call uses.
    engine : Engine or another one
        The loaded code, on this machine's processor, on its GPU, or on a board.
    """

    def __init__(
        self,
        metadata: LibraryMetadata,
        num_threads: int,
        engine: AnyEngine,
    ) -> None:
        self.metadata = metadata
        self.num_threads = num_threads
        self._lock = threading.Lock()
        self.engine: Any = engine
        self._parameters = [self.engine.parameter(record) for record in metadata.parameters]
        self._stages: dict[str, _Stage] = {}

    def __repr__(self) -> str:
        shapes = ", ".join(f"{f.batch}x{f.seq_len}" for f in self.metadata.functions)
        return f"Library({str(self.metadata.path)!r}, shapes={shapes})"

    @property
    def device(self) -> str:
        """What kernels run on: ``"cpu"``, ``"cuda:0"`` ..."""
        return str(self.engine.device)

    @property
    def parameters(self) -> dict[str, NDArray[Any]]:
        """Read-only views of the integer parameters in the mapped file, by name."""
        views = {}
        for record in self.metadata.parameters:
            array = self.engine.array(record)
            array.flags.writeable = False
            views[record.name] = array
        return views

    @functools.cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The embedded tokenizer; None if the library has none."""
        from ibert_tvm.tokenization import Tokenizer

        if not self.metadata.tokenizer:
            return None
        files = {
            name: zlib.decompress(base64.b64decode(content))
            for name, content in self.metadata.tokenizer.items()
        }
        return Tokenizer(files)

    def run(
        self,
        input_ids: ArrayLike | None = None,
        attention_mask: ArrayLike | None = None,
        token_type_ids: ArrayLike | None = None,
        dequantize: bool = True,
        *,
        pixel_values: ArrayLike | None = None,
    ) -> dict[str, Any]:
        """Run the model on token ids, or on images.

        Parameters
        ----------
        input_ids : array_like of int
            Token ids [batch, length], any batch; no longer than the longest compiled sequence.
        attention_mask : array_like of int or bool, optional
            1 for tokens, 0 for padding, of the same shape; all 1 by default.
        token_type_ids : array_like of int, optional
            Of the same shape; all 0 by default.
        dequantize : bool
            Give real values (float32) instead of integers with their scale.
        pixel_values : array_like of float, optional
            Images [batch, channels, height, width] as the model's image processor gives them, for
            a model that takes images; they become integers here (`ibert_tvm.pixels`).

        Returns
        -------
        dict of str to numpy.ndarray or IntegerOutput
            Outputs by name, padding cut off. What a padding token of the input itself gives in an
            output per token has no meaning.

        Raises
        ------
        InputError
            If an input's dtype, rank, shape or values do not fit the model.
        """
        inputs = check_inputs(
            self.metadata,
            {
                "input_ids": input_ids,
                "attention_mask": attention_mask,
                "token_type_ids": token_type_ids,
                "pixel_values": pixel_values,
            },
        )
        batch, length = self._extents(inputs)
        parts = [
            self._call(call, inputs) for call in plan_calls(self.metadata.functions, batch, length)
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
        texts : sequence of str or of (str, str)
            Texts or pairs of texts, none of them empty.
        max_length : int, optional
            Truncate to this many tokens; by default to the longest compiled sequence.

        Returns
        -------
        TokenizedBatch

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
        texts : sequence of str or of (str, str)
            Texts or pairs of texts. Longer ones than the longest compiled sequence are cut off,
            with a warning in the log.
        dequantize : bool
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
        batch = self.encode(texts)
        inputs = batch.inputs([record.name for record in self.metadata.inputs])
        lengths = batch.attention_mask.sum(axis=1)
        compiled = np.unique([function.seq_len for function in self.metadata.functions])
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
            extents = {"batch": len(texts), "seq_len": batch.input_ids.shape[1]}
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

    def _call(self, call: Call, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run one compiled function on some rows; return the outputs with the padding cut off."""
        _, length = self._extents(inputs)
        name = call.function.name
        with self._lock:
            if name not in self._stages:
                self._stages[name] = _Stage(self, call.function)
            stage = self._stages[name]
            stage.fill(inputs, call.start, call.rows)
            arguments = [*stage.tensors, *self._parameters]
            results = self.engine.call(name, arguments, self.num_threads)
            # Copies: the memory belongs to the next call.
            return [
                np.array(self._cut(record, array, call, length))
                for record, array in zip(self.metadata.outputs, results, strict=True)
            ]

    def _extents(self, inputs: Mapping[str, NDArray[Any]]) -> tuple[int, int]:
        """Rows and tokens of a call's inputs; images have one number of tokens."""
        first = next(iter(inputs.values()))
        images = self.metadata.info.image_size is not None
        return first.shape[0], self.metadata.max_seq_len if images else first.shape[1]

    @staticmethod
    def _cut(record: OutputRecord, array: NDArray[Any], call: Call, length: int) -> NDArray[Any]:
        extents: dict[int | str, int] = {"batch": call.rows, "seq_len": length}
        index = tuple(
            slice(extents[axis]) if axis in extents else slice(None) for axis in record.shape
        )
        return array[index]


class _Stage:
    """Buffers that hold the padded inputs of one compiled function.

    They are filled anew by every call, under the library's lock, and never allocated again.
    """

    def __init__(self, library: Library, function: FunctionRecord) -> None:
        info, records = library.metadata.info, library.metadata.inputs
        shape = (function.batch, *(info.image_size or (function.seq_len,)))
        arrays = library.engine.buffers([(shape, record.dtype) for record in records])
        self.arrays = {r.name: array for r, array in zip(records, arrays, strict=True)}
        self.tensors = [library.engine.tensor(array) for array in self.arrays.values()]
        # Padding ids must be the model's own: RoBERTa counts positions by them.
        self.padding = {name: info.pad_token_id * (name == "input_ids") for name in self.arrays}

    def fill(self, inputs: Mapping[str, NDArray[Any]], start: int, rows: int) -> None:
        """Copy rows of the inputs to the front; what is left is padding."""
        for name, array in self.arrays.items():
            given = inputs[name][start : start + rows]
            if given.shape != array.shape:
                array.fill(self.padding[name])
            array[: given.shape[0], : given.shape[1]] = given


def load_library(
    path: str | os.PathLike[str],
    num_threads: int | None = None,
    emulate: bool = False,
    device: str | None = None,
) -> Library:
    """Load a compiled library.

    Parameters
    ----------
    path : path
        The library that `ibert compile` or `CompiledModel.export` wrote.
    num_threads : int, optional
        Threads per call; by default the processors that this process may use (or the environment
        variable TVM_NUM_THREADS). All libraries of a process share one pool of threads. A library
        without runtime uses one.
    emulate : bool
        Run a library without runtime, of whatever Linux target, under the emulator of its target:
        to see what another machine will compute, not how fast.
    device : str, optional
        ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. A library runs on one kind of device, and by default
        on the first of it.

    Returns
    -------
    Library

    Raises
    ------
    LibraryError
        If the file is missing, damaged, or not made by this project.
    TargetError
        If it was compiled for another processor than this machine's.
    DeviceError
        If it was compiled for a GPU, and there is none here that can run it.
    UsageError
        If `num_threads` is not positive, or given for a GPU; or if the library's kernels do not run
        on that kind of device.
    """
    if num_threads is not None and num_threads < 1:
        raise UsageError(f"num_threads is {num_threads}", todo="give a number of at least 1")
    metadata = read_metadata(path)
    engine = load_engine(metadata, choose_device(metadata, device), num_threads, emulate)
    several = metadata.runtime == "tvm" and metadata.device == "cpu"
    return Library(metadata, (num_threads or default_threads()) if several else 1, engine)


def run(
    path: str | os.PathLike[str],
    *,
    dequantize: bool = True,
    device: str | None = None,
    **inputs: Any,
) -> dict[str, Any]:
    """Load a library, or use it again if it was loaded before, and run it.

    Parameters
    ----------
    path : path
        The library.
    dequantize : bool
        Give real values instead of integers with their scale.
    device : str, optional
        As `load_library` takes.
    **inputs : array_like
        `input_ids`, and optionally `attention_mask` and `token_type_ids`, or `pixel_values`, as
        `Library.run` takes.

    Returns
    -------
    dict of str to numpy.ndarray or IntegerOutput
        Outputs by name.

    Raises
    ------
    InputError
        If the inputs do not fit the model.
    LibraryError, TargetError
        As `load_library` raises.
    """
    known = ("input_ids", "attention_mask", "token_type_ids", "pixel_values")
    unknown = sorted(set(inputs) - set(known))
    if unknown or not {"input_ids", "pixel_values"} & set(inputs):
        raise InputError(
            f"unknown input {', '.join(unknown)}" if unknown else "input_ids is missing",
            todo=f"the inputs are {', '.join(known)}; the first is required, or the last for a "
            "model of images",
        )
    return _cached_library(_identity(path), device).run(**inputs, dequantize=dequantize)


def _identity(path: str | os.PathLike[str]) -> tuple[str, int, int, int]:
    """Path with what tells one content of it from the next: a rewritten file is loaded again."""
    file = Path(path).expanduser()
    try:
        status = file.stat()
    except OSError:
        return (str(file), 0, 0, 0)
    return (str(file.resolve()), status.st_ino, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4)
def _cached_library(identity: tuple[str, int, int, int], device: str | None) -> Library:
    return load_library(identity[0], device=device)
