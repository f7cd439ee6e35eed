"""What becomes of vectors and logits outside of the compiled code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..common.strict_json import JsonDict
from ..common.types import Array

_NORM_FLOOR = 1e-12


def normalized(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors [texts, channels] scaled to length 1; one of zeros stays one."""
    norms = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1, keepdims=True))
    return (vectors / np.maximum(norms, _NORM_FLOOR)).astype(np.float32)


def softmax(logits: Array) -> NDArray[np.float64]:
    """Probabilities over the last axis, float64."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    result: NDArray[np.float64] = powers / powers.sum(axis=-1, keepdims=True)
    return result


def sigmoid(logits: Array) -> NDArray[np.float64]:
    """1 / (1 + exp(-x)) without overflow, float64."""
    result: NDArray[np.float64] = 0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64)))
    return result


FUNCTIONS: dict[str, Callable[[Array], NDArray[np.float64]]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": lambda logits: logits.astype(np.float64),
}
"""What makes scores of logits, by name."""


def ranked_classes(
    logits: Array,
    labels: Sequence[str],
    top_k: int | None = None,
    function: str | None = None,
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

    Returns
    -------
    list of list of dict
        ``label`` and ``score``.
    """
    scores = FUNCTIONS[function or ("sigmoid" if len(labels) == 1 else "softmax")](logits)
    return [
        [
            {"label": labels[place], "score": float(row[place])}
            for place in np.argsort(-row, kind="stable")[:top_k]
        ]
        for row in scores
    ]
