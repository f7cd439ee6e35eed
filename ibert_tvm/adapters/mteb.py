"""A compiled model for MTEB's tasks.

mteb.evaluate(IbertEncoder("model.so"), mteb.get_tasks(["STSBenchmark"]))
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ..encoder import Encoder
from .requirements import require_package

require_package("mteb", __name__)

from mteb.models import ModelMeta  # noqa: E402
from mteb.models.abs_encoder import AbsEncoder  # noqa: E402

_METHODS = {"query": "encode_query", "document": "encode_document"}
"""Of `Encoder`, by MTEB's type of a prompt."""


class IbertEncoder(AbsEncoder):
    """What MTEB calls: results are stored under the model's name and the library's digest.

    Parameters
    ----------
    model : path or Encoder
        What `Encoder` takes, or one.
    revision
        Of a model of the hub; see `Encoder`.
    device
        As `Encoder` takes.
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
        revision: str | None = None,
        *,
        device: str | None = None,
        **options: Any,
    ) -> None:
        self.model = (
            model
            if isinstance(model, Encoder)
            else Encoder(model, revision=revision, device=device, **options)
        )
        metadata = self.model.library.metadata
        self.model_prompts = dict(self.model.prompts)
        facts = {
            "name": f"ibert-tvm/{metadata.path.stem}",
            "revision": metadata.digest,
            "max_tokens": self.model.max_seq_length,
            "embed_dim": self.model.embedding_size,
        }
        self.mteb_model_meta = ModelMeta.create_empty(facts)

    def encode(
        self,
        inputs: Iterable[dict[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: Any = None,
        **options: Any,
    ) -> Any:
        """Vectors of the texts of all batches, with the prompt that the model has for the task.

        Parameters
        ----------
        inputs
            Batches with a list ``text`` each.
        task_metadata, prompt_type
            MTEB's, which choose the prompt.
        hf_split, hf_subset
            Not used.
        **options
            Arguments of `Encoder.encode`.

        Returns
        -------
        numpy.ndarray
            float32 [texts, channels].
        """
        texts = [text for batch in inputs for text in batch["text"]]
        name = self.get_prompt_name(task_metadata, prompt_type)
        kind = getattr(prompt_type, "value", prompt_type)
        encode = getattr(self.model, _METHODS.get(kind, "encode"))
        return encode(texts, prompt_name=name, **options)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """As `Encoder.similarity`."""
        return self.model.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """As `Encoder.similarity_pairwise`."""
        return self.model.similarity_pairwise(embeddings1, embeddings2)
