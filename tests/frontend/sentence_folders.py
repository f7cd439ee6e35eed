"""Folders as sentence-transformers and PyLate save them, and what they compute, in plain torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.frontend.architectures import make

CHANNELS = 32
Module = tuple[str, str, Mapping[str, Any]]
"""Class with its package, folder, and configuration."""

MODELS = "sentence_transformers.models."
TRANSFORMER: Module = (f"{MODELS}Transformer", "", {})
NORMALIZE: Module = (f"{MODELS}Normalize", "9_Normalize", {})
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken")


def pooling(*modes: str) -> Module:
    """A pooling by some modes, the others named too, as the package writes them."""
    suffix = {"cls": "cls_token", "lasttoken": "lasttoken"}
    config = {f"pooling_mode_{suffix.get(m, f'{m}_tokens')}": m in modes for m in POOLINGS}
    config |= {"word_embedding_dimension": CHANNELS, "include_prompt": True}
    return f"{MODELS}Pooling", "1_Pooling", config


def dense(inputs: int, outputs: int, function: str = "activation.Tanh", **fields: Any) -> Module:
    """A dense layer; weights are made by `save`."""
    config = {
        "in_features": inputs,
        "out_features": outputs,
        "bias": True,
        "activation_function": f"torch.nn.modules.{function}",
        **fields,
    }
    return f"{MODELS}Dense", "2_Dense", config


def random_weights(kind: str, config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Weights of a module, the same ones each time."""
    generator = torch.Generator().manual_seed(7)
    if kind == "Dense":
        rows, columns = config["out_features"], config["in_features"]
        weights = {"linear.weight": torch.randn(rows, columns, generator=generator) * 0.3}
        if config.get("bias", True):
            weights["linear.bias"] = torch.randn(rows, generator=generator)
        return weights
    if kind == "LayerNorm":
        size = config["dimension"]
        return {
            "norm.weight": torch.randn(size, generator=generator),
            "norm.bias": torch.randn(size, generator=generator),
        }
    return {}


def save(
    folder: Path, modules: Sequence[Module], architecture: str = "bert", head: str = "none"
) -> Any:
    """Save a small model with modules behind it; return the transformers model."""
    model = make(architecture, head, num_hidden_layers=1).eval()
    model.save_pretrained(folder)
    save_modules(folder, modules)
    return model


def save_modules(folder: Path, modules: Sequence[Module], pickled: bool = False) -> None:
    """Save a list of modules, and the files of those behind the transformer."""
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (kind, path, _) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for kind, path, config in modules:
        if not path:
            continue
        place = folder / path
        place.mkdir(exist_ok=True)
        if config:
            (place / "config.json").write_text(json.dumps(config))
        weights = random_weights(kind.rpartition(".")[2], config)
        if weights and pickled:
            torch.save(weights, place / "pytorch_model.bin")
        elif weights:
            save_file(weights, place / "model.safetensors")


def pooled(mode: str, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What ``sentence_transformers.models.Pooling`` computes, written as it writes it."""
    expanded = mask.unsqueeze(-1).expand(tokens.size()).to(tokens.dtype)
    if mode == "cls":
        return tokens[:, 0]
    if mode == "max":
        tokens = tokens.clone()
        tokens[expanded == 0] = -1e9
        return torch.max(tokens, 1)[0]
    if mode == "lasttoken":
        length, channels = tokens.shape[1:]
        values, indices = mask.flip(1).max(1)
        indices = torch.where(values == 0, length - 1, indices)
        places = (length - indices - 1).unsqueeze(-1).repeat(1, channels).unsqueeze(1)
        return torch.gather(tokens * expanded, 1, places).squeeze(dim=1)
    if mode == "weightedmean":
        weights = torch.arange(1, tokens.shape[1] + 1).unsqueeze(0).unsqueeze(-1)
        expanded = expanded * weights.expand(tokens.size()).to(tokens.dtype)
    total = torch.sum(tokens * expanded, 1)
    divisor = torch.clamp(expanded.sum(1), min=1e-9)
    return total / (torch.sqrt(divisor) if mode == "mean_sqrt_len" else divisor)
