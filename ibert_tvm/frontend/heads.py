"""A transformers model as a function of tokens, images or features, with one output."""

from __future__ import annotations

from typing import Any

import torch

from ..model.heads import HEADS, LastLayer, PooledTokens, Returned
from .sentence_head import SentenceHead, pooling_head
from .sentence_pipeline import TOKEN_EMBEDDINGS


class ModelWithHead(torch.nn.Module):
    """A transformers model as a function of token tensors with one output.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The model; its encoder for heads that no class computes.
    head
        A key of `ibert_tvm.model.heads.HEADS`.
    after
        What follows the model; for `PooledTokens` the mean over the tokens by default.
    """

    def __init__(self, model: Any, head: str, after: SentenceHead | None = None) -> None:
        super().__init__()
        self.model = model
        self.head = head
        self.record = HEADS[head]
        if isinstance(self.record.finish, PooledTokens) and after is None:
            after = pooling_head("mean")
        self.after = after
        self.output = self.record.public
        if after is not None and not after.pipeline.pools:
            self.output = TOKEN_EMBEDDINGS

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the output of the head, with the axes of its kind.

        Parameters
        ----------
        input_ids, attention_mask
            [batch, seq_len] int64.
        token_type_ids
            [batch, seq_len] int64, for models that have token types.
        """
        tokens = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            tokens["token_type_ids"] = token_type_ids
        output = self.finished(tokens)
        return output if self.after is None else self.after(output, attention_mask)

    def finished(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """What the head is, or is made from, among the outputs of the model."""
        finish = self.record.finish
        if isinstance(finish, LastLayer):
            hidden = self.model.base_model(**inputs, return_dict=True).last_hidden_state
            return getattr(self.model, finish.layer)(hidden)
        result = self.model(**inputs, return_dict=True)
        if isinstance(finish, Returned):
            field = finish.field
        else:  # pipelines begin with a masked-language model or an encoder
            field = "logits" if "logits" in result else "last_hidden_state"
        return getattr(result, field)


class ImageModelWithHead(ModelWithHead):
    """A transformers model of images as a function of ``pixel_values``."""

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Return the output for images [batch, planes, height, width] float32."""
        return self.finished({"pixel_values": pixel_values})


class FeatureModelWithHead(ModelWithHead):
    """A transformers model of features as a function of ``input_features``."""

    def forward(self, input_features: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Return the output for features [batch, planes, frames] float32."""
        return self.finished({"input_features": input_features})
