"""`Encoder`: a compiled model for those who have strings."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import InputError, LibraryError, UsageError, check_choice
from ..common.types import Array
from ..frontend.sources import is_source
from ..model.heads import KINDS, heads_with, kinds_of
from ..model.scores import (
    FUNCTIONS,
    LATE,
    SIMILARITIES,
    normalized,
    ranked_classes,
    ranked_documents,
)
from ..model.spans import LONGEST_ANSWER, WINDOW, best_answer
from ..model.tokenization import Tokenizer, Window
from ..runtime import IntegerOutput, Library, load_library
from .batches import Part, Text, run_batches
from .entities import STRATEGIES, tagged_text
from .progress import progress_bar
from .tensors import tensor_of

_logger = logging.getLogger(__name__)


class Encoder:
    """Texts in; vectors, scores, classes, entities or answers out, whatever the model's head gives.

    The result for a text is the same, bit for bit, in whatever company it is given, and the same as
    that of `Library.run`. Methods may be called from several threads.

    Parameters
    ----------
    model : path or Library
        A library that `ibert compile` wrote. Or what one can be made of: a NAME.ibert folder, a
        model folder, an entry of the Hugging Face hub's cache, an ONNX file. The library is kept
        for the next time (`ibert_tvm.encoder.prepared`).
    num_threads
        As `load_library` takes.
    device
        As `load_library` takes.
    target
        What to compile for, where a library is made.
    head
        The head to import, where a model is; by default the one that its files ask for.
    max_seq_length
        Longer texts are cut off at so many tokens. By default the longest compiled length; where a
        library is made, what a sentence-transformers folder says, at most 512.

    Attributes
    ----------
    library : Library
        What runs.
    max_seq_length
        Tokens that texts are cut off at.
    prompts : dict of str to str
        Prompts of the model by name.
    default_prompt_name : str or None
        The prompt of texts for which none is chosen.
    post_processing : PostProcessing
        What the model's own library does with its outputs, as the methods do.

    Raises
    ------
    UsageError
        If the model takes no texts, has no tokenizer, or `max_seq_length` was not compiled.
    IbertError
        As `load_library` raises, and where a library is made, `load`, `quantize` and `compile`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Library,
        *,
        num_threads: int | None = None,
        device: str | None = None,
        target: str = "host",
        head: str | None = None,
        max_seq_length: int | None = None,
    ) -> None:
        if isinstance(model, Library):
            self.library = model
        else:
            path = Path(model).expanduser()
            if head is not None and path.exists() and not is_source(path):
                raise UsageError(
                    "a head cannot be chosen any more",
                    where=str(path),
                    why="it was quantised with the one that it has",
                    todo="leave head out, or give the model folder",
                )
            if path.is_dir() or is_source(path):
                from .prepared import Options, prepared_library  # brings the compiler along

                path = prepared_library(path, Options(target, head, max_seq_length))
            self.library = load_library(path, num_threads=num_threads, device=device)
        metadata = self.library.metadata
        self._loaded_with: dict[str, Any] = {"num_threads": num_threads, "device": device}
        self.max_seq_length = max_seq_length or metadata.max_seq_len
        if metadata.info.image_size is not None or self.library.tokenizer is None:
            raise UsageError(
                "the model cannot take texts",
                where=str(metadata.path),
                why="it takes images or features"
                if metadata.info.image_size is not None
                else "it came without tokenizer files",
                todo="use `load_library` and `Library.run`",
            )
        self.tokenizer: Tokenizer = self.library.tokenizer
        self.prompts = dict(metadata.info.prompts)
        self.default_prompt_name = metadata.info.default_prompt_name
        self.post_processing = metadata.info.post_processing

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

    def close(self) -> None:
        """Wait for calls that run, and let go of all buffers; later calls are refused."""
        self.library.close()

    def _copied(self, _memo: object = None) -> Encoder:
        """An encoder with settings of its own, which runs the same library."""
        copied = object.__new__(Encoder)
        copied.__dict__ = {**self.__dict__, "prompts": dict(self.prompts)}
        return copied

    __copy__ = __deepcopy__ = _copied

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path of the library, with its digest, and not its code."""
        metadata = self.library.metadata
        options = {**self._loaded_with, "max_seq_length": self.max_seq_length}
        state = {"prompts": self.prompts, "default_prompt_name": self.default_prompt_name}
        return _loaded_again, (str(metadata.path.absolute()), metadata.digest, options), state

    def __enter__(self) -> Encoder:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Encoder({str(self.library.metadata.path)!r}, {', '.join(self.kinds)})"

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the model's outputs are, of `ibert_tvm.model.heads.KINDS`."""
        return tuple(record.kind for record in self.library.metadata.outputs)

    @property
    def embedding_size(self) -> int | None:
        """Channels of the vectors; None where the model gives none."""
        size, most = self._size(kinds_of("encode")), self.post_processing.dimensions
        return size if size is None or most is None else min(size, most)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, empty where the model has none."""
        count = self._size(("logits", "token_logits")) or 0
        return tuple(map(self.library.metadata.info.label, range(count)))

    def encode(
        self,
        sentences: str | Sequence[str],
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        convert_to_tensor: bool = False,
        convert_to_numpy: bool = True,
        output_value: str | None = "sentence_embedding",
        truncate_dim: int | None = None,
    ) -> Any:
        """Vectors of texts; every argument means what it means in sentence-transformers.

        Parameters
        ----------
        sentences
            A text, which gives one vector, or texts.
        batch_size
            Texts of a batch.
        show_progress_bar
            Show one on stderr; by default where this package logs information.
        normalize_embeddings
            Scale vectors to length 1.
        prompt_name
            Name in `prompts` of what is put before every text; by default `default_prompt_name`.
        prompt
            What is put before every text; then `prompt_name` is not looked at.
        convert_to_tensor
            Give one torch tensor instead of an array.
        convert_to_numpy
            Give one array; if neither this nor the above, a list of tensors.
        output_value : {"sentence_embedding", "token_embeddings", None}
            Vectors of texts; a list of tensors [tokens, channels], one per text; or for each text
            a dictionary of tensors: its tokens and every output of the model.
        truncate_dim
            Cut vectors to so many channels; by default to what the source's settings say.

        Returns
        -------
        numpy.ndarray, torch.Tensor, list or dict
            float32 [texts, channels], or [channels] of one text.

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
        if truncate_dim is not None and truncate_dim < 1:
            raise UsageError(f"truncate_dim is {truncate_dim}", todo="give a number of at least 1")
        single = isinstance(sentences, str)
        prefix = self.prompt_text(prompt, prompt_name)
        items = [sentences] if isinstance(sentences, str) else _listed(sentences)
        texts: list[Text] = [prefix + text for text in items] if prefix else list(items)
        results: list[Any]
        if output_value is None:
            results = self._features(texts, batch_size, show_progress_bar, truncate_dim)
            return results[0] if single else results
        if output_value == "token_embeddings":
            name = self.output_name("token_embeddings")
            results = [None] * len(texts)
            for part in self._parts(texts, batch_size, show_progress_bar):
                values = tensor_of(part.outputs[name].dequantize())
                for place, row in enumerate(part.rows):
                    results[row] = values[place, : int(part.tokens.attention_mask[place].sum())]
            return results[0] if single else results
        vectors = self._vectors("encode", texts, batch_size, show_progress_bar).dequantize()
        vectors = self.post_processing.finished(vectors, truncate_dim)
        if normalize_embeddings:
            vectors = normalized(vectors)
        if convert_to_tensor:
            return tensor_of(vectors[0] if single else vectors)
        if convert_to_numpy:
            return vectors[0] if single else vectors
        return tensor_of(vectors[0]) if single else list(tensor_of(vectors))

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """As `encode`, with the model's prompt ``query`` where it has one and none is chosen."""
        return self._encode_with("query", sentences, options)

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """As `encode`, with the prompt ``document``, likewise.

        A prompt of another name, as ``passage``, is used where it is chosen only: so does the
        method of sentence-transformers.
        """
        return self._encode_with("document", sentences, options)

    def similarity(self, one: Any, other: Any, function: str | None = None) -> NDArray[np.float32]:
        """Compare every vector with every other, as sentence-transformers does.

        Parameters
        ----------
        one, other : array or sequence
            Vectors of texts [texts, channels], or for ``maxsim`` a list of [tokens, channels].
        function : {"cosine", "dot", "euclidean", "manhattan", "maxsim", "meanmaxsim"}, optional
            By default what the source's settings say, else ``cosine``. Distances are negative.

        Returns
        -------
        numpy.ndarray
            float32 [texts of one, texts of other], larger where they are closer.

        Raises
        ------
        UsageError
            If there is no such function.
        """
        chosen = function or self.post_processing.similarity or "cosine"
        check_choice("function", chosen, SIMILARITIES)
        late = chosen in LATE
        sides = [
            [np.asarray(item, np.float32) for item in side]
            if late
            else np.atleast_2d(np.asarray(side, np.float32))
            for side in (one, other)
        ]
        return np.asarray(SIMILARITIES[chosen](*sides), np.float32)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        batch_size: int = 32,
        function: str | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> list[dict[str, Any]]:
        """Order documents by the score of each with the query, as ``CrossEncoder.rank`` does.

        Parameters
        ----------
        query
            The query.
        documents
            Any number.
        top_k
            Give only the best.
        batch_size
            Pairs of a batch.
        function : {"softmax", "sigmoid", "none", "tanh", "relu"}, optional
            What makes the score of a logit; by default what the source says, else sigmoid.
        prompt_name, prompt
            What is put before the query; see `encode`.

        Returns
        -------
        list of dict
            ``corpus_id``, the place of a document, and ``score``, a float32, best first; of equal
            scores the earlier document.

        Raises
        ------
        UsageError
            If the model gives no single score for a pair, or an argument has no meaning.
        InputError
            If a text is no text.
        """
        self.output_name("rerank")
        if len(self.labels) != 1:
            raise self._refusal(
                "rerank",
                f"it has {len(self.labels)} classes, and a score is one",
                "give a model with one class, a cross-encoder",
            )
        query = self.prompt_text(prompt, prompt_name) + query
        pairs: list[Text] = [(query, document) for document in _listed(documents)]
        logits = self._vectors("rerank", pairs, batch_size, False).dequantize()
        ranked = ranked_documents(logits, self.score_function("rerank", function), top_k)
        return [{"corpus_id": place, "score": score} for place, score in ranked]

    def classify(
        self,
        texts: str | Sequence[str | tuple[str, str]],
        top_k: int | None = 1,
        batch_size: int = 32,
        function: str | None = None,
        threshold: float | bool | None = None,
    ) -> Any:
        """Classes of texts, or of pairs of texts.

        Parameters
        ----------
        texts
            A text, or any number of texts or pairs.
        top_k
            1 gives the best class; None all, and another number so many, as a list.
        batch_size
            Texts of a batch.
        function : {"softmax", "sigmoid", "none", "tanh", "relu"}, optional
            What makes scores of logits; by default what the model's ``problem_type`` says, else
            softmax, and sigmoid for a single class.
        threshold
            Leave out classes with a lower score; True for the thresholds that the source states.
            With one, every text has a list.

        Returns
        -------
        dict, or list
            ``label`` and ``score`` for each text, or a list of these, best first; without the outer
            list for one text.

        Raises
        ------
        UsageError
            If the model does not classify texts, or an argument has no meaning.
        InputError
            If a text is no text.
        """
        self.output_name("classify")
        function, least = self.score_function("classify", function), self.thresholds(threshold)
        items: list[Text] = [texts] if isinstance(texts, str) else list(_listed(texts, pairs=True))
        logits = self._vectors("classify", items, batch_size, False).dequantize()
        results: list[Any] = ranked_classes(logits, self.labels, top_k, function, least)
        if top_k == 1 and least is None:
            results = [classes[0] for classes in results]
        return results[0] if isinstance(texts, str) else results

    def tag(
        self,
        texts: str | Sequence[str],
        aggregation_strategy: str = "simple",
        batch_size: int = 32,
    ) -> Any:
        """Entities in texts, of any length: a long one is tagged window by window.

        Parameters
        ----------
        texts
            A text, or any number.
        aggregation_strategy : {"simple", "none", "first", "max", "average"}
            Neighbouring tokens of one class as one entity, or every token by itself; or
            neighbouring words, each with the class of its first or surest token, or of the mean.
        batch_size
            Windows of a batch.

        Returns
        -------
        list of dict, or list of such lists
            ``entity_group`` (or ``entity``), ``score``, ``word``, ``start`` and ``end``, without
            what has the class ``O``.

        Raises
        ------
        UsageError
            If the model does not classify tokens, or the strategy is unknown.
        InputError
            If a text is no text, or empty.
        """
        name = self.output_name("tag")
        check_choice("aggregation_strategy", aggregation_strategy, STRATEGIES)
        items = [texts] if isinstance(texts, str) else _listed(texts)
        self.tokenizer.check(items)
        windows = [self.tokenizer.windows(item, self.max_seq_length) for item in items]
        logits = iter(self._run_windows([w for each in windows for w in each], name, batch_size))
        label = self.library.metadata.info.label
        results = [
            tagged_text(
                text, own, [next(logits) for _ in own], self.tokenizer, label, aggregation_strategy
            )
            for text, own in zip(items, windows, strict=True)
        ]
        return results[0] if isinstance(texts, str) else results

    def answer(
        self,
        question: str,
        context: str,
        max_answer_len: int = LONGEST_ANSWER,
        batch_size: int = 32,
        handle_impossible_answer: bool = False,
        max_seq_len: int | None = None,
        doc_stride: int | None = None,
    ) -> dict[str, Any]:
        """The part of a context of any length that answers a question best.

        Arguments and results are those of the pipeline of transformers 4.

        Parameters
        ----------
        question, context
            The context is read in overlapping windows where it is long.
        max_answer_len
            Most tokens of an answer.
        batch_size
            Windows of a batch.
        handle_impossible_answer
            Give an empty answer where none is more likely in every window than the best one.
        max_seq_len
            Most tokens of a window, question included; by default `max_seq_length`, at most 384.
        doc_stride
            Tokens that windows share; by default 128, at most half a window.

        Returns
        -------
        dict
            ``answer``, ``score``, ``start`` and ``end``, characters of the context.

        Raises
        ------
        UsageError
            If the model does not answer questions.
        InputError
            If a text is no text or empty, or the question leaves no room for the context.
        """
        name = self.output_name("answer")
        length = min(max_seq_len or WINDOW, self.max_seq_length)
        windows = self.tokenizer.question_windows((question, context), length, doc_stride)
        logits = self._run_windows(windows, name, batch_size)
        return best_answer(context, windows, logits, max_answer_len, handle_impossible_answer)

    def score_function(self, method: str, chosen: str | None = None) -> str | None:
        """What makes scores of logits.

        Parameters
        ----------
        method
            ``classify`` or ``rerank``.
        chosen
            The method's argument `function`.

        Returns
        -------
        str or None
            Of `ibert_tvm.model.scores.FUNCTIONS`; None for the method's default.

        Raises
        ------
        UsageError
            If there is no such function.
        """
        if chosen is not None:
            check_choice("function", chosen, FUNCTIONS)
            return chosen
        known = self.post_processing
        return known.pairs if method == "rerank" else known.classes

    def thresholds(self, chosen: float | bool | None) -> float | Mapping[str, float] | None:
        """Least scores that the argument `threshold` of `classify` means.

        Raises
        ------
        UsageError
            If the thresholds of the source are asked for, and it states none.
        """
        if chosen is not True:
            return None if chosen is False else chosen
        if not self.post_processing.thresholds:
            raise UsageError(
                "the model has no thresholds of its own",
                where=str(self.library.metadata.path),
                why="the source's config.json states none",
                todo="give a number",
            )
        return self.post_processing.thresholds

    def _encode_with(
        self, name: str, sentences: str | Sequence[str], options: dict[str, Any]
    ) -> Any:
        if options.get("prompt") is None and options.get("prompt_name") is None:
            # No prompt at all where the model has none of that name: not the default one.
            options = {**options, "prompt": self.prompts.get(name, "")}
        return self.encode(sentences, **options)

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
        kinds = kinds_of(method)
        for record in self.library.metadata.outputs:
            if record.kind in kinds:
                return record.name
        raise self._refusal(method, f"its head is {self.library.metadata.info.head}")

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

    def _size(self, kinds: Sequence[str]) -> int | None:
        """Last axis of the first output of one of these kinds."""
        records = [r for r in self.library.metadata.outputs if r.kind in kinds]
        return int(records[0].shape[-1]) if records else None

    def _vectors(
        self, method: str, texts: Sequence[Text], batch_size: int, bar: bool | None
    ) -> IntegerOutput:
        """One row of integers per text."""
        name = self.output_name(method)
        (record,) = (r for r in self.library.metadata.outputs if r.name == name)
        whole = np.zeros((len(texts), int(record.shape[-1])), record.dtype)
        for part in self._parts(texts, batch_size, bar):
            whole[part.rows] = part.outputs[name].values
        return IntegerOutput(whole, record.scale)

    def _features(
        self, texts: Sequence[Text], batch_size: int, bar: bool | None, truncate_dim: int | None
    ) -> list[dict[str, Any]]:
        names = [record.name for record in self.library.metadata.inputs]
        results: list[dict[str, Any]] = [{} for _ in texts]
        for part in self._parts(texts, batch_size, bar):
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

    def _parts(self, texts: Sequence[Text], batch_size: int, bar: bool | None) -> Iterator[Part]:
        """Run all texts; say so where some were cut off."""
        _check_size(batch_size)
        cut = 0
        with progress_bar(_wanted(bar), len(texts)) as advance:
            for part in run_batches(
                self.library, self.tokenizer, texts, batch_size, self.max_seq_length
            ):
                cut += len(part.tokens.truncated)
                yield part
                advance(len(part.rows))
        if cut:
            _logger.warning(
                "%d of %d texts were cut off at %d tokens", cut, len(texts), self.max_seq_length
            )

    def _run_windows(
        self, windows: Sequence[Window], name: str, batch_size: int
    ) -> list[NDArray[np.float32]]:
        """Outputs of every token of every window."""
        _check_size(batch_size)
        inputs = [record.name for record in self.library.metadata.inputs]
        results: list[NDArray[np.float32]] = []
        for start in range(0, len(windows), batch_size):
            chosen = windows[start : start + batch_size]
            batch = self.tokenizer.batch_of(chosen)
            given: dict[str, Any] = dict(batch.inputs(inputs))
            values = self.library.run(**given)[name]
            results += [row[: len(w.ids)] for row, w in zip(values, chosen, strict=True)]
        return results


def _loaded_again(path: str, digest: str, options: dict[str, Any]) -> Encoder:
    """An encoder that was pickled, of the same library."""
    encoder = Encoder(path, **options)
    if encoder.library.metadata.digest != digest:
        encoder.close()
        raise LibraryError(
            "the encoder cannot be unpickled",
            where=path,
            why="the file is not the one that it was pickled with",
            todo="make the encoder anew: Encoder(PATH)",
        )
    return encoder


def _check_size(batch_size: int) -> None:
    if batch_size < 1:
        raise UsageError(f"batch_size is {batch_size}", todo="give a number of at least 1")


def _wanted(bar: bool | None) -> bool:
    return _logger.getEffectiveLevel() in (logging.INFO, logging.DEBUG) if bar is None else bar


def _listed(texts: Any, pairs: bool = False) -> list[Any]:
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
