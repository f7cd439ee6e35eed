"""A compiled model as LlamaIndex's `BaseEmbedding`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..encoder import Encoder
from .requirements import require_package

require_package("llama_index.core", __name__)

from llama_index.core.base.embeddings.base import BaseEmbedding  # noqa: E402
from llama_index.core.bridge.pydantic import Field, PrivateAttr  # noqa: E402
from llama_index.core.schema import BaseNode  # noqa: E402

_DIGEST = "model_digest"


class IbertEmbedding(BaseEmbedding):
    """Vectors for LlamaIndex's indices.

    As a transformation of an ingestion pipeline, it notes `model_digest` in the metadata of nodes.

    Parameters
    ----------
    model : path or Encoder
        What `Encoder` takes, or one.
    encode_options
        Arguments of `Encoder.encode`, for example ``{"normalize_embeddings": True}``.
    encoder_options
        More arguments of `Encoder`, for a path.
    **fields
        Fields of `BaseEmbedding`, for example ``embed_batch_size``.

    Raises
    ------
    IbertError
        As `Encoder` raises.
    """

    model_digest: str = Field(default="", description="Digest of the library.")
    _encoder: Encoder = PrivateAttr()
    _encode_options: dict[str, Any] = PrivateAttr()

    def __init__(
        self,
        model: str | os.PathLike[str] | Encoder,
        encode_options: Mapping[str, Any] | None = None,
        encoder_options: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        encoder = model if isinstance(model, Encoder) else Encoder(model, **(encoder_options or {}))
        metadata = encoder.library.metadata
        fields.setdefault("model_name", metadata.path.name)
        super().__init__(**{**fields, "model_digest": metadata.digest})
        self._encoder = encoder
        self._encode_options = dict(encode_options or {})

    @classmethod
    def class_name(cls) -> str:
        """Name under which LlamaIndex speaks of it."""
        return "IbertEmbedding"

    def __call__(self, nodes: Sequence[BaseNode], **options: Any) -> Sequence[BaseNode]:
        """Embed nodes, and note by which library."""
        return self._noted(super().__call__(nodes, **options))

    async def acall(self, nodes: Sequence[BaseNode], **options: Any) -> Sequence[BaseNode]:
        """Do the same without waiting."""
        return self._noted(await super().acall(nodes, **options))

    def _noted(self, nodes: Sequence[BaseNode]) -> Sequence[BaseNode]:
        """Nodes with the digest in their metadata, but not in their texts."""
        for node in nodes:
            node.metadata[_DIGEST] = self.model_digest
            for left_out in (node.excluded_embed_metadata_keys, node.excluded_llm_metadata_keys):
                if _DIGEST not in left_out:
                    left_out.append(_DIGEST)
        return nodes

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._encoder.encode_query(query, **self._encode_options).tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors = self._encoder.encode_document(texts, **self._encode_options)
        return [vector.tolist() for vector in vectors]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
