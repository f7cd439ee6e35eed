"""A compiled model in a `pipeline` of transformers.

    classify = pipeline("text-classification", "model.so")

Tokenisation, scores and entities are those of transformers; the numbers behind them are the
library's. `Encoder` alone is faster: it sorts by length, and tokenises while it computes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..common.errors import UsageError
from ..encoder import Encoder
from .requirements import require_package

require_package("transformers", __name__)

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.modeling_outputs import ModelOutput  # noqa: E402


class IbertModel(torch.nn.Module):
    """What a pipeline calls in place of a model.

    Parameters
    ----------
    encoder
        What runs.
    output
        Name of the output that the pipeline reads.
    result
        What transformers calls it.
    """

    def __init__(self, encoder: Encoder, output: str, result: str) -> None:
        super().__init__()
        self.encoder, self._output, self._result = encoder, output, result
        labels = dict(enumerate(encoder.labels)) or {0: "LABEL_0"}
        self.config = transformers.PretrainedConfig(
            id2label=labels,
            label2id={label: index for index, label in labels.items()},
            name_or_path=str(encoder.library.metadata.path),
            model_digest=encoder.library.metadata.digest,
        )
        self.device = torch.device("cpu")

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        **_options: Any,
    ) -> ModelOutput:
        """Run the library.

        Parameters
        ----------
        input_ids, attention_mask, token_type_ids
            int [texts, tokens]; what the model does not take is left out.

        Returns
        -------
        ModelOutput
            With the one output, float32 [texts, tokens, channels] or [texts, classes].
        """
        given = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
        }
        inputs: dict[str, Any] = {
            record.name: tensor.cpu().numpy()
            for record in self.encoder.library.metadata.inputs
            if (tensor := given.get(record.name)) is not None
        }
        values = self.encoder.library.run(**inputs)[self._output]
        return ModelOutput({self._result: torch.from_numpy(values)})


class _AnyName:
    """A pipeline that takes a model whatever its class is called: `pipeline` checks its output."""

    def check_model_type(self, supported_models: Any) -> None:
        """Nothing."""


class _Features(_AnyName, transformers.FeatureExtractionPipeline):
    """Hidden states of tokens."""


class _Classes(_AnyName, transformers.TextClassificationPipeline):
    """Classes of texts."""


class _Entities(_AnyName, transformers.TokenClassificationPipeline):
    """Classes of tokens."""


_TASKS: Mapping[str, tuple[str, str, Any]] = {
    "feature-extraction": ("token_embeddings", "last_hidden_state", _Features),
    "text-classification": ("classify", "logits", _Classes),
    "sentiment-analysis": ("classify", "logits", _Classes),
    "token-classification": ("tag", "logits", _Entities),
    "ner": ("tag", "logits", _Entities),
}
"""What `Encoder` calls it, transformers' name of the output, and the pipeline."""


def pipeline(task: str, model: str | os.PathLike[str] | Encoder, **options: Any) -> Any:
    """Make a pipeline as `transformers.pipeline` does.

    Parameters
    ----------
    task
        ``feature-extraction``, ``text-classification`` (``sentiment-analysis``) or
        ``token-classification`` (``ner``).
    model : path or Encoder
        What `Encoder` takes, or one.
    **options
        Options of `transformers.pipeline`, for example ``aggregation_strategy`` or ``top_k``.

    Returns
    -------
    transformers.Pipeline

    Raises
    ------
    UsageError
        If the task is another one, or the model has no output for it.
    IbertError
        As `Encoder` raises.
    """
    if task not in _TASKS:
        raise UsageError(
            f"there is no pipeline for {task!r}",
            todo=f"use one of {', '.join(_TASKS)}; `Encoder` has methods for other heads",
        )
    method, result, kind = _TASKS[task]
    encoder = model if isinstance(model, Encoder) else Encoder(model)
    function = encoder.score_function(method) if method == "classify" else None
    if function is not None:
        options.setdefault("function_to_apply", function)
    return transformers.pipeline(
        task,
        model=IbertModel(encoder, encoder.output_name(method), result),
        tokenizer=tokenizer_of(encoder),
        device="cpu",
        pipeline_class=kind,
        **options,
    )


def tokenizer_of(encoder: Encoder) -> Any:
    """Return the model's tokenizer as a `transformers.PreTrainedTokenizerFast`."""
    own = encoder.tokenizer.fast_copy()
    names = [
        record.name
        for record in encoder.library.metadata.inputs
        if record.name != "token_type_ids" or encoder.tokenizer.has_types
    ]
    # Pipelines ask for the unknown token, and leave special ones out of entities.
    special = dict(encoder.tokenizer.special_tokens)
    if unknown := getattr(own.model, "unk_token", None):
        special.setdefault("unk_token", unknown)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=own,
        model_max_length=encoder.max_seq_length,
        model_input_names=names,
        truncation_side=encoder.tokenizer.truncation_side,
        **{"pad_token": own.id_to_token(encoder.tokenizer.pad_id), **special},
    )
