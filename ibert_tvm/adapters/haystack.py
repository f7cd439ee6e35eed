"""A compiled model as Haystack's embedders, for queries and for documents."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..encoder import Encoder
from .requirements import require_package

require_package("haystack", __name__)

from haystack import Document, component, default_to_dict  # noqa: E402


class _Embedder:
    """What both share.

    Parameters
    ----------
    model : path or Encoder
        What `Encoder` takes, or one; a pipeline that holds an `Encoder` is stored with its path.
    encode_options
        Arguments of `Encoder.encode`, for example ``{"normalize_embeddings": True}``.
    **options
        More arguments of `Encoder`, for a path.

    Raises
    ------
    IbertError
        As `Encoder` raises.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Encoder,
        encode_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.encoder = model if isinstance(model, Encoder) else Encoder(model, **options)
        self.encode_options = dict(encode_options or {})
        place = self.encoder.library.metadata.path if isinstance(model, Encoder) else model
        self._stored = {"model": str(place), "encode_options": self.encode_options, **options}

    def to_dict(self) -> dict[str, Any]:
        """Return what Haystack makes it of again."""
        return default_to_dict(self, **self._stored)


@component
class IbertTextEmbedder(_Embedder):
    """Vectors of queries, with the model's prompt for them where it has one."""

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, Any]:
        """Return the ``embedding`` of a query."""
        return {"embedding": self.encoder.encode_query(text, **self.encode_options).tolist()}


@component
class IbertDocumentEmbedder(_Embedder):
    """Vectors of documents, with the model's prompt for them where it has one."""

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Return ``documents`` with the ``embedding`` of each one's content."""
        texts = [document.content or "" for document in documents]
        vectors = self.encoder.encode_document(texts, **self.encode_options)
        pairs = zip(documents, vectors, strict=True)
        return {"documents": [replace(each, embedding=row.tolist()) for each, row in pairs]}
