"""PyTorch FP32, as transformers loads the model (scaled-dot-product attention)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.models import Cell, ModelSpec

from .base import Peer, Run

__all__ = ["PyTorchFloat"]


class PyTorchFloat(Peer):
    """Eager PyTorch; the reference for the outputs of the others."""

    name = "pytorch-fp32"
    title = "PyTorch FP32, eager, scaled-dot-product attention"
    precision = "fp32"
    packages = (("torch", "torch"), ("transformers", "transformers"))

    def build(self, spec: ModelSpec, cell: Cell, source: Path, folder: Path, cache: Path) -> None:
        """Nothing to build: the folder itself is loaded."""
        (folder / "source").write_text(str(source))

    def load(self, folder: Path, spec: ModelSpec, cell: Cell | None, threads: int) -> Run:
        """Load the model with `threads` intra-op threads."""
        import torch
        import transformers

        torch.set_num_threads(threads)
        source = (folder / "source").read_text()
        model = transformers.AutoModel.from_pretrained(source, dtype=torch.float32).eval()

        def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
            tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
            with torch.inference_mode():
                return model(**tensors).last_hidden_state.numpy()

        return run
