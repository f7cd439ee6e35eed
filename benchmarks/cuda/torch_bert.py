"""BERT for the PyTorch peers, written as a careful user of PyTorch would for speed.

One product for queries, keys and values, `scaled_dot_product_attention`, exact GELU, no mask (the
benchmark has no padding, and without a mask PyTorch may take its fastest attention kernel), no
dropout, nothing computed on the host: less overhead than transformers' model of the same weights
has, and capturable as a CUDA graph. transformers itself is not needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.models import ModelSpec

__all__ = ["TorchBert"]

_EPSILON = 1e-12


class TorchBert:
    """A BERT encoder on one device in one precision.

    Parameters
    ----------
    spec : ModelSpec
        Its dimensions.
    weights : dict of str to numpy.ndarray
        As `weights.read_weights` gives them.
    device : str
        ``"cuda"``, or ``"cpu"`` for the reference.
    dtype : torch.dtype
        Of weights and activations.
    """

    def __init__(
        self, spec: ModelSpec, weights: dict[str, np.ndarray], device: str, dtype: torch.dtype
    ) -> None:
        self.spec = spec

        def tensor(*names: str) -> torch.Tensor:
            parts = [np.asarray(weights[name], np.float32) for name in names]
            joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
            return torch.from_numpy(np.ascontiguousarray(joined)).to(device, dtype)

        def pair(name: str) -> tuple[torch.Tensor, torch.Tensor]:
            return tensor(f"{name}.weight"), tensor(f"{name}.bias")

        self.words = tensor("embeddings.word_embeddings.weight")
        # Every token is of type 0, so that its row belongs to the positions.
        types = weights["embeddings.token_type_embeddings.weight"][0]
        positions = weights["embeddings.position_embeddings.weight"] + types
        self.positions = torch.from_numpy(np.ascontiguousarray(positions)).to(device, dtype)
        self.norm = pair("embeddings.LayerNorm")
        self.layers: list[dict[str, Any]] = []
        for number in range(spec.layers):
            layer = f"encoder.layer.{number}"
            parts = [f"{layer}.attention.self.{part}" for part in ("query", "key", "value")]
            self.layers.append(
                {
                    "qkv": (
                        tensor(*(f"{part}.weight" for part in parts)),
                        tensor(*(f"{part}.bias" for part in parts)),
                    ),
                    "out": pair(f"{layer}.attention.output.dense"),
                    "attention_norm": pair(f"{layer}.attention.output.LayerNorm"),
                    "up": pair(f"{layer}.intermediate.dense"),
                    "down": pair(f"{layer}.output.dense"),
                    "norm": pair(f"{layer}.output.LayerNorm"),
                }
            )

    def _normalise(
        self, x: torch.Tensor, scale_and_shift: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        return functional.layer_norm(x, (self.spec.hidden,), *scale_and_shift, eps=_EPSILON)

    def quantise(self) -> None:
        """Have all linear layers compute in INT8: weights by channel, activations by token.

        torchao's dynamic quantisation; it must be installed.
        """
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        for layer in self.layers:
            for name in ("qkv", "out", "up", "down"):
                weight, bias = layer[name]
                linear = torch.nn.Linear(*reversed(weight.shape), device="meta")
                linear.weight = torch.nn.Parameter(weight, requires_grad=False)
                linear.bias = torch.nn.Parameter(bias, requires_grad=False)
                holder = torch.nn.Sequential(linear)
                quantize_(holder, Int8DynamicActivationInt8WeightConfig())
                layer[name] = (holder[0].weight, holder[0].bias)

    @torch.inference_mode()
    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """``last_hidden_state`` [batch, seq_len, hidden] of ids [batch, seq_len] (int64)."""
        batch, length = ids.shape
        heads, hidden = self.spec.heads, self.spec.hidden
        x = functional.embedding(ids, self.words) + self.positions[:length]
        x = self._normalise(x, self.norm)
        for layer in self.layers:
            qkv = functional.linear(x, *layer["qkv"])
            q, k, v = qkv.view(batch, length, 3, heads, hidden // heads).permute(2, 0, 3, 1, 4)
            context = functional.scaled_dot_product_attention(q, k, v)
            context = context.transpose(1, 2).reshape(batch, length, hidden)
            x = x + functional.linear(context, *layer["out"])
            x = self._normalise(x, layer["attention_norm"])
            up = functional.gelu(functional.linear(x, *layer["up"]))
            x = self._normalise(x + functional.linear(up, *layer["down"]), layer["norm"])
        return x
