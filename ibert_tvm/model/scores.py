"""What becomes of vectors and logits outside of the compiled code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..common.errors import UsageError
from ..common.strict_json import JsonDict
from ..common.types import Array, Doubles, Floats

_NORM_FLOOR = 1e-12


def normalized(vectors: Floats) -> Floats:
    """Vectors [..., channels] scaled to length 1; one of zeros stays one."""
    norms = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=-1, keepdims=True))
    return (vectors / np.maximum(norms, _NORM_FLOOR)).astype(np.float32)


def softmax(logits: Array) -> Doubles:
    """Probabilities over the last axis, float64."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def sigmoid(logits: Array) -> Doubles:
    """1 / (1 + exp(-x)) without overflow, float64."""
    return 0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64)))


FUNCTIONS: dict[str, Callable[[Array], Doubles]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": lambda logits: logits.astype(np.float64),
    "tanh": lambda logits: np.tanh(logits.astype(np.float64)),
    "relu": lambda logits: np.maximum(logits.astype(np.float64), 0),
}
"""What makes scores of logits, by name."""


def _best_tokens(one: Array, other: Array) -> Array:
    """For every token of a text the largest product with a token of another, [tokens]."""
    return (one @ other.T).max(axis=1)


LATE = ("maxsim", "meanmaxsim")
"""Of `SIMILARITIES`, those of vectors of tokens."""

SIMILARITIES: dict[str, Callable[[Any, Any], Any]] = {
    "cosine": lambda a, b: normalized(a) @ normalized(b).T,
    "dot": lambda a, b: a @ b.T,
    "euclidean": lambda a, b: [-np.linalg.norm(b - row, axis=1) for row in a],
    "manhattan": lambda a, b: [-np.abs(b - row).sum(axis=1) for row in a],
    "maxsim": lambda a, b: [[_best_tokens(q, d).sum() for d in b] for q in a],
    "meanmaxsim": lambda a, b: [[_best_tokens(q, d).mean() for d in b] for q in a],
}
"""How vectors are compared, by sentence-transformers' names: arrays [texts, channels], for
`LATE` lists of arrays [tokens, channels], to [texts, texts]."""

PAIRWISE: dict[str, Callable[[Any, Any], Any]] = {
    "cosine": lambda a, b: (normalized(a) * normalized(b)).sum(axis=-1),
    "dot": lambda a, b: (a * b).sum(axis=-1),
    "euclidean": lambda a, b: -np.linalg.norm(a - b, axis=-1),
    "manhattan": lambda a, b: -np.abs(a - b).sum(axis=-1),
    "maxsim": lambda a, b: [_best_tokens(q, d).sum() for q, d in zip(a, b, strict=True)],
    "meanmaxsim": lambda a, b: [_best_tokens(q, d).mean() for q, d in zip(a, b, strict=True)],
}
"""The same of vectors at the same place, to [texts]."""

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
_FEWEST = 2
"""Vectors that have a range in every channel."""


def quantized(vectors: Floats, precision: str) -> Array:
    """Vectors with fewer bits, as ``quantize_embeddings`` of sentence-transformers gives them.

    Parameters
    ----------
    vectors
        [texts, channels].
    precision
        One of `PRECISIONS`. Those of 8 bits divide the range of every channel over these vectors
        into 256 steps; binary ones keep the sign of each channel, 8 of them in a byte.

    Returns
    -------
    numpy.ndarray
        [texts, channels], or [texts, channels / 8]; ``int8`` and ``binary`` are signed.

    Raises
    ------
    UsageError
        If a single vector is to have 8 bits per channel.
    """
    if precision == "float32":
        return vectors
    if precision.endswith("binary"):
        bits = np.packbits(vectors > 0, axis=-1)
        return bits if precision == "ubinary" else (bits - 128).astype(np.int8)
    if len(vectors) < _FEWEST:
        raise UsageError(
            f"one vector cannot have the precision {precision}",
            why="its channels have no range",
            todo="encode all texts in one call, or take float32, binary or ubinary",
        )
    low, high = vectors.min(axis=0), vectors.max(axis=0)
    steps = (high - low) / 255
    levels = np.clip(np.floor((vectors - low) / np.where(steps == 0, 1, steps)), 0, 255)
    return levels.astype(np.uint8) if precision == "uint8" else (levels - 128).astype(np.int8)


def ranked_documents(
    logits: Array, function: str | None = None, top_k: int | None = None
) -> list[tuple[int, float]]:
    """Documents by their score with a query, as ``CrossEncoder.rank`` orders them.

    Parameters
    ----------
    logits
        [documents, 1].
    function
        One of `FUNCTIONS`; by default sigmoid.
    top_k
        So many; by default all.

    Returns
    -------
    list of (int, float)
        Place and float32 score, best first; of equal scores the earlier document.
    """
    scores = FUNCTIONS[function or "sigmoid"](logits)[:, 0].astype(np.float32)
    return [(int(i), float(scores[i])) for i in np.argsort(-scores, kind="stable")[:top_k]]


def ranked_classes(
    logits: Array,
    labels: Sequence[str],
    top_k: int | None = None,
    function: str | None = None,
    thresholds: float | Mapping[str, float] | None = None,
) -> list[list[JsonDict]]:
    """Classes of texts, best first.

    Parameters
    ----------
    logits
        [texts, classes].
    labels
        Names of the classes.
    top_k
        So many; by default all.
    function
        One of `FUNCTIONS`; by default softmax, and sigmoid for a single class.
    thresholds
        Least score of all classes, or of each by its name: those below it are left out.

    Returns
    -------
    list of list of dict
        ``label`` and ``score``.
    """
    scores = FUNCTIONS[function or ("sigmoid" if len(labels) == 1 else "softmax")](logits)
    if not isinstance(thresholds, Mapping):
        thresholds = {} if thresholds is None else dict.fromkeys(labels, thresholds)
    least = [thresholds.get(label, -np.inf) for label in labels]
    return [
        [
            {"label": labels[place], "score": float(row[place])}
            for place in np.argsort(-row, kind="stable")
            if not row[place] < least[place]
        ][:top_k]
        for row in scores
    ]
