"""The canonical program of an encoder, built from its weights: no graph is traced.

Values have the names that canonicalisation of the traced model gives them: that of the module, and
what was made of its result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ibert_tvm.relay_passes.canonical import check_canonical

from ..common.types import Weights
from ..model.heads import Layer
from .canonicalise import Canonical
from .canonicalise.builder import Builder, Read, layer_of
from .canonicalise.inputs import TOKEN_IDS, Ids, Probes
from .canonicalise.values import Emitted
from .report import SourceOp
from .sentence_pipeline import Dense, LayerNorm, Normalize, Pooling, Step

MASK = "attention_mask"
_TORCH_EPSILON = 1e-5
"""Of a LayerNorm for which nothing else is said."""
WORDS, TYPES, POSITIONS = (
    f"embeddings.{part}_embeddings" for part in ("word", "token_type", "position")
)
_PROJECTION = "embeddings_project"
ENCODER_PARTS = ("embeddings", _PROJECTION, "encoder", "transformer", "pooler")
"""Modules of an encoder; others belong to heads."""


def in_encoder(name: str) -> bool:
    """Whether a module or a weight is a part of the encoder, and not of a head."""
    return name.partition(".")[0] in ENCODER_PARTS


ACTIVATIONS: Mapping[str, tuple[str, dict[str, str]]] = {
    "gelu": ("gelu", {"form": "erf"}),
    "gelu_new": ("gelu", {"form": "tanh"}),
    "gelu_pytorch_tanh": ("gelu", {"form": "tanh"}),
    "relu": ("relu", {}),
    "silu": ("silu", {}),
    "swish": ("silu", {}),
}
"""Canonical operator and attributes by what transformers calls a function."""

_POOLS = {
    "max": "max_pool",
    "mean": "mean_pool",
    "mean_sqrt_len": "sqrt_mean_pool",
    "weightedmean": "weighted_mean_pool",
    "lasttoken": "last_token",
}
"""Operators by mode of `ibert_tvm.frontend.sentence_pipeline.POOLINGS`, beside the first token."""

_DENSE = {"Identity": "", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}
"""Steps by activation of a dense layer."""

SIZES = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
"""Of BERT-Base, which configurations have that do not say otherwise."""


@dataclass(frozen=True)
class LayerNames:
    """Modules of an encoder layer, in the order in which they are applied.

    Parameters
    ----------
    path
        Of the layer, with ``{}`` for its number; the others are below it.
    attention
        What computes the attention.
    query, key, value, attended, norm, wide, activation, narrow, last_norm
        Linear layers, norms and the activation between two of them.
    """

    path: str = "encoder.layer.{}"
    attention: str = "attention.self"
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attended: str = "attention.output.dense"
    norm: str = "attention.output.LayerNorm"
    wide: str = "intermediate.dense"
    activation: str = "intermediate.intermediate_act_fn"
    narrow: str = "output.dense"
    last_norm: str = "output.LayerNorm"


BERT_LAYER = LayerNames()


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes of an encoder, called as transformers calls them.

    Attributes
    ----------
    vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size
        Sizes.
    max_position_embeddings, type_vocab_size
        Rows of the tables of positions and of token types; 0 types where there is no table.
    pad_token_id
        Padding.
    layer_norm_eps
        Of all norms.
    hidden_act
        Of `ACTIVATIONS`.
    embedding_size
        Channels of the tables, where a linear layer follows them; None for `hidden_size`.
    positions
        ``absolute``, or ``roberta``: counted from the padding's id, which padding keeps.
    names
        Of the modules of a layer.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int
    pad_token_id: int
    layer_norm_eps: float
    hidden_act: str = "gelu"
    embedding_size: int | None = None
    positions: str = "roberta"
    names: LayerNames = BERT_LAYER

    @property
    def head_size(self) -> int:
        """Channels of an attention head."""
        return self.hidden_size // self.num_attention_heads

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the encoder's weights without a head, by their names in it."""
        hidden, inner, names = self.hidden_size, self.intermediate_size, self.names
        channels = self.embedding_size or hidden
        rows = {
            WORDS: self.vocab_size,
            TYPES: self.type_vocab_size,
            POSITIONS: self.max_position_embeddings,
        }
        result: dict[str, tuple[int, ...]] = {
            f"{name}.weight": (count, channels) for name, count in rows.items() if count
        }
        result |= _affine("embeddings.LayerNorm", channels)
        if self.embedding_size is not None:
            result |= _affine(_PROJECTION, hidden, channels)
        for index in range(self.num_hidden_layers):
            path = names.path.format(index)
            for name in (names.query, names.key, names.value, names.attended):
                result |= _affine(f"{path}.{name}", hidden, hidden)
            result |= _affine(f"{path}.{names.norm}", hidden)
            result |= _affine(f"{path}.{names.wide}", inner, hidden)
            result |= _affine(f"{path}.{names.narrow}", hidden, inner)
            result |= _affine(f"{path}.{names.last_norm}", hidden)
        return result

    def head_shapes(self, steps: Iterable[Layer], labels: int) -> dict[str, tuple[int, ...]]:
        """Shapes of a head's weights.

        Parameters
        ----------
        steps
            Of the head.
        labels
            Classes of a classification head.
        """
        sizes = {"hidden": self.hidden_size, "labels": labels}
        result: dict[str, tuple[int, ...]] = {}
        for step in steps:
            if step.op == "linear":
                rows = step.rows if isinstance(step.rows, int) else sizes[step.rows]
                result |= _affine(step.name, rows, self.hidden_size)
        return result


def _affine(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of a linear layer, or of a norm."""
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


class EncoderBuilder:
    """The canonical function of an encoder under construction.

    Parameters
    ----------
    config
        Sizes.
    weights
        What `EncoderConfig.shapes` names, and what heads need, float32.
    prefix
        Of an encoder's modules in the model that it is a part of, with its dot.
    """

    def __init__(self, config: EncoderConfig, weights: Weights, prefix: str = "") -> None:
        self.config, self.weights, self.prefix = config, dict(weights), prefix
        types = ("token_type_ids",) if config.type_vocab_size > 1 else ()
        self.c = Builder(Probes((TOKEN_IDS, MASK, *types), 2, 3))  # nothing is probed
        self.mask = self.c.attention_mask(MASK)

    def run(self, head: Iterable[Layer], after: Sequence[Step] = ()) -> Canonical:
        """Build the encoder, its head, and what follows in a sentence-transformers folder.

        Returns
        -------
        Canonical
            Its report says what became of the source's modules.
        """
        c = self.c
        with c.block.function("main"):
            with c.block.dataflow():
                x = self.embeddings()
                for index in range(self.config.num_hidden_layers):
                    x = self.layer(x, self.path(self.config.names.path.format(index)))
                for layer in head:
                    x = self.head(x, layer)
                for index, step in enumerate(after):
                    x = self.module(x, step, f"after.steps.{index}")
                output = c.block.emit_output(x.var)
            parameters = (variable for variable, _ in c.parameters.values())
            c.block.emit_func_output(output, [*c.input_vars.values(), *parameters])
        module = c.block.get()
        module["main"] = module["main"].with_attr("num_input", len(c.input_vars))
        check_canonical(module)
        return Canonical(
            module,
            {name: array for name, (_, array) in c.parameters.items()},
            tuple(c.input_vars),
            ((x.name, x.var.ty.ndim),),
            self.config.num_hidden_layers,
            c.report,
            MASK,
            (),
        )

    def path(self, name: str) -> str:
        """A module's name in the model."""
        return f"{self.prefix}{name}" if in_encoder(name) else name

    def module_class(self, op: str, name: str) -> str:
        """Class of the source's module that an operator replaces, for the report."""
        classes = {"embedding": "Embedding", "linear": "Linear", "layer_norm": "LayerNorm"}
        return classes.get(op, "function")

    def derived(self, name: str, kind: str) -> str:
        """Name of what an operator makes of a module's result."""
        return f"{name}.{kind}"

    def weight(self, name: str) -> relax.Var:
        """Return the parameter that holds a weight."""
        return self.c.weight(name, self.weights[name])

    def emit(
        self,
        op: str,
        name: str,
        channels: int,
        /,
        *operands: Read,
        modules: tuple[str, ...] = (),
        **attributes: int | float | str,
    ) -> Emitted:
        """Append an operator; `modules` of the source are what it replaces."""
        kind = self.module_class(op, name)
        ops = [SourceOp(kind, module) for module in modules or (name,)]
        return Emitted.call(self.c, op, name, channels, ops, *operands, **attributes)

    def linear(self, x: Emitted, name: str) -> Emitted:
        """Append a linear layer."""
        rows = len(self.weights[f"{name}.weight"])
        if f"{name}.bias" not in self.weights:
            self.c.note(name, "the source has no bias: zeros")
            self.weights[f"{name}.bias"] = np.zeros(rows, np.float32)
        weight, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.emit("linear", name, rows, x, weight, bias)

    def norm(self, x: Emitted, name: str, epsilon: float | None = None) -> Emitted:
        """Append a LayerNorm."""
        weight, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        epsilon = self.config.layer_norm_eps if epsilon is None else epsilon
        return self.emit("layer_norm", name, x.channels, x, weight, bias, epsilon=epsilon)

    def table(self, name: str, ids: Read) -> Emitted:
        """Append the lookup of a table's rows."""
        weight = self.weight(f"{name}.weight")
        return self.emit("embedding", name, self.weights[f"{name}.weight"].shape[1], weight, ids)

    def add(self, x: Emitted, y: Emitted, name: str, module: str) -> Emitted:
        """Append a sum, which a module computes."""
        return self.emit("add", name, x.channels, x, y, modules=(module,))

    def embeddings(self) -> Emitted:
        """Sum of the tables' rows, normalised; the row of an only type is added to all words."""
        config, inputs = self.config, self.c.input_vars
        words, types, positions = map(self.path, (WORDS, TYPES, POSITIONS))
        x = None
        if config.type_vocab_size == 1:
            row = self.weights[f"{types}.weight"][0]
            self.c.note(f"{types}.weight", "row 0 is used for every token: a constant")
            self.c.note(f"{words}.weight", f"{types}.weight[0] added to every row")
            self.weights[f"{words}.weight"] = self.weights[f"{words}.weight"] + row
        elif config.type_vocab_size:
            x = self.table(words, inputs[TOKEN_IDS])
            y = self.table(types, inputs["token_type_ids"])
            x = self.add(x, y, self.derived(types, "add"), layer_of(types))
        counted = config.pad_token_id if config.positions == "roberta" else 0
        ids = self.c.positions(
            Ids(config.positions, TOKEN_IDS, counted), self.derived(positions, "position_ids")
        )
        x = x or self.table(words, inputs[TOKEN_IDS])
        y = self.table(positions, ids)
        x = self.add(x, y, self.derived(positions, "add"), layer_of(positions))
        x = self.norm(x, self.path("embeddings.LayerNorm"))
        return x if config.embedding_size is None else self.linear(x, self.path(_PROJECTION))

    def layer(self, x: Emitted, path: str) -> Emitted:
        """Append an encoder layer."""
        config, names = self.config, self.config.names
        inputs = (
            self.linear(x, f"{path}.{part}") for part in (names.query, names.key, names.value)
        )
        context = self.emit(
            "attention",
            f"{path}.{names.attention}",
            config.hidden_size,
            *inputs,
            self.mask,
            num_heads=config.num_attention_heads,
            scale=self.scale,
        )
        x = self.residual(context, x, f"{path}.{names.attended}", f"{path}.{names.norm}")
        wide = self.linear(x, f"{path}.{names.wide}")
        active = self.function(wide, config.hidden_act, f"{path}.{names.activation}")
        return self.residual(active, x, f"{path}.{names.narrow}", f"{path}.{names.last_norm}")

    @property
    def scale(self) -> float:
        """Of the scores: a float32 number, as in a traced model."""
        return float(np.float32(1.0 / math.sqrt(self.config.head_size)))

    def residual(self, x: Emitted, identity: Emitted, dense: str, norm: str) -> Emitted:
        """Append a linear layer, the sum with its block's input, and a norm."""
        x = self.linear(x, dense)
        total = self.add(x, identity, self.derived(dense, "add"), layer_of(dense))
        return self.norm(total, norm)

    def head(self, x: Emitted, step: Layer) -> Emitted:
        """Append a step of a head."""
        name = self.path(step.name)
        if step.op == "linear":
            return self.linear(x, name)
        if step.op == "first_token":
            return self.first_token(x, name)
        return self.function(x, step.op, name)

    def module(self, x: Emitted, step: Step, name: str) -> Emitted:
        """Append a module behind the transformer; `builds` tells which can be."""
        match step:
            case Dense():
                x = self.linear(x, f"{name}.linear")
                function = _DENSE[step.activation]
                return self.function(x, function, f"{name}.activation") if function else x
            case LayerNorm():
                return self.norm(x, f"{name}.norm", _TORCH_EPSILON)
            case Normalize():
                return self.function(x, "l2_norm", name)
            case Pooling(modes=("cls",)):
                return self.first_token(x, name)
            case Pooling(modes=(mode,)):
                kind = _POOLS[mode]
                derived = self.derived(x.name, kind)
                return self.emit(kind, derived, x.channels, x, self.mask, modules=(name,))
        raise AssertionError(step)

    def first_token(self, x: Emitted, module: str) -> Emitted:
        """Append the choice of the first token."""
        name = self.derived(x.name, "token0")
        return self.emit("select_token", name, x.channels, x, modules=(module,), index=0)

    def function(self, x: Emitted, function: str, module: str) -> Emitted:
        """Append a function of elements, or of rows."""
        op, attributes = ACTIVATIONS.get(function, (function, {}))
        name = self.derived(x.name, op)
        return self.emit(op, name, x.channels, x, modules=(module,), **attributes)


def builds(step: Step, channels: int) -> bool:
    """Whether `EncoderBuilder` has a module, given the channels of its input."""
    match step:
        case Dense():
            return step.inputs == channels and step.activation in _DENSE
        case LayerNorm():
            return step.channels == channels
        case Pooling():
            return len(step.modes) == 1
    return isinstance(step, Normalize)
