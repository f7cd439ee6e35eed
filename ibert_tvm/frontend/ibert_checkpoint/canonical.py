"""The float model of an `ibert` checkpoint in canonical form, built from its weights.

The architecture is RoBERTa's encoder, which transformers' float mode of `ibert` computes too.
Values are named after the modules of the source; sums after the module that holds them.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ...common.types import Weights
from ...model.heads import HEADS, Layer
from ..canonicalise import Canonical
from ..canonicalise.builder import layer_of
from ..canonicalise.inputs import TOKEN_IDS
from ..canonicalise.values import Emitted
from ..encoder_builder import POSITIONS, TYPES, WORDS, EncoderBuilder
from .config import IbertConfig

TYPE_TABLE = f"{TYPES}.weight"


def layer(index: int) -> str:
    """Return the module path of an encoder layer."""
    return f"encoder.layer.{index}"


def build_canonical(
    config: IbertConfig, weights: Weights, head: str, pooling: str = "mean"
) -> Canonical:
    """Build the float model.

    Parameters
    ----------
    config
        Sizes.
    weights
        What its `shapes` and `head_shapes` name, float32.
    head
        One of `ibert_tvm.model.heads.HEADS`.
    pooling
        ``mean`` or ``cls``, for ``sentence_embedding``.

    Returns
    -------
    Canonical
        Its report says what became of the source's modules.
    """
    return _Builder(config, weights, pooling).run(HEADS[head].checkpoint or ())


class _Builder(EncoderBuilder):
    """The canonical function under construction."""

    def __init__(self, config: IbertConfig, weights: Weights, pooling: str) -> None:
        super().__init__(config, weights)
        self.pooling = pooling
        if config.type_vocab_size == 1:
            # Every token has the only type, and a table needs ids: its row at every position.
            row = weights[TYPE_TABLE]
            self.weights[TYPE_TABLE] = np.repeat(row, config.max_sequence_length, axis=0)
            self.c.note(TYPES, "the only token type is looked up without token_type_ids")

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.config.head_size)

    def module_class(self, op: str, name: str) -> str:
        if op == "linear":
            return "QuantLinear" if name.startswith("encoder.") else "Linear"
        classes = {
            "embedding": "QuantEmbedding",
            "add": "QuantAct",
            "attention": "IBertSelfAttention",
            "layer_norm": "IntLayerNorm",
            "gelu": "IntGELU",
        }
        return classes.get(op, "function")

    def derived(self, name: str, kind: str) -> str:
        return f"{layer_of(name)}.{kind}"

    def add(self, x: Emitted, y: Emitted, name: str, module: str) -> Emitted:
        act = module if module.startswith("embeddings.") else f"{module}.ln_input_act"
        return super().add(x, y, name, act)

    def embeddings(self) -> Emitted:
        ids = self.c.input_vars[TOKEN_IDS]
        types: relax.Var | Emitted | None = self.c.input_vars.get("token_type_ids")
        if types is None:
            name = "embeddings.token_types"
            types = self.emit("position_ids", name, 0, ids, modules=(TYPES,), kind="absolute")
        positions = self.emit(
            *("position_ids", "embeddings.position_ids", 0, ids),
            modules=("embeddings",),
            kind="roberta",
            padding_index=self.config.pad_token_id,
        )
        lookups = ((WORDS, ids), (TYPES, types), (POSITIONS, positions))
        word, type_row, position = (self.table(name, index) for name, index in lookups)
        act = "embeddings.embeddings_act1"
        x = self.add(word, type_row, "embeddings.add_token_type", act)
        return self.norm(
            self.add(x, position, "embeddings.add_position", act), "embeddings.LayerNorm"
        )

    def head(self, x: Emitted, step: Layer) -> Emitted:
        module = (step.module or step.name,)
        if step.op == "linear":
            return self.linear(x, step.name)
        if step.op == "tanh":
            return self.emit("tanh", step.name, x.channels, x, modules=module)
        if step.op == "first_token" or self.pooling == "cls":
            name = f"{step.name}.first_token"
            return self.emit("select_token", name, x.channels, x, modules=(step.name,))
        name = f"{step.name}.mean"
        return self.emit("mean_pool", name, x.channels, x, self.mask, modules=(step.name,))
