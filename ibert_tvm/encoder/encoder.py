"""`Encoder`: a compiled model for those who have strings.

Its names, arguments and results are those of sentence-transformers' `SentenceTransformer` and
`CrossEncoder`; `docs/encoder.md` lists what is left out, and why.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..common.errors import UsageError
from ..frontend.sources import is_source
from ..runtime import Library, load_library
from .hub import hub_folder, is_hub_name
from .model_card import Measurements, model_card
from .predictions import Predictions
from .saved import Settings, check_companions, is_saved, open_saved, write_saved
from .vectors import Vectors

_logger = logging.getLogger(__name__)


class Encoder(Vectors, Predictions):
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
        A library that is made of a float model has the fidelity `quick`, for a first use. Let one
        of the default fidelity take its place, here and later, when another process has made it.
        The vectors of texts change then.
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
                    first = is_source(path) and not prepared.is_prepared(path, wanted)
                    made = prepared.prepared_library(path, replace(wanted, first=first))
                    self.library = load_library(made, **options)
                    if first and refine:
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
        self.tokenizer = self.library.tokenizer
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

    def to(self, device: Any) -> Encoder:
        """Return this encoder, if it runs on that kind of device; `UsageError` otherwise."""
        self._check_device(device)
        return self


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
