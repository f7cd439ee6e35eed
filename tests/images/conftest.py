"""Small ViT-like models, from folders and as plain torch modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 24,
    "patch_size": 8,
}
CONFIGS = {"vit": hf.ViTConfig, "deit": hf.DeiTConfig}
CLASSES = {
    ("vit", "none"): hf.ViTModel,
    ("vit", "pooled"): hf.ViTModel,
    ("deit", "image_classification"): hf.DeiTForImageClassification,
}


def build(architecture: str, head: str, **changes: Any) -> Any:
    """A transformers model whose weights are large enough for errors to show."""
    torch.manual_seed(0)
    config = CONFIGS[architecture](**{**SIZES, "num_labels": 5, **changes})
    model = CLASSES[architecture, head](config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.2)
            elif "norm" not in name.lower():
                parameter.normal_(0, 0.1)
    return model.eval()


@pytest.fixture(scope="session")
def make() -> Callable[..., Any]:
    return build


@pytest.fixture(scope="session")
def pixels() -> Callable[..., np.ndarray]:
    def draw(batch: int, seed: int = 0, size: tuple[int, int, int] = (3, 24, 24)) -> np.ndarray:
        random = np.random.default_rng(seed)
        return random.normal(size=(batch, *size)).astype(np.float32)

    return draw
