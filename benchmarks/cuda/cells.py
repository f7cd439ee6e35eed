"""What is measured: the paper's sixteen cells, and how results of them are put in order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.models import MODELS, Cell, ModelSpec

__all__ = [
    "PAPER_MODELS",
    "PAPER_SHAPES",
    "SPECS",
    "Task",
    "cosine",
    "mask_of_texts",
    "paper_tasks",
    "pooled",
]

# BERT-Tiny is for tests of the benchmark itself.
SPECS: dict[str, ModelSpec] = {
    **MODELS,
    "bert-tiny": ModelSpec("bert-tiny", 2, 128, 2, 512, ("1x32", "1x128")),
}
PAPER_MODELS = ("bert-base", "bert-large")
# Table 3 of I-BERT (Kim et al., ICML 2021): sequence 128 and 256, batch 1, 2, 4, 8.
PAPER_SHAPES = tuple(Cell(batch, length) for length in (128, 256) for batch in (1, 2, 4, 8))
# Tokens (WordPiece of BERT) of every seventh text of ibert_tvm/data/heldout.txt, 32 of them.
_TEXTS = (
    *(34, 15, 57, 30, 25, 24, 24, 19, 84, 26, 16, 20, 20, 15, 8, 7),
    *(18, 4, 19, 10, 71, 10, 17, 25, 13, 13, 18, 16, 18, 19, 11, 12),
)


def mask_of_texts(cell: Cell) -> np.ndarray:
    """Mask [batch, seq_len], int64, of texts as long as those of the held-out file."""
    lengths = np.resize(_TEXTS, cell.batch)[:, None]
    return (np.arange(cell.seq_len) < lengths).astype(np.int64)


@dataclass(frozen=True)
class Task:
    """One cell of one model."""

    model: str
    cell: Cell

    @property
    def spec(self) -> ModelSpec:
        """The model's dimensions."""
        return SPECS[self.model]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all its matrix products."""
        return self.spec.macs(self.cell)

    def __str__(self) -> str:
        return f"{self.model} {self.cell}"


def paper_tasks() -> list[Task]:
    """The sixteen cells."""
    return [Task(model, cell) for model in PAPER_MODELS for cell in PAPER_SHAPES]


def pooled(output: np.ndarray) -> np.ndarray:
    """Mean over the tokens of [batch, seq_len, channels]: [batch, channels], float64.

    What is pooled already, [batch, channels], is returned as it is.
    """
    array = np.asarray(output).astype(np.float64)
    return array if array.ndim == 2 else array.mean(axis=1)


def cosine(output: np.ndarray, reference: np.ndarray) -> float:
    """The smallest cosine of the rows of two pooled outputs [batch, channels]; 0 for no number."""
    a, b = pooled(output), np.asarray(reference, np.float64)
    if a.shape != b.shape or not np.isfinite(a).all():
        return 0.0
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    products = (a * b).sum(axis=1)
    cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return float(cosines.min())
