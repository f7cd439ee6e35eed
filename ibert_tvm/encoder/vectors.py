"""Vectors of texts, as sentence-transformers' `SentenceTransformer` gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.errors import UsageError, check_choice
from ..common.types import Array
from ..model.heads import KINDS, kinds_of
from ..model.scores import LATE, PAIRWISE, PRECISIONS, SIMILARITIES, normalized, quantized
from .batches import Part, Text
from .texts import TextModel, are_tensors, array_of, converted, listed, tensor_of

if TYPE_CHECKING:
    from .pool import Pool


class Vectors(TextModel):
    """The methods that give vectors, and those that compare them."""

    @property
    def embedding_size(self) -> int | None:
        """Channels of the vectors; None where the model gives none."""
        size, most = self._size(kinds_of("encode")), self.post_processing.dimensions
        return size if size is None or most is None else min(size, most)

    def get_embedding_dimension(self) -> int | None:
        """The same, as sentence-transformers calls it."""
        return self.embedding_size

    get_sentence_embedding_dimension = get_embedding_dimension

    @property
    def truncate_dim(self) -> int | None:
        """Channels that vectors are cut to; None to keep all."""
        return self.post_processing.dimensions

    @truncate_dim.setter
    def truncate_dim(self, channels: int | None) -> None:
        _check_channels(channels)
        self.post_processing = replace(self.post_processing, dimensions=channels)

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Have another `truncate_dim` in a block."""
        before = self.truncate_dim
        self.truncate_dim = truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    @property
    def similarity_fn_name(self) -> str:
        """How `similarity` compares vectors: of the source's settings, else ``cosine``."""
        return self.post_processing.similarity or "cosine"

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: str | None) -> None:
        name = getattr(name, "value", name)  # an enumeration in sentence-transformers
        if name is not None:
            check_choice("similarity_fn_name", name, SIMILARITIES)
        self.post_processing = replace(self.post_processing, similarity=name)

    def encode(
        self,
        inputs: str | Sequence[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | Sequence[str] | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: Pool | None = None,
        chunk_size: int | None = None,
        *,
        task: str | None = None,
        sentences: str | Sequence[str] | None = None,
    ) -> Any:
        """Vectors of texts; every argument means what it means in sentence-transformers.

        Parameters
        ----------
        inputs
            A text, which gives one vector, or texts.
        prompt_name
            Name in `prompts` of what is put before every text; by default `default_prompt_name`.
        prompt
            What is put before every text; then `prompt_name` is not looked at.
        batch_size
            Texts of a batch.
        show_progress_bar
            Show one on stderr; by default where this package logs information.
        output_value : {"sentence_embedding", "token_embeddings", None}
            Vectors of texts; a list of tensors [tokens, channels], one per text; or for each text
            a dictionary of tensors: its tokens and every output of the model.
        precision : {"float32", "int8", "uint8", "binary", "ubinary"}
            Of vectors of texts, see `ibert_tvm.model.scores.quantized`.
        convert_to_numpy
            Give one array; if neither this nor the next, a list of tensors.
        convert_to_tensor
            Give one torch tensor instead of an array.
        device
            The kind of device that the library runs on, or a list: a process for each.
        normalize_embeddings
            Scale vectors to length 1.
        truncate_dim
            Cut vectors to so many channels; by default to what the source's settings say.
        pool
            What `start_multi_process_pool` returned: its processes run the library.
        chunk_size
            Texts that a process is given at a time.
        task
            Not used: models whose modules depend on it cannot be imported.
        sentences
            Another name of `inputs`.

        Returns
        -------
        numpy.ndarray, torch.Tensor, list or dict
            [texts, channels], or [channels] of one text; of precision ``binary`` and ``ubinary``
            [texts, channels / 8].

        Raises
        ------
        UsageError
            If the model gives no such vectors, or an argument has no meaning.
        InputError
            If a text is no text.
        """
        if output_value is not None:
            allowed = ("sentence_embedding", "token_embeddings")
            check_choice("output_value", output_value, allowed, "None asks for everything")
        precision = precision or "float32"
        check_choice("precision", precision, PRECISIONS)
        if precision != "float32" and output_value != "sentence_embedding":
            raise UsageError(
                f"precision is {precision!r} for the output_value {output_value!r}",
                why="vectors of texts alone are quantised",
                todo="leave one of them out",
            )
        _check_channels(truncate_dim)
        inputs = sentences if inputs is None else inputs
        single = isinstance(inputs, str)
        prefix = self.prompt_text(prompt, prompt_name)
        items = [inputs] if isinstance(inputs, str) else listed(inputs)
        texts: list[Text] = [prefix + text for text in items] if prefix else list(items)
        results: list[Any]
        with self._run_by(device, pool, chunk_size) as run:
            if output_value is None:
                parts = self._parts(texts, batch_size, show_progress_bar, run)
                results = self._features(parts, len(texts), truncate_dim)
                return results[0] if single else results
            if output_value == "token_embeddings":
                name = self.output_name("token_embeddings")
                results = [None] * len(texts)
                for part in self._parts(texts, batch_size, show_progress_bar, run):
                    values = tensor_of(part.outputs[name].dequantize())
                    for place, row in enumerate(part.rows):
                        results[row] = values[place, : int(part.tokens.attention_mask[place].sum())]
                return results[0] if single else results
            rows = self._vectors("encode", texts, batch_size, show_progress_bar, run)
        vectors: Array = self.post_processing.finished(rows.dequantize(), truncate_dim)
        if normalize_embeddings:
            vectors = normalized(vectors)
        if precision != "float32" and len(vectors):
            vectors = quantized(vectors, precision)
        return converted(vectors, single, convert_to_numpy, convert_to_tensor)

    def encode_query(self, inputs: Any = None, *arguments: Any, **options: Any) -> Any:
        """As `encode`, with the model's prompt ``query`` where it has one and none is chosen."""
        return self._encode_with("query", inputs, *arguments, **options)

    def encode_document(self, inputs: Any = None, *arguments: Any, **options: Any) -> Any:
        """As `encode`, with the prompt ``document``, likewise.

        A prompt of another name, as ``passage``, is used where it is chosen only: so does the
        method of sentence-transformers.
        """
        return self._encode_with("document", inputs, *arguments, **options)

    def _encode_with(
        self,
        name: str,
        inputs: Any,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        if prompt is None and prompt_name is None:
            # No prompt at all where the model has none of that name: not the default one.
            prompt = self.prompts.get(name, "")
        return self.encode(inputs, prompt_name, prompt, *arguments, **options)

    def _features(
        self, parts: Iterator[Part], count: int, truncate_dim: int | None
    ) -> list[dict[str, Any]]:
        names = [record.name for record in self.library.metadata.inputs]
        results: list[dict[str, Any]] = [{} for _ in range(count)]
        for part in parts:
            arrays: dict[str, Array] = dict(part.tokens.inputs(names))
            for record in self.library.metadata.outputs:
                name = KINDS[record.kind].feature or record.name
                arrays[name] = part.outputs[record.name].dequantize()
                if record.kind in kinds_of("encode"):
                    arrays[name] = self.post_processing.finished(arrays[name], truncate_dim)
            tensors = {name: tensor_of(array) for name, array in arrays.items()}
            for place, row in enumerate(part.rows):
                results[row] = {name: tensor[place] for name, tensor in tensors.items()}
        return results

    def similarity(self, embeddings1: Any, embeddings2: Any, function: str | None = None) -> Any:
        """Compare every vector with every other.

        Parameters
        ----------
        embeddings1, embeddings2 : array or sequence
            Vectors of texts [texts, channels], or for ``maxsim`` a list of [tokens, channels].
        function : {"cosine", "dot", "euclidean", "manhattan", "maxsim", "meanmaxsim"}, optional
            By default `similarity_fn_name`. Distances are negative.

        Returns
        -------
        numpy.ndarray or torch.Tensor
            float32 [texts of one, texts of other], larger where they are closer; a tensor where
            tensors are given.

        Raises
        ------
        UsageError
            If there is no such function.
        """
        return self._compared(SIMILARITIES, embeddings1, embeddings2, function, np.atleast_2d)

    def similarity_pairwise(
        self, embeddings1: Any, embeddings2: Any, function: str | None = None
    ) -> Any:
        """Compare every vector with the one at the same place, float32 [texts]."""
        return self._compared(PAIRWISE, embeddings1, embeddings2, function, np.asarray)

    def _compared(
        self,
        functions: Mapping[str, Callable[[Any, Any], Any]],
        one: Any,
        other: Any,
        function: str | None,
        shaped: Callable[[Array], Array],
    ) -> Any:
        chosen = function or self.similarity_fn_name
        check_choice("function", chosen, functions)
        sides = [
            [array_of(item) for item in side] if chosen in LATE else shaped(array_of(side))
            for side in (one, other)
        ]
        result = np.asarray(functions[chosen](*sides), np.float32)
        return tensor_of(result) if are_tensors(one, other) else result

    def preprocess(self, inputs: Sequence[Text], prompt: str | None = None) -> dict[str, Any]:
        """Tokens of texts, or of pairs of texts.

        Parameters
        ----------
        inputs
            The texts, cut off at `max_seq_length`.
        prompt
            What is put before every text.

        Returns
        -------
        dict of str to torch.Tensor
            int32 [texts, tokens] each: the model's inputs, and ``attention_mask``.

        Raises
        ------
        InputError
            If a text is no text.
        UsageError
            If torch is not installed.
        """
        before = prompt or ""
        texts: list[Text] = [
            (before + text[0], *text[1:]) if isinstance(text, tuple) else before + text
            for text in listed(inputs, pairs=True)
        ]
        batch = self.tokenizer.encode(texts, self.max_seq_length, allow_empty=True)
        names = {"attention_mask", *(record.name for record in self.library.metadata.inputs)}
        return {name: tensor_of(array) for name, array in batch.inputs([*names]).items()}

    tokenize = preprocess

    def evaluate(self, evaluator: Callable[..., Any], output_path: str | None = None) -> Any:
        """What an evaluator of sentence-transformers measures of this encoder."""
        if output_path is not None:
            Path(output_path).mkdir(parents=True, exist_ok=True)
        return evaluator(self, output_path)

    @property
    def modalities(self) -> list[str]:
        """What it takes: texts."""
        return ["text"]

    def supports(self, modality: Any) -> bool:
        """Whether it takes inputs of this kind."""
        return modality in self.modalities


def _check_channels(channels: int | None) -> None:
    if channels is not None and (type(channels) is not int or channels < 1):
        raise UsageError(f"truncate_dim is {channels!r}", todo="give a number of at least 1")
