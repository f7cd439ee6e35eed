"""A transformers model as a function of tokens, images or features, with one output."""

from __future__ import annotations

from typing import Any

import torch

from .finish import OUTPUTS
from .sentence_head import SentenceHead, pooling_head

_OUTPUTS = {
    "none": "last_hidden_state",
    "sentence_embedding": "last_hidden_state",
    "pooled": "pooler_output",
}
"""What a head is, or is made from, by head; logits of a class that has them otherwise."""


class ModelWithHead(torch.nn.Module):
    """A transformers model as a function of token tensors with one output.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The model; for heads ``none``, ``pooled`` and ``sentence_embedding`` its encoder.
    head : str
        One of `ibert_tvm.model.model_info.HEADS`.
    after : SentenceHead, optional
        What follows the model, for ``sentence_transformer`` and ``sentence_embedding``, for which
        it is the mean over the tokens by default.
    """

    def __init__(self, model: Any, head: str, after: SentenceHead | None = None) -> None:
        super().__init__()
        self.model = model
        self.head = head
        if head == "sentence_embedding" and after is None:
            after = pooling_head("mean")
        self.after = after
        self.output = OUTPUTS[head]
        if head == "sentence_transformer" and after is not None and not after.pipeline.pools:
            self.output = ("token_embeddings", "hidden_state")

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the output of the head.

        Parameters
        ----------
        input_ids, attention_mask : torch.Tensor
            [batch, seq_len] int64.
        token_type_ids : torch.Tensor, optional
            [batch, seq_len] int64, for models that have token types.

        Returns
        -------
        torch.Tensor
            See `ibert_tvm.model.model_info.OUTPUT_KINDS`.
        """
        tokens = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            tokens["token_type_ids"] = token_type_ids
        if self.head == "question_answering":
            # The class returns start and end separately; its layer gives both in one product.
            hidden = self.model.base_model(**tokens, return_dict=True).last_hidden_state
            result: torch.Tensor = self.model.qa_outputs(hidden)
            return result
        output = _output(self.model(**tokens, return_dict=True), self.head)
        return output if self.after is None else self.after(output, attention_mask)


class ImageModelWithHead(torch.nn.Module):
    """A transformers model of images as a function with one output.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The model; for heads ``none`` and ``pooled`` its encoder.
    head : str
        ``none``, ``pooled`` or ``image_classification``.
    """

    def __init__(self, model: Any, head: str) -> None:
        super().__init__()
        self.model = model
        self.head = head
        self.output = OUTPUTS[head]

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return the output of the head.

        Parameters
        ----------
        pixel_values : torch.Tensor
            [batch, planes, height, width] float32.

        Returns
        -------
        torch.Tensor
            See `ibert_tvm.model.model_info.OUTPUT_KINDS`.
        """
        return _output(self.model(pixel_values=pixel_values, return_dict=True), self.head)


class FeatureModelWithHead(ImageModelWithHead):
    """A transformers model of features, as a model of images is."""

    def forward(self, input_features: torch.Tensor) -> torch.Tensor:
        """Return the output of the head.

        Parameters
        ----------
        input_features : torch.Tensor
            [batch, planes, frames] float32.

        Returns
        -------
        torch.Tensor
            See `ibert_tvm.model.model_info.OUTPUT_KINDS`.
        """
        return _output(self.model(input_features=input_features, return_dict=True), self.head)


def _output(result: Any, head: str) -> torch.Tensor:
    """What a head is, or is made from, among the outputs of a transformers model."""
    name = _OUTPUTS.get(head, "logits")
    if head == "sentence_transformer" and "logits" not in result:
        name = "last_hidden_state"
    output: torch.Tensor = getattr(result, name)
    return output
