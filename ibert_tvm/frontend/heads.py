"""A transformers model as a function of plain tensors, tokens or images, with one output."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["ImageModelWithHead", "ModelWithHead"]


class ModelWithHead(torch.nn.Module):
    """A transformers model as a function of token tensors with one output.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The model; for heads ``none``, ``pooled`` and ``sentence_embedding`` its encoder.
    head : str
        One of `ibert_tvm.model_info.HEADS`.
    pooling : str
        ``mean`` or ``cls``, for ``sentence_embedding``.
    """

    def __init__(self, model: Any, head: str, pooling: str = "mean") -> None:
        super().__init__()
        self.model = model
        self.head = head
        self.pooling = pooling

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
            See `ibert_tvm.model_info.OUTPUT_KINDS`.
        """
        tokens = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            tokens["token_type_ids"] = token_type_ids
        if self.head == "question_answering":
            # The class returns start and end separately; its layer gives both in one product.
            hidden = self.model.base_model(**tokens, return_dict=True).last_hidden_state
            result: torch.Tensor = self.model.qa_outputs(hidden)
            return result
        output = self.model(**tokens, return_dict=True)
        if self.head in ("sequence_classification", "token_classification"):
            result = output.logits
        elif self.head == "pooled":
            result = output.pooler_output
        elif self.head == "none":
            result = output.last_hidden_state
        elif self.pooling == "cls":
            result = output.last_hidden_state[:, 0]
        else:
            mask = attention_mask.unsqueeze(-1).to(torch.float32)
            total = (output.last_hidden_state * mask).sum(dim=1)
            result = total / mask.sum(dim=1).clamp(min=1e-9)
        return result


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

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return the output of the head.

        Parameters
        ----------
        pixel_values : torch.Tensor
            [batch, planes, height, width] float32.

        Returns
        -------
        torch.Tensor
            See `ibert_tvm.model_info.OUTPUT_KINDS`.
        """
        output = self.model(pixel_values=pixel_values, return_dict=True)
        if self.head == "image_classification":
            result: torch.Tensor = output.logits
        elif self.head == "pooled":
            result = output.pooler_output
        else:
            result = output.last_hidden_state
        return result
