"""A compiled model as the module of a `SentenceTransformer`, for all that is done with one.

    model = SentenceTransformer(modules=[IbertModule("model.so")])

`Encoder.encode` alone is faster: here the package tokenises and computes in turns.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

from ..common.errors import UsageError
from ..encoder import Encoder
from ..model.heads import KINDS
from .requirements import require_package

require_package("sentence_transformers", __name__)

import torch  # noqa: E402
from sentence_transformers.base.modules import InputModule  # noqa: E402

from .transformers import tokenizer_of  # noqa: E402


class IbertModule(InputModule):
    """Everything between texts and vectors, whatever modules the source had for it.

    Parameters
    ----------
    model : path or Encoder
        What `Encoder` takes, or one. The model gives vectors of texts or of tokens.
    **options
        More arguments of `Encoder`, for a path.

    Raises
    ------
    UsageError
        If the model gives no vectors.
    IbertError
        As `Encoder` raises.
    """

    config_keys = ["max_seq_length"]  # noqa: RUF012 (the package's own declaration)

    def __init__(self, model: str | os.PathLike[str] | Encoder, **options: Any) -> None:
        super().__init__()
        self.encoder = model if isinstance(model, Encoder) else Encoder(model, **options)
        if not any(KINDS[kind].feature for kind in self.encoder.kinds):
            raise UsageError(
                "the model cannot be the module of a SentenceTransformer",
                where=str(self.encoder.library.metadata.path),
                why=f"it gives {', '.join(self.encoder.kinds).replace('_', ' ')}, and no vectors",
                todo="give a model with the head sentence_transformer",
            )

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer, as one of transformers; `preprocess` uses this package's."""
        return tokenizer_of(self.encoder)

    @property
    def processor(self) -> Any:
        """The same, as sentence-transformers calls it."""
        return self.tokenizer

    @property
    def max_seq_length(self) -> int:
        """Tokens that texts are cut off at; a `UsageError` where so many were not compiled."""
        return self.encoder.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, tokens: int) -> None:
        self.encoder.max_seq_length = tokens
        self.__dict__.pop("tokenizer", None)  # it has the length, too

    def on_model_ready(self, model: Any) -> None:
        """Give a `SentenceTransformer` the settings of the source, as far as it has no others."""
        known = self.encoder.post_processing
        model.prompts.update(
            {
                name: text
                for name, text in self.encoder.prompts.items()
                if not model.prompts.get(name)
            }
        )
        if model.default_prompt_name is None:
            model.default_prompt_name = self.encoder.default_prompt_name
        if known.similarity is not None and getattr(model, "_similarity_fn_name", "") is None:
            model.similarity_fn_name = known.similarity
        for name, size in (("truncate_dim", known.dimensions), ("max_active_dims", known.active)):
            if getattr(model, name, 0) is None:
                setattr(model, name, size)

    def get_embedding_dimension(self) -> int | None:
        """Channels of the vectors; None where only tokens have some."""
        return self.encoder.embedding_size

    def preprocess(
        self,
        inputs: Sequence[Any],
        prompt: str | None = None,
        processing_kwargs: Any = None,
        **_options: Any,
    ) -> dict[str, Any]:
        """Tokens of texts.

        Parameters
        ----------
        inputs : sequence of str or of (str, str)
            The texts.
        prompt
            What is put before every text.
        processing_kwargs
            Refused: these are arguments of a tokenizer of transformers.

        Returns
        -------
        dict of str to torch.Tensor
            int32 [texts, tokens] each.

        Raises
        ------
        InputError
            If a text is no text.
        UsageError
            If there are `processing_kwargs`.
        """
        if processing_kwargs:
            raise UsageError(
                "processing_kwargs has no meaning for a compiled model",
                why="they are arguments of a tokenizer of transformers, and its own takes none",
                todo="leave processing_kwargs out; max_seq_length can be set",
            )
        return self.encoder.preprocess(inputs, prompt)

    def forward(self, features: dict[str, Any], **_options: Any) -> dict[str, Any]:
        """Run the library.

        Parameters
        ----------
        features
            What `preprocess` gave.

        Returns
        -------
        dict
            With ``sentence_embedding`` [texts, channels], ``token_embeddings`` [texts, tokens,
            channels], or both, float32, and ``model_digest``: that of the library, which
            ``encode(texts, output_value=None)`` gives with the vectors.
        """
        library = self.encoder.library
        inputs: dict[str, Any] = {
            record.name: features[record.name].cpu().numpy() for record in library.metadata.inputs
        }
        outputs = library.run(**inputs)
        for record in library.metadata.outputs:
            if feature := KINDS[record.kind].feature:
                features[feature] = torch.from_numpy(outputs[record.name])
        features["model_digest"] = library.metadata.digest
        return features

    def save(self, output_path: str, *_arguments: Any, **_options: Any) -> None:
        """Refused, since a library is code, which no model folder should bring along."""
        raise UsageError(
            "a compiled model cannot be saved as a model folder",
            where=output_path,
            why="it is a library with machine code for one kind of processor",
            todo=f"copy {self.encoder.library.metadata.path}",
        )
