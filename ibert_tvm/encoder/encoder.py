"""`Encoder`: a compiled model for those who have strings.

Its names, arguments and results are those of sentence-transformers' `SentenceTransformer` and
`CrossEncoder`; `docs/encoder.md` lists what is left out, and why.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import InputError, UsageError, check_choice
from ..common.types import Array
from ..frontend.sources import is_source
from ..model.heads import KINDS, heads_with, kinds_of
from ..model.scores import (
    FUNCTIONS,
    LATE,
    PAIRWISE,
    PRECISIONS,
    SIMILARITIES,
    normalized,
    quantized,
    ranked_classes,
    ranked_documents,
)
from ..model.spans import LONGEST_ANSWER, WINDOW, best_answer
from ..model.tokenization import Tokenizer, Window
from ..runtime import IntegerOutput, Library, load_library
from .batches import Part, Text, run_batches
from .entities import STRATEGIES, tagged_text
from .hub import hub_folder, is_hub_name
from .model_card import Measurements, model_card
from .progress import progress_bar
from .saved import (
    Settings,
    check_companions,
    is_saved,
    open_saved,
    write_saved,
)
from .tensors import are_tensors, array_of, tensor_of

if TYPE_CHECKING:
    from .pool import Pool

_logger = logging.getLogger(__name__)


class Encoder:
    """Texts in; vectors, scores, classes, entities or answers out, whatever the model's head gives.

    The result for a text is the same, bit for bit, in whatever company it is given, and the same as
    that of `Library.run`. Methods may be called from several threads.

    Parameters
    ----------
    model : path or Library
        A library that `ibert compile` wrote, or a folder that `save_pretrained` wrote. Or what one
        can be made of: a NAME.ibert folder, a model folder, a name on the Hugging Face hub, an ONNX
        file. The library is kept for the next time (`ibert_tvm.encoder.prepared`).
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
    prompts, default_prompt_name, similarity_fn_name, truncate_dim
        In the place of the source's settings; prompts of other names stay.
    refine
        Where a library is made of a model: quantise it with the fidelity `quick` at first, and let
        the library of the default fidelity take its place when another process has made it. The
        vectors of texts change then.
    revision, cache_folder
        Of a name on the hub: which commit, and where to look; see `ibert_tvm.encoder.hub`.
    local_files_only
        Download nothing. Set it to False to have a model of the hub downloaded.
    trust_remote_code
        Run the library of a saved encoder that comes from the hub.

    Attributes
    ----------
    library : Library
        What runs.
    prompts : dict of str to str
        Prompts of the model by name.
    default_prompt_name : str or None
        The prompt of texts for which none is chosen.
    post_processing : PostProcessing
        What the model's own library does with its outputs, as the methods do.
    model_card_data : Measurements
        What evaluators of sentence-transformers measured, for `save_pretrained`.

    Raises
    ------
    UsageError
        If the model takes no texts, has no tokenizer, `max_seq_length` was not compiled, or a
        setting has no meaning.
    IbertError
        As `load_library` raises, and where a library is made, `load`, `quantize` and `compile`.
    """

    _closed = False

    def __init__(
        self,
        model: str | os.PathLike[str] | Library,
        *,
        num_threads: int | None = None,
        device: str | None = None,
        target: str = "host",
        head: str | None = None,
        max_seq_length: int | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
        refine: bool = False,
        revision: str | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
        local_files_only: bool = True,
        trust_remote_code: bool = False,
    ) -> None:
        options: dict[str, Any] = {"num_threads": num_threads, "device": device}
        saved: Settings | None = None
        if isinstance(model, Library):
            self.library = model
        else:
            named = is_hub_name(model)
            path = (
                hub_folder(str(model), revision, cache_folder, local_files_only)
                if named
                else Path(model).expanduser()
            )
            if head is not None and path.exists() and not is_source(path):
                raise UsageError(
                    "a head cannot be chosen any more",
                    where=str(path),
                    why="it was quantised with the one that it has",
                    todo="leave head out, or give the model folder",
                )
            if is_saved(path):
                trusted = trust_remote_code or not named
                self.library, saved = open_saved(path, trusted, target, options)
            else:
                if path.is_dir() or is_source(path):
                    from . import prepared  # brings the compiler along

                    wanted = prepared.Options(target, head, max_seq_length)
                    refine = refine and is_source(path) and not prepared.is_prepared(path, wanted)
                    made = prepared.prepared_library(path, replace(wanted, first=refine))
                    self.library = load_library(made, **options)
                    if refine:
                        exchange = partial(_exchange, weakref.ref(self), options)
                        prepared.prepare_apart(path, wanted, exchange)
                else:
                    self.library = load_library(path, **options)
        metadata, info = self.library.metadata, self.library.metadata.info
        known = saved or Settings(
            metadata.max_seq_len,
            info.prompts,
            info.default_prompt_name,
            info.post_processing.similarity,
            info.post_processing.dimensions,
        )
        self._loaded_with = options
        self.max_seq_length = max_seq_length or known.max_seq_length
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
        self.prompts = {**known.prompts, **(prompts or {})}
        self.default_prompt_name = default_prompt_name or known.default_prompt_name
        self.post_processing = info.post_processing
        self.model_card_data = Measurements()
        if default_prompt_name is not None:
            self.prompt_text(name=default_prompt_name)
        self.similarity_fn_name = similarity_fn_name or known.similarity_fn_name
        self.truncate_dim = known.truncate_dim if truncate_dim is None else truncate_dim

    @classmethod
    def from_pretrained(cls, model: str | os.PathLike[str], **options: Any) -> Encoder:
        """Open what `save_pretrained` wrote, a name on the hub, or whatever `Encoder` takes."""
        return cls(model, **options)

    def save_pretrained(
        self,
        path: str | os.PathLike[str],
        model_name: str | None = None,
        create_model_card: bool = True,
        *,
        model: str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
    ) -> None:
        """Write a folder that `Encoder` opens, and that can be uploaded to the hub as it is.

        Parameters
        ----------
        path
            The folder; an encoder that was saved there before is replaced.
        model_name
            What its card calls it; by default the folder's name.
        create_model_card
            Write ``README.md``, with sizes, `model_card_data` and the certificate.
        model
            The NAME.ibert folder of the library, for machines that cannot run that.
        certificate
            What `ibert verify` wrote of the library.

        Raises
        ------
        OutputError
            If something else is there, or the folder cannot be written.
        UsageError, LibraryError
            If the model or the certificate is not the library's.
        """
        metadata = self.library.metadata
        folder = None if model is None else Path(model).expanduser()
        proof = None if certificate is None else Path(certificate).expanduser()
        found = check_companions(self.library, folder, proof)
        settings = Settings(
            self.max_seq_length,
            dict(self.prompts),
            self.default_prompt_name,
            self.post_processing.similarity,
            self.truncate_dim,
        )
        card = None
        if create_model_card:
            name = model_name or Path(path).name
            card = model_card(name, metadata, asdict(settings), self.model_card_data, found)
        write_saved(path, metadata.path, settings, folder, proof, card)

    save = save_pretrained

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
        self._closed = True
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
        known = ("prompts", "default_prompt_name", "post_processing", "model_card_data")
        state = {name: getattr(self, name) for name in (*known, "_max_seq_length")}
        place = str(metadata.path.absolute()), metadata.digest, self._loaded_with
        return _loaded_again, place, state

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

    @property
    def device(self) -> str:
        """What the library runs on: ``"cpu"``, ``"cuda:0"`` ..."""
        return self.library.device

    def to(self, device: Any) -> Encoder:
        """Return this encoder, if it runs on that kind of device; `UsageError` otherwise."""
        self._check_device(device)
        return self

    @property
    def modalities(self) -> list[str]:
        """What it takes: texts."""
        return ["text"]

    def supports(self, modality: Any) -> bool:
        """Whether it takes inputs of this kind."""
        return modality in self.modalities

    def get_max_seq_length(self) -> int:
        """Tokens that texts are cut off at."""
        return self.max_seq_length

    @property
    def num_labels(self) -> int:
        """Classes of the model; 0 where it has none."""
        return len(self.labels)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, empty where the model has none."""
        count = self._size(("logits", "token_logits")) or 0
        return tuple(map(self.library.metadata.info.label, range(count)))

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
        items = [inputs] if isinstance(inputs, str) else _listed(inputs)
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
        return _converted(vectors, single, convert_to_numpy, convert_to_tensor)

    def encode_query(self, inputs: Any = None, *arguments: Any, **options: Any) -> Any:
        """As `encode`, with the model's prompt ``query`` where it has one and none is chosen."""
        return self._encode_with("query", inputs, *arguments, **options)

    def encode_document(self, inputs: Any = None, *arguments: Any, **options: Any) -> Any:
        """As `encode`, with the prompt ``document``, likewise.

        A prompt of another name, as ``passage``, is used where it is chosen only: so does the
        method of sentence-transformers.
        """
        return self._encode_with("document", inputs, *arguments, **options)

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
            for text in _listed(inputs, pairs=True)
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

    def predict(
        self,
        inputs: Any,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: str | Callable[[Any], Any] | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | Sequence[str] | None = None,
        pool: Pool | None = None,
        chunk_size: int | None = None,
    ) -> Any:
        """Scores of pairs of texts, as ``CrossEncoder.predict`` gives them.

        Parameters
        ----------
        inputs : (str, str) or sequence of (str, str)
            A pair, or pairs.
        prompt_name, prompt
            What is put before the first text of a pair; see `encode`.
        activation_fn
            What makes scores of logits: one of `ibert_tvm.model.scores.FUNCTIONS`, or something
            that takes and returns a tensor; by default what the source says, else sigmoid for one
            class and nothing for several.
        apply_softmax
            Of scores of several classes.
        batch_size, show_progress_bar, convert_to_numpy, convert_to_tensor, device, pool, chunk_size
            As of `encode`.

        Returns
        -------
        numpy.ndarray, torch.Tensor or list
            float32 [pairs], or of a model with several classes [pairs, classes].

        Raises
        ------
        UsageError
            If the model gives no scores, or an argument has no meaning.
        InputError
            If a text is no text.
        """
        name = "sigmoid" if self.num_labels == 1 else "none"
        before = self.prompt_text(prompt, prompt_name)
        items = inputs.tolist() if isinstance(inputs, np.ndarray) else list(inputs)
        single = bool(items) and isinstance(items[0], str)
        pairs: list[Text] = [
            (before + first, second)
            for first, second in _listed(
                [tuple(pair) for pair in ([items] if single else items)], pairs=True
            )
        ]
        with self._run_by(device, pool, chunk_size) as run:
            rows = self._vectors("classify", pairs, batch_size, show_progress_bar, run)
        logits = rows.dequantize()
        if activation_fn is None or isinstance(activation_fn, str):
            function = self.score_function("rerank", activation_fn) or name
            scores = FUNCTIONS[function](logits).astype(np.float32)
        else:
            scores = array_of(activation_fn(tensor_of(logits)))
        if apply_softmax and self.num_labels > 1:
            scores = FUNCTIONS["softmax"](scores).astype(np.float32)
        scores = scores[:, 0] if self.num_labels == 1 else scores
        return _converted(scores, single, convert_to_numpy, convert_to_tensor)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: str | Callable[[Any], Any] | None = None,
        device: str | Sequence[str] | None = None,
        pool: Pool | None = None,
        chunk_size: int | None = None,
    ) -> list[dict[str, Any]]:
        """Order documents by the score of each with a query, as ``CrossEncoder.rank`` does.

        Parameters
        ----------
        query
            The query.
        documents
            Any number.
        top_k
            Give only the best.
        return_documents
            Give each document, too, as ``text``.
        prompt_name, prompt, batch_size, show_progress_bar, activation_fn, device, pool, chunk_size
            As of `predict`; by default the score is the sigmoid of the logit.

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
        if self.num_labels != 1:
            raise self._refusal(
                "rerank",
                f"it has {self.num_labels} classes, and a score is one",
                "give a model with one class, a cross-encoder",
            )
        texts = _listed(documents)
        scores = self.predict(
            [(query, document) for document in texts],
            prompt_name,
            prompt,
            batch_size,
            show_progress_bar,
            activation_fn,
            device=device,
            pool=pool,
            chunk_size=chunk_size,
        )
        return [
            {
                "corpus_id": place,
                "score": score,
                **({"text": texts[place]} if return_documents else {}),
            }
            for place, score in ranked_documents(scores[:, None], "none", top_k)
        ]

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
        """`rank` with arguments in another order, `function` being its `activation_fn`."""
        return self.rank(
            query, documents, top_k, False, prompt_name, prompt, batch_size, False, function
        )

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
        name = self.output_name(method)
        (record,) = (r for r in self.library.metadata.outputs if r.name == name)
        whole, scale = np.zeros((len(texts), int(record.shape[-1])), record.dtype), record.scale
        for part in self._parts(texts, batch_size, bar, run or self._run):
            # That of the library that ran, which another may have replaced meanwhile.
            whole[part.rows], scale = part.outputs[name].values, part.outputs[name].scale
        return IntegerOutput(whole, scale)

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
        with progress_bar(_wanted(bar), len(texts)) as advance:
            for part in run(texts, batch_size, self.max_seq_length):
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
        library = self.library
        inputs = [record.name for record in library.metadata.inputs]
        results: list[NDArray[np.float32]] = []
        for start in range(0, len(windows), batch_size):
            chosen = windows[start : start + batch_size]
            batch = self.tokenizer.batch_of(chosen)
            given: dict[str, Any] = dict(batch.inputs(inputs))
            values = library.run(**given)[name]
            results += [row[: len(w.ids)] for row, w in zip(values, chosen, strict=True)]
        return results


def _exchange(encoder: weakref.ref[Encoder], options: dict[str, Any], path: Path) -> None:
    """Let a library take the place of an encoder's; calls that run end with the one they have."""
    found = encoder()
    if found is not None and not found._closed:
        found.library = load_library(path, **options)
        _logger.info("%s is in use", path)


def _loaded_again(path: str, digest: str, options: dict[str, Any]) -> Encoder:
    """An encoder that was pickled, of the same library."""
    from .pool import opened_again

    return Encoder(opened_again(path, digest, options))


def _converted(array: Array, single: bool, to_numpy: bool, to_tensor: bool) -> Any:
    """Rows as callers ask for them: one of them, all in an array or a tensor, or a list."""
    if to_numpy and not to_tensor:
        return array[0] if single else array
    tensor = tensor_of(array)
    if single:
        return tensor[0]
    return tensor if to_tensor else list(tensor)


def _check_channels(channels: int | None) -> None:
    if channels is not None and (type(channels) is not int or channels < 1):
        raise UsageError(f"truncate_dim is {channels!r}", todo="give a number of at least 1")


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
