"""Latencies that NVIDIA published of TensorRT, as quotations: nothing here was measured here."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.models import Cell

__all__ = ["PUBLISHED", "SOURCE", "Published"]

SOURCE = (
    "https://github.com/NVIDIA/TensorRT/blob/007c34702bc7878285e3123eb39829a1f9aef3f0/demo/BERT/"
    "README.md"
)


@dataclass(frozen=True)
class Published:
    """Average latencies of a model at one shape, in milliseconds, without copies.

    Attributes
    ----------
    gpu
        As the source calls it.
    model
        Of `benchmarks.cuda.cells.SPECS`.
    cell
        The shape.
    int8_ms, fp16_ms
        TensorRT's INT8 and FP16.
    """

    gpu: str
    model: str
    cell: Cell
    int8_ms: float
    fp16_ms: float


_LENGTH = 128
_BATCHES = (1, 2, 4, 8, 32)
_INT8_AND_FP16 = {
    ("T4 (16GB)", "bert-base"): (
        (1.69, 1.82, 2.63, 4.66, 18.93),
        (1.95, 2.71, 4.53, 9.09, 36.63),
    ),
    ("T4 (16GB)", "bert-large"): (
        (3.65, 4.98, 8.57, 14.56, 60.01),
        (5.53, 8.22, 15.47, 28.14, 121.09),
    ),
    ("A100 (40GB)", "bert-base"): (
        (0.58, 0.62, 0.77, 0.95, 2.27),
        (0.67, 0.83, 1.02, 1.38, 4.10),
    ),
    ("A100 (40GB)", "bert-large"): (
        (1.25, 1.47, 1.82, 2.71, 7.09),
        (1.64, 2.05, 2.97, 4.51, 13.85),
    ),
}
PUBLISHED = tuple(
    Published(gpu, model, Cell(batch, _LENGTH), int8, fp16)
    for (gpu, model), columns in _INT8_AND_FP16.items()
    for batch, int8, fp16 in zip(_BATCHES, *columns, strict=True)
)
"""The rows of the source for shapes that `benchmarks.cuda` measures."""
