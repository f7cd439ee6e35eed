"""Small models with random weights of every tested architecture."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
ROBERTA = {**SIZES, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
DISTILBERT = {"vocab_size": 61, "dim": 32, "n_heads": 4, "hidden_dim": 48}
DISTILBERT |= {"max_position_embeddings": 40}

CONFIGS: dict[str, Any] = {
    "bert": lambda **kw: hf.BertConfig(**{**SIZES, **kw}),
    "roberta": lambda **kw: hf.RobertaConfig(**{**ROBERTA, **kw}),
    "xlm-roberta": lambda **kw: hf.XLMRobertaConfig(**{**ROBERTA, **kw}),
    "camembert": lambda **kw: hf.CamembertConfig(**{**ROBERTA, **kw}),
    "electra": lambda **kw: hf.ElectraConfig(**{**SIZES, "embedding_size": 16, **kw}),
    "distilbert": lambda num_hidden_layers=2, **kw: hf.DistilBertConfig(
        **{**DISTILBERT, "n_layers": num_hidden_layers, **kw}
    ),
}
USABLE_LENGTH = {"roberta": 38, "xlm-roberta": 38, "camembert": 38}

CLASSES = {
    "none": "AutoModel",
    "pooled": "AutoModel",
    "sentence_embedding": "AutoModel",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "masked_lm": "AutoModelForMaskedLM",
    "reranker": "AutoModelForSequenceClassification",
}


def make(architecture: str, head: str = "none", **changes: Any) -> Any:
    """A transformers model whose weights are large enough for errors to show."""
    if head.endswith("_classification"):
        changes.setdefault("num_labels", 3)
    if head == "reranker":
        changes.setdefault("num_labels", 1)
    return random_model(CONFIGS[architecture](**changes), head)


def random_model(config: Any, head: str = "none") -> Any:
    """A model of a configuration, likewise."""
    torch.manual_seed(0)
    model = getattr(hf, CLASSES[head]).from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.2)
            elif "norm" not in name.lower():
                parameter.normal_(0, 0.1)
    return model
