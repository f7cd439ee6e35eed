"""The float weights of a model that is measured, read without torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

__all__ = ["read_weights"]


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """The tensors of a Hugging Face folder by name, without a leading ``bert.``; float32."""
    from safetensors.numpy import load_file

    tensors = load_file(str(folder / "model.safetensors"))
    return {name.removeprefix("bert."): array for name, array in tensors.items()}
