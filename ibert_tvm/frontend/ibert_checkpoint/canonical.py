"""The float model of an `ibert` checkpoint in canonical form, built from its names.

The architecture is one: RoBERTa's encoder, which transformers' float mode of `ibert` computes too.
No graph is traced, so neither torch nor transformers is needed. Values are named after the modules
of the source; sums after the module that holds them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from tvm import relax, tirx

from ibert_tvm.relay_passes.canonical import build, check_canonical

from ...model.heads import HEADS
from ..canonicalise import Canonical
from ..report import Folding, ImportReport, MatchedOp
from .config import IbertConfig

TYPE_TABLE = "embeddings.token_type_embeddings.weight"


# Classes of transformers' modules; where there is none a function does the work.
_CLASSES = {
    "embedding": "QuantEmbedding",
    "add": "QuantAct",
    "attention": "IBertSelfAttention",
    "layer_norm": "IntLayerNorm",
    "gelu": "IntGELU",
}


def layer(index: int) -> str:
    """Return the module path of an encoder layer."""
    return f"encoder.layer.{index}"


def _layer(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of a linear layer, or of a norm."""
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def shapes(config: IbertConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of the encoder's float weights, by their names in the checkpoint.

    Parameters
    ----------
    config
        Sizes.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    result = {
        "embeddings.word_embeddings.weight": (config.vocab_size, hidden),
        TYPE_TABLE: (config.type_vocab_size, hidden),
        "embeddings.position_embeddings.weight": (config.max_position_embeddings, hidden),
        **_layer("embeddings.LayerNorm", hidden),
    }
    for index in range(config.num_hidden_layers):
        path = layer(index)
        for part in ("query", "key", "value"):
            result |= _layer(f"{path}.attention.self.{part}", hidden, hidden)
        result |= _layer(f"{path}.attention.output.dense", hidden, hidden)
        result |= _layer(f"{path}.attention.output.LayerNorm", hidden)
        result |= _layer(f"{path}.intermediate.dense", inner, hidden)
        result |= _layer(f"{path}.output.dense", hidden, inner)
        result |= _layer(f"{path}.output.LayerNorm", hidden)
    return result


def head_shapes(config: IbertConfig, head: str, labels: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a head's float weights.

    Parameters
    ----------
    config
        Sizes.
    head
        One of `ibert_tvm.model.heads.HEADS`.
    labels
        Classes of a classification head.
    """
    sizes = {"hidden": config.hidden_size, "labels": labels}
    result: dict[str, tuple[int, ...]] = {}
    for step in HEADS[head].checkpoint or ():
        if step.op == "linear":
            rows = step.rows if isinstance(step.rows, int) else sizes[step.rows]
            result |= _layer(step.name, rows, config.hidden_size)
    return result


def build_canonical(
    config: IbertConfig,
    weights: Mapping[str, NDArray[np.float32]],
    head: str,
    pooling: str = "mean",
) -> Canonical:
    """Build the float model.

    Parameters
    ----------
    config
        Sizes.
    weights
        What `shapes` and `head_shapes` name, float32.
    head
        One of `ibert_tvm.model.heads.HEADS`.
    pooling
        ``mean`` or ``cls``, for ``sentence_embedding``.

    Returns
    -------
    Canonical
        Its report says what became of the source's modules.
    """
    return _Builder(config, weights).run(head, pooling)


class _Builder:
    """The canonical function under construction."""

    def __init__(self, config: IbertConfig, weights: Mapping[str, NDArray[np.float32]]) -> None:
        self.config = config
        self.parameters = dict(weights)
        one_type = config.type_vocab_size == 1
        if one_type:
            # Every token has the only type, and a table needs ids: its row at every position.
            row = weights[TYPE_TABLE]
            self.parameters[TYPE_TABLE] = np.repeat(row, config.max_sequence_length, axis=0)
        names = ["input_ids", "attention_mask"] + ([] if one_type else ["token_type_ids"])
        symbols = [tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")]
        tokens = relax.TensorType(symbols, "int64")
        self.inputs = {name: relax.Var(name, tokens) for name in names}
        self.variables = {
            name: relax.Var(name, relax.TensorType(list(array.shape), "float32"))
            for name, array in self.parameters.items()
        }
        self.builder = relax.BlockBuilder()
        self.report = ImportReport()
        if one_type:
            what = "the only token type is looked up without token_type_ids"
            self.report.foldings.append(Folding("embeddings.token_type_embeddings", what))

    def run(self, head: str, pooling: str) -> Canonical:
        params = [*self.inputs.values(), *self.variables.values()]
        attrs = {"num_input": len(self.inputs)}
        with self.builder.function("main", params, attrs=attrs):
            with self.builder.dataflow():
                hidden = self.embeddings()
                for index in range(self.config.num_hidden_layers):
                    hidden = self.layer(hidden, layer(index))
                result = self.head(hidden, head, pooling)
                output = self.builder.emit_output(result)
            self.builder.emit_func_output(output)
        module = self.builder.get()
        check_canonical(module)
        name = self.report.matched[-1].name
        return Canonical(
            module,
            self.parameters,
            tuple(self.inputs),
            ((name, len(result.ty.shape.values)),),
            self.config.num_hidden_layers,
            self.report,
            "attention_mask",
            (),
        )

    def emit(
        self,
        op: str,
        name: str,
        /,
        *operands: relax.Var,
        modules: tuple[str, ...] = (),
        module_class: str = "",
        **attributes: int | float | str,
    ) -> relax.Var:
        """Append an operator; `modules` of the source, of one class, are what it replaces."""
        call = getattr(build, op)(*operands, name=name, **attributes)
        kinds = (module_class or _CLASSES.get(op, "function"),)
        self.report.matched.append(MatchedOp(str(call.op.name), name, kinds, modules or (name,)))
        return self.builder.emit(call, name.replace(".", "_"))

    def weights(self, name: str) -> tuple[relax.Var, relax.Var]:
        return self.variables[f"{name}.weight"], self.variables[f"{name}.bias"]

    def linear(self, x: relax.Var, name: str) -> relax.Var:
        kind = "QuantLinear" if name.startswith("encoder.") else "Linear"
        return self.emit("linear", name, x, *self.weights(name), module_class=kind)

    def norm(self, x: relax.Var, name: str) -> relax.Var:
        epsilon = self.config.layer_norm_eps
        return self.emit("layer_norm", name, x, *self.weights(name), epsilon=epsilon)

    def embeddings(self) -> relax.Var:
        ids = self.inputs["input_ids"]
        types = self.inputs.get("token_type_ids")
        if types is None:
            module = ("embeddings.token_type_embeddings",)
            name, kind = "embeddings.token_types", "absolute"
            types = self.emit("position_ids", name, ids, modules=module, kind=kind)
        name, padding = "embeddings.position_ids", self.config.pad_token_id
        positions = self.emit(
            *("position_ids", name, ids),
            modules=("embeddings",),
            kind="roberta",
            padding_index=padding,
        )
        word, type_row, position = (
            self.emit("embedding", name, self.variables[f"{name}.weight"], index)
            for part, index in (("word", ids), ("token_type", types), ("position", positions))
            for name in [f"embeddings.{part}_embeddings"]
        )
        act = ("embeddings.embeddings_act1",)
        typed = self.emit("add", "embeddings.add_token_type", word, type_row, modules=act)
        placed = self.emit("add", "embeddings.add_position", typed, position, modules=act)
        return self.norm(placed, "embeddings.LayerNorm")

    def layer(self, x: relax.Var, path: str) -> relax.Var:
        inner, wide_path = f"{path}.attention.self", f"{path}.intermediate"
        q, k, v = (self.linear(x, f"{inner}.{part}") for part in ("query", "key", "value"))
        context = self.emit(
            *("attention", inner, q, k, v, self.inputs["attention_mask"]),
            modules=(inner, f"{inner}.softmax"),
            num_heads=self.config.num_attention_heads,
            scale=1.0 / math.sqrt(self.config.head_size),
        )
        attended = self.residual(context, x, f"{path}.attention.output")
        wide = self.linear(attended, f"{wide_path}.dense")
        module = (f"{wide_path}.intermediate_act_fn",)
        active = self.emit("gelu", f"{wide_path}.gelu", wide, modules=module)
        return self.residual(active, attended, f"{path}.output")

    def residual(self, x: relax.Var, identity: relax.Var, path: str) -> relax.Var:
        projected = self.linear(x, f"{path}.dense")
        module = (f"{path}.ln_input_act",)
        total = self.emit("add", f"{path}.add", projected, identity, modules=module)
        return self.norm(total, f"{path}.LayerNorm")

    def head(self, x: relax.Var, head: str, pooling: str) -> relax.Var:
        for step in HEADS[head].checkpoint or ():
            module = (step.module or step.name,)
            if step.op == "linear":
                x = self.linear(x, step.name)
            elif step.op == "tanh":
                x = self.emit("tanh", step.name, x, modules=module)
            elif step.op == "first_token" or pooling == "cls":
                x = self.emit("select_token", f"{step.name}.first_token", x, modules=(step.name,))
            else:
                mask = self.inputs["attention_mask"]
                x = self.emit("mean_pool", f"{step.name}.mean", x, mask, modules=(step.name,))
        return x
