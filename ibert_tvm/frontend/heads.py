"""A transformers model as a function of plain tensors, tokens or images, with one output."""

from __future__ import annotations

from typing import Any

import torch


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
        output = _output(self.model(**tokens, return_dict=True), self.head)
        if self.head != "sentence_embedding":
            return output
        if self.pooling == "cls":
            return output[:, 0]
        mask = attention_mask.unsqueeze(-1).to(torch.float32)
        mean: torch.Tensor = (output * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)
        return mean


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
        return _output(self.model(pixel_values=pixel_values, return_dict=True), self.head)


def _output(result: Any, head: str) -> torch.Tensor:
    """What a head is, or is made from, among the outputs of a transformers model."""
    names = {
        "none": "last_hidden_state",
        "sentence_embedding": "last_hidden_state",
        "pooled": "pooler_output",
    }
    output: torch.Tensor = getattr(result, names.get(head, "logits"))
    return output
