"""Architectures of transformers whose folders are imported without it: a record each.

A setting of config.json is read, has no influence on what an encoder computes, or must have the one
value that changes nothing. A folder with any other setting is left to transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..common.errors import IbertError
from ..common.strict_json import JsonObject, shown
from ..model.heads import HEADS, Layer, PooledTokens, WholePipeline
from .encoder_builder import ACTIVATIONS, BERT_LAYER, SIZES, EncoderConfig, LayerNames


class NeedsTransformersError(IbertError):
    """A folder needs transformers; the message is the end of "importing a folder ..."."""


_IDLE = frozenset(
    (
        *("_name_or_path", "architectures", "model_type", "transformers_version"),
        *("dtype", "torch_dtype", "use_cache", "gradient_checkpointing", "output_past"),
        # Of training, and of generation.
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"),
        *("dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout"),
        *("initializer_range", "tie_word_embeddings", "tie_weights_", "finetuning_task"),
        *("bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "mask_token_id"),
        # Of classes that are not imported.
        *("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"),
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads"),
        *("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"),
        # Read for what follows the network, in `post_processing`.
        *("id2label", "label2id", "num_labels", "problem_type", "sentence_transformers"),
        *("sbert_ce_default_activation_function", "threshold", "thresholds"),
    )
)
"""Settings without influence on the encoder, or that are read elsewhere."""

_ONLY: Mapping[str, Any] = {
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "return_dict": True,
    "sinusoidal_pos_embds": False,
    "torchscript": False,
    "use_bfloat16": False,
}
"""Settings whose other values are left to transformers."""

_ENCODERS = ("Model", "ForMaskedLM", "ForPreTraining")
"""Ends of the names of classes whose folders are imported as encoders."""

_DEFAULTS: Mapping[str, Any] = {
    **SIZES,
    "pad_token_id": 0,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}

_TAGS = {
    name: HEADS[name].checkpoint or () for name in ("token_classification", "question_answering")
}
_POOLER = HEADS["pooled"].checkpoint or ()
_CLASSIFIER = Layer("linear", "classifier", "labels")


@dataclass(frozen=True)
class Family:
    """An architecture.

    Parameters
    ----------
    model_type
        As config.json names it.
    classes
        How the names of its classes begin.
    prefix
        Of the encoder in a model with a head.
    heads
        Steps by head, for those that classes compute, and ``pooled``.
    defaults
        Of settings, where they differ from BERT's.
    settings
        Names of settings that are called otherwise.
    fixed
        What is no setting.
    names
        Modules of a layer.
    positions
        See `EncoderConfig`.
    """

    model_type: str
    classes: str
    prefix: str
    heads: Mapping[str, tuple[Layer, ...]]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    names: LayerNames = BERT_LAYER
    positions: str = "absolute"

    @property
    def class_names(self) -> list[str]:
        """Classes whose folders are imported."""
        ends = (end for head in self.heads for end in HEADS[head].classes)
        return [f"{self.classes}{end}" for end in (*_ENCODERS, *ends)]

    def steps(self, head: str) -> tuple[Layer, ...] | None:
        """Steps of a head on top of the hidden state; None if there is no such head."""
        finish = HEADS[head].finish
        every = head == "none" or isinstance(finish, PooledTokens | WholePipeline)
        return self.heads.get(head, () if every else None)

    def prefix_of(self, head: str) -> str:
        """Before the names of the encoder's modules, in the model that has the head."""
        return f"{self.prefix}." if HEADS[head].classes else ""

    def read(self, document: JsonObject) -> EncoderConfig:
        """Read a configuration.

        Raises
        ------
        NeedsTransformersError
            If a setting is not known here, or has a value that transformers has to judge.
        """
        defaults = {**_DEFAULTS, **self.defaults}
        keys = {self.settings.get(name, name): name for name in defaults if name not in self.fixed}
        for key, value in document.items():
            if key in _ONLY and value == _ONLY[key] and type(value) is type(_ONLY[key]):
                continue
            if key not in _IDLE and key not in keys:
                raise NeedsTransformersError(f"whose config.json has {key}: {shown(value)}")
        values = {name: document.get(key, defaults[name]) for key, name in keys.items()}
        for name, value in values.items():
            if not _is_usable(name, value):
                raise NeedsTransformersError(f"whose {name} is {shown(value)}")
        if values["hidden_size"] % values["num_attention_heads"]:
            raise NeedsTransformersError("whose num_attention_heads do not divide hidden_size")
        if values["pad_token_id"] >= values["vocab_size"]:
            raise NeedsTransformersError("whose pad_token_id is outside of the vocabulary")
        if values.get("embedding_size") == values["hidden_size"]:
            del values["embedding_size"]
        return EncoderConfig(**values, **self.fixed, positions=self.positions, names=self.names)


def _is_usable(name: str, value: object) -> bool:
    if name == "hidden_act":
        return value in ACTIVATIONS
    if name == "layer_norm_eps":
        return type(value) is float and value > 0
    return type(value) is int and value >= (0 if name == "pad_token_id" else 1)


def _roberta(model_type: str, classes: str, vocab_size: int = 30522) -> Family:
    heads = {name: HEADS[name].checkpoint or () for name in (*_TAGS, "sequence_classification")}
    defaults = {"vocab_size": vocab_size, "pad_token_id": 1}
    return Family(
        *(model_type, classes, "roberta", {**heads, "pooled": _POOLER}, defaults),
        positions="roberta",
    )


FAMILIES = {
    family.model_type: family
    for family in (
        Family(
            *("bert", "Bert", "bert"),
            {**_TAGS, "pooled": _POOLER, "sequence_classification": (*_POOLER, _CLASSIFIER)},
        ),
        _roberta("roberta", "Roberta", 50265),
        _roberta("xlm-roberta", "XLMRoberta"),
        _roberta("camembert", "Camembert"),
        Family(
            *("distilbert", "DistilBert", "distilbert"),
            {
                **_TAGS,
                "sequence_classification": (
                    Layer("first_token", "pre_classifier"),
                    Layer("linear", "pre_classifier"),
                    Layer("relu", "pre_classifier"),
                    _CLASSIFIER,
                ),
            },
            {"num_hidden_layers": 6},
            {
                "hidden_size": "dim",
                "num_hidden_layers": "n_layers",
                "num_attention_heads": "n_heads",
                "intermediate_size": "hidden_dim",
                "hidden_act": "activation",
            },
            {"type_vocab_size": 0, "layer_norm_eps": 1e-12},
            LayerNames(
                path="transformer.layer.{}",
                attention="attention",
                query="attention.q_lin",
                key="attention.k_lin",
                value="attention.v_lin",
                attended="attention.out_lin",
                norm="sa_layer_norm",
                wide="ffn.lin1",
                activation="ffn.activation",
                narrow="ffn.lin2",
                last_norm="output_layer_norm",
            ),
        ),
        Family(
            *("electra", "Electra", "electra"),
            {
                **_TAGS,
                "sequence_classification": (
                    Layer("first_token", "classifier"),
                    Layer("linear", "classifier.dense"),
                    Layer("gelu", "classifier.dense"),
                    Layer("linear", "classifier.out_proj", "labels"),
                ),
            },
            {
                "embedding_size": 128,
                "hidden_size": 256,
                "num_attention_heads": 4,
                "intermediate_size": 1024,
            },
        ),
    )
}
"""Records by ``model_type``."""
