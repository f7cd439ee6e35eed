"""A compiled model as LangChain's `Embeddings`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..encoder import Encoder
from .requirements import require_package

require_package("langchain_core", __name__)

from langchain_core.embeddings import Embeddings  # noqa: E402


class IbertEmbeddings(Embeddings):
    """Vectors for LangChain's vector stores and retrievers.

    Parameters
    ----------
    model : path or Encoder
        What `Encoder` takes, or one.
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

    @property
    def metadata(self) -> dict[str, str]:
        """Digest of the library, for the metadata of documents; other vectors come of another."""
        return {"model_digest": self.encoder.library.metadata.digest}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Vectors of documents, with the model's prompt for them where it has one."""
        vectors = self.encoder.encode_document(texts, **self.encode_options)
        return [vector.tolist() for vector in vectors]

    def embed_query(self, text: str) -> list[float]:
        """Vector of a query, with the model's prompt for it where it has one."""
        return self.encoder.encode_query(text, **self.encode_options).tolist()
