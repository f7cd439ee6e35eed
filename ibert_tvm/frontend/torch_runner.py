"""A Hugging Face folder's encoder in PyTorch, for whoever compares speed with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .hf_folder import HfFolder


class TorchRunner:
    """The encoder of a folder in float32, as transformers loads it.

    Parameters
    ----------
    folder : pathlib.Path
        A Hugging Face folder.
    """

    def __init__(self, folder: Path) -> None:
        from .source_model import build, model_config

        source = HfFolder.read(folder)
        self._model = build(source, "AutoModel", model_config(source)).eval()

    def set_threads(self, count: int) -> None:
        """Let PyTorch run on `count` threads."""
        import torch

        torch.set_num_threads(count)

    def run(self, inputs: Mapping[str, NDArray[np.integer[Any]]]) -> None:
        """Compute the last hidden state of int64 inputs [batch, seq_len] by name."""
        import torch

        with torch.inference_mode():
            self._model(**{name: torch.from_numpy(array) for name, array in inputs.items()})
