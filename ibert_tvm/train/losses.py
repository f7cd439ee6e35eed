"""Losses of heads, as transformers computes them from labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from ..common.errors import UsageError
from ..model.model_info import OutputInfo


def loss_of(
    result: Any, output: OutputInfo, config: Any, labels: Mapping[str, torch.Tensor]
) -> Any:
    """Add the loss to a model's outputs, if there are labels.

    Parameters
    ----------
    result : transformers.utils.ModelOutput
        The outputs.
    output
        Of the head.
    config : transformers.PretrainedConfig
        ``problem_type`` and the number of labels, which decide as in transformers.
    labels
        ``labels``, [batch] or [batch, seq_len] (-100 does not count), or ``start_positions`` and
        ``end_positions``, [batch].

    Returns
    -------
    transformers.utils.ModelOutput
        With `loss` in the first place.

    Raises
    ------
    UsageError
        If the head has no loss.
    """
    if not labels:
        return result
    logits = result[output.name]
    given = {name: tensor.to(logits.device) for name, tensor in labels.items()}
    if output.kind == "span_logits" and "labels" not in given:
        ends = (given["start_positions"], given["end_positions"])
        loss = sum(functional.cross_entropy(logits[..., i], ends[i]) for i in range(2)) / 2
    elif output.kind == "token_logits" and "labels" in given:
        loss = functional.cross_entropy(logits.flatten(0, 1), given["labels"].flatten())
    elif output.kind == "logits" and "labels" in given:
        loss = _classification(logits, given["labels"], config)
    else:
        raise UsageError(
            f"there is no loss of {', '.join(labels)} for the output {output.name}",
            why=f"it is of kind {output.kind}",
            todo="compute the loss yourself, or leave the labels out",
        )
    completed = type(result)()
    completed["loss"] = loss
    for name, tensor in result.items():
        completed[name] = tensor
    return completed


def _classification(logits: torch.Tensor, labels: torch.Tensor, config: Any) -> torch.Tensor:
    kind = getattr(config, "problem_type", None)
    if kind is None:
        whole = labels.dtype in (torch.int64, torch.int32)
        kind = "single_label_classification" if whole else "multi_label_classification"
        kind = "regression" if logits.shape[-1] == 1 else kind
    if kind == "regression":
        return functional.mse_loss(logits.reshape(labels.shape), labels.float())
    if kind == "multi_label_classification":
        return functional.binary_cross_entropy_with_logits(logits, labels.float())
    return functional.cross_entropy(logits, labels.long())


def embedding_loss(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Distance of embeddings [batch, C] in direction, and of what they say of each other.

    ``1 - cos`` of each text, and the mean squared difference of the cosines of all pairs.
    """
    own, other = (functional.normalize(x, dim=-1) for x in (student, teacher))
    direction = 1 - (own * other).sum(-1).mean()
    pairs = functional.mse_loss(own @ own.T, other @ other.T)
    return direction + pairs


def logits_loss(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence of classes; of one logit the squared difference."""
    if student.shape[-1] == 1:
        return functional.mse_loss(student, teacher)
    own = functional.log_softmax(student, dim=-1)
    other = functional.log_softmax(teacher, dim=-1)
    return functional.kl_div(own, other, reduction="batchmean", log_target=True)
