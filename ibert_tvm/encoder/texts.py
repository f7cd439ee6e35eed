"""Texts through a library: what all methods of `Encoder` share."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.errors import InputError, UsageError
from ..common.extras import require
from ..common.types import Array, Floats
from ..model.heads import heads_with, kinds_of
from ..model.model_info import PostProcessing
from ..model.tokenization import Tokenizer, Window
from ..runtime import IntegerOutput, Library
from ..runtime.metadata import OutputRecord
from .batches import Part, Text, run_batches

if TYPE_CHECKING:
    import torch

    from .pool import Pool

# Arrays as torch's tensors, for callers who ask for these, and what these give as arrays.


def tensor_of(array: Array) -> torch.Tensor:
    """Return an array as a tensor that shares its memory.

    Parameters
    ----------
    array
        Of any shape.

    Returns
    -------
    torch.Tensor
        Of the same shape and type.

    Raises
    ------
    MissingExtraError
        If torch is not installed.
    """
    require("torch", to="a tensor", otherwise=", or ask for arrays (convert_to_numpy=True)")
    import torch

    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))


def are_tensors(*values: Any) -> bool:
    """Whether all are tensors, or sequences of tensors, of which the first is looked at."""
    torch = sys.modules.get("torch")
    firsts = [v[0] if isinstance(v, list | tuple) and v else v for v in values]
    return torch is not None and all(isinstance(each, torch.Tensor) for each in firsts)


def array_of(values: Any) -> Floats:
    """Return numbers of an array, a tensor on any device, or a sequence of these as an array."""
    if not are_tensors(values):
        return np.asarray(values, np.float32)
    if isinstance(values, list | tuple):
        return np.stack([array_of(value) for value in values])
    return values.detach().cpu().float().numpy()


_logger = logging.getLogger(__name__)


class TextModel:
    """A library that takes texts, its prompts, and where it runs."""

    library: Library
    tokenizer: Tokenizer
    prompts: dict[str, str]
    default_prompt_name: str | None
    post_processing: PostProcessing

    @property
    def max_seq_length(self) -> int:
        """Tokens that texts are cut off at; a `UsageError` where so many were not compiled."""
        return self._max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, tokens: int) -> None:
        metadata = self.library.metadata
        if type(tokens) is not int or not 0 < tokens <= metadata.max_seq_len:
            raise UsageError(
                f"texts cannot be cut off at {tokens} tokens",
                where=str(metadata.path),
                why=f"the longest compiled length is {metadata.max_seq_len}",
                todo="give a max_seq_length up to it, or compile with a larger --seq-len",
            )
        self._max_seq_length = tokens

    def get_max_seq_length(self) -> int:
        """Tokens that texts are cut off at."""
        return self.max_seq_length

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the model's outputs are, of `ibert_tvm.model.heads.KINDS`."""
        return tuple(record.kind for record in self.library.metadata.outputs)

    @property
    def num_labels(self) -> int:
        """Classes of the model; 0 where it has none."""
        return len(self.labels)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, empty where the model has none."""
        count = self._size(("logits", "token_logits")) or 0
        return tuple(map(self.library.metadata.info.label, range(count)))

    @property
    def device(self) -> str:
        """What the library runs on: ``"cpu"``, ``"cuda:0"`` ..."""
        return self.library.device

    def start_multi_process_pool(self, target_devices: Sequence[str] | None = None) -> Pool:
        """Start processes that run the library, for `encode` and `predict`.

        Parameters
        ----------
        target_devices
            A device for each process; by default a process for each processor.

        Returns
        -------
        Pool
            To be given to `stop_multi_process_pool` in the end, or used as a context manager.

        Raises
        ------
        UsageError
            If the library does not run on such a device.
        """
        for device in target_devices or ():
            self._check_device(device, any_number=True)
        from .pool import Pool  # imports multiprocessing

        return Pool(self.library, target_devices)

    @staticmethod
    def stop_multi_process_pool(pool: Pool) -> None:
        """Wait for a pool's processes, and end them."""
        pool.shutdown()

    def prompt_text(self, prompt: str | None = None, name: str | None = None) -> str:
        """What `encode` puts before texts.

        Parameters
        ----------
        prompt, name
            Its arguments `prompt` and `prompt_name`.

        Returns
        -------
        str
            May be empty.

        Raises
        ------
        UsageError
            If there is no prompt of that name.
        """
        if prompt is not None:
            return prompt
        chosen = name if name is not None else self.default_prompt_name
        if chosen is None:
            return ""
        if chosen not in self.prompts:
            raise UsageError(
                f"the model has no prompt {chosen!r}",
                why=f"its prompts are {', '.join(self.prompts) or '(none)'}",
                todo="give the name of one of them, or prompt=TEXT",
            )
        return self.prompts[chosen]

    def output_name(self, method: str) -> str:
        """Name of the output that a method reads.

        Parameters
        ----------
        method
            A method's name, or ``token_embeddings``.

        Returns
        -------
        str
            Of `library.metadata.outputs`.

        Raises
        ------
        UsageError
            If the model has none.
        """
        return self._output(method).name

    def _output(self, method: str) -> OutputRecord:
        found = self._first(kinds_of(method))
        if found is None:
            raise self._refusal(method, f"its head is {self.library.metadata.info.head}")
        return found

    def _refusal(self, method: str, why: str, todo: str = "") -> UsageError:
        heads = [head.name for head in heads_with(method)]
        named = " or ".join(filter(None, (", ".join(heads[:-1]), heads[-1])))
        kinds = ", ".join(self.kinds).replace("_", " ")
        return UsageError(
            f"the model cannot {method}"
            if method != "token_embeddings"
            else "the model gives no token embeddings",
            where=str(self.library.metadata.path),
            why=f"{why}; it gives {kinds}",
            todo=todo or f"compile the model with the head {named}",
        )

    def _first(self, kinds: Sequence[str]) -> OutputRecord | None:
        """Return the first output of one of these kinds."""
        return next((each for each in self.library.metadata.outputs if each.kind in kinds), None)

    def _size(self, kinds: Sequence[str]) -> int | None:
        """Last axis of the first output of one of these kinds."""
        record = self._first(kinds)
        return None if record is None else int(record.shape[-1])

    def _check_device(self, device: Any, any_number: bool = False) -> None:
        """Refuse a device that the library does not run on."""
        kind, wanted = self.device.partition(":")[0], str(device)
        same = wanted.partition(":")[0] == kind
        if device is not None and wanted not in (kind, self.device) and not (same and any_number):
            raise UsageError(
                f"the library does not run on {wanted}",
                where=str(self.library.metadata.path),
                why=f"it was loaded on {self.device}",
                todo=f"open it with Encoder(..., device={wanted!r})"
                if same
                else "leave device out, or compile the model for a target of that kind",
            )

    @contextmanager
    def _run_by(
        self, device: str | Sequence[str] | None, pool: Pool | None, chunk_size: int | None
    ) -> Iterator[Callable[..., Iterator[Part]]]:
        """Give what runs batches: this process, those of a pool, or one process per device."""
        if pool is not None:
            yield partial(pool.run, chunk_size=chunk_size)
        elif isinstance(device, list | tuple):
            with self.start_multi_process_pool(device) as started:
                yield partial(started.run, chunk_size=chunk_size)
        else:
            self._check_device(device)
            yield self._run

    def _run(self, texts: Sequence[Text], batch_size: int, max_length: int) -> Iterator[Part]:
        return run_batches(self.library, self.tokenizer, texts, batch_size, max_length)

    def _vectors(
        self,
        method: str,
        texts: Sequence[Text],
        batch_size: int,
        bar: bool | None,
        run: Callable[..., Iterator[Part]] | None = None,
    ) -> IntegerOutput:
        """One row of integers per text."""
        record = self._output(method)
        whole, scale = np.zeros((len(texts), int(record.shape[-1])), record.dtype), record.scale
        for part in self._parts(texts, batch_size, bar, run or self._run):
            # That of the library that ran, which another may have replaced meanwhile.
            output = part.outputs[record.name]
            whole[part.rows], scale = output.values, output.scale
        return IntegerOutput(whole, scale)

    def _parts(
        self,
        texts: Sequence[Text],
        batch_size: int,
        bar: bool | None,
        run: Callable[..., Iterator[Part]],
    ) -> Iterator[Part]:
        """Run all texts; say so where some were cut off."""
        _check_size(batch_size)
        cut = 0
        with _progress_bar(bar, len(texts)) as advance:
            for part in run(texts, batch_size, self.max_seq_length):
                cut += len(part.tokens.truncated)
                yield part
                advance(len(part.rows))
        if cut:
            _logger.warning(
                "%d of %d texts were cut off at %d tokens", cut, len(texts), self.max_seq_length
            )

    def _run_windows(self, windows: Sequence[Window], name: str, batch_size: int) -> list[Floats]:
        """Outputs of every token of every window."""
        _check_size(batch_size)
        library = self.library
        inputs = [record.name for record in library.metadata.inputs]
        results: list[Floats] = []
        for start in range(0, len(windows), batch_size):
            chosen = windows[start : start + batch_size]
            batch = self.tokenizer.batch_of(chosen)
            given: dict[str, Any] = dict(batch.inputs(inputs))
            values = library.run(**given)[name]
            results += [row[: len(w.ids)] for row, w in zip(values, chosen, strict=True)]
        return results


def converted(array: Array, single: bool, to_numpy: bool, to_tensor: bool) -> Any:
    """Rows as callers ask for them: one of them, all in an array or a tensor, or a list."""
    if to_numpy and not to_tensor:
        return array[0] if single else array
    tensor = tensor_of(array)
    if single:
        return tensor[0]
    return tensor if to_tensor else list(tensor)


def _check_size(batch_size: int) -> None:
    if batch_size < 1:
        raise UsageError(f"batch_size is {batch_size}", todo="give a number of at least 1")


@contextmanager
def _progress_bar(wanted: bool | None, total: int) -> Iterator[Callable[[int], None]]:
    """Give what is called with the texts that were done since; a bar on stderr where wanted."""
    if wanted is None:
        wanted = _logger.getEffectiveLevel() in (logging.INFO, logging.DEBUG)
    if not wanted:
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("encoding", total=total)
        yield lambda count: bar.advance(task, count)


def listed(texts: Any, pairs: bool = False) -> list[Any]:
    """Texts of any sequence as a list; what is none among them is named."""
    items = texts.tolist() if isinstance(texts, np.ndarray) else list(texts)
    for index, item in enumerate(items):
        if not isinstance(item, str | tuple if pairs else str):
            raise InputError(
                f"text {index} is not a text",
                why=f"it is {item!r}",
                todo="give a string" + (", or a pair of strings" if pairs else ""),
            )
    return items
