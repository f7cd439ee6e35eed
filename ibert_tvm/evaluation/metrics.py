"""How close two sets of vectors are; NumPy only.

Throughout, row i of both arrays belongs to text i: `reference` comes from the float model,
`candidate` from the integer one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..common.types import Array, Doubles, Longs


def row_cosine(reference: Array, candidate: Array) -> Doubles:
    """Cosine of each row of one array with the same row of the other.

    Parameters
    ----------
    reference, candidate
        [rows, channels].

    Returns
    -------
    numpy.ndarray
        float64 [rows]. Two zero rows are equal (1); one zero row is unlike anything (0).
    """
    a = np.asarray(reference, dtype=np.float64)
    b = np.asarray(candidate, dtype=np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    both_zero = ~a.any(axis=1) & ~b.any(axis=1)
    cosine = np.divide((a * b).sum(axis=1), norms, out=np.zeros(len(a)), where=norms > 0)
    return np.where(both_zero, 1.0, cosine)


def text_errors(reference: Array, candidate: Array) -> Doubles:
    """What two models' outputs of each text differ by, where one number has to say it.

    Parameters
    ----------
    reference, candidate
        [texts, channels].

    Returns
    -------
    numpy.ndarray
        float64 [texts]: 1 - cosine. A single channel has no direction: half the square of its
        difference by the mean square of all, which is as much where an error is small.
    """
    if reference.shape[1] > 1:
        return 1.0 - row_cosine(reference, candidate)
    a, b = (np.asarray(scores, np.float64)[:, 0] for scores in (reference, candidate))
    return np.asarray(np.square(a - b) / (2 * max(np.square(a).mean(), np.finfo(np.float64).tiny)))


def pairwise_cosine(vectors: Array) -> Doubles:
    """Cosines of all rows with all rows, float64 [rows, rows]; 0 where a row is zero."""
    x = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    unit = np.divide(x, norms, out=np.zeros_like(x), where=norms > 0)
    return np.asarray(unit @ unit.T)


def spearman(reference: Array, candidate: Array) -> float:
    """Spearman's rank correlation of two vectors.

    Parameters
    ----------
    reference, candidate
        [n].

    Returns
    -------
    float
        -1 to 1; NaN where one of them is constant or has fewer than two values.
    """
    from scipy.stats import rankdata

    a, b = rankdata(reference), rankdata(candidate)
    if len(a) < 2 or a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def nearest_neighbours(similarities: Doubles) -> Longs:
    """Index of each row's most similar other row.

    Parameters
    ----------
    similarities
        float64 [rows, rows] with at least two rows.

    Returns
    -------
    numpy.ndarray
        int64 [rows].
    """
    others = similarities.copy()
    np.fill_diagonal(others, -np.inf)
    return np.asarray(others.argmax(axis=1), dtype=np.int64)


def mean_pool(values: Array, mask: Array) -> Doubles:
    """Mean over the tokens whose mask is 1.

    Parameters
    ----------
    values
        [batch, tokens, channels].
    mask
        [batch, tokens] of 0 and 1.

    Returns
    -------
    numpy.ndarray
        float64 [batch, channels]; 0 for a row without tokens.
    """
    weights = np.asarray(mask, dtype=np.float64)[..., None]
    total = (np.asarray(values, dtype=np.float64) * weights).sum(axis=1)
    return np.asarray(total / np.maximum(weights.sum(axis=1), 1))


@dataclass
class RunningSimilarity:
    """Cosine and relative error of two arrays that arrive in parts."""

    dot: float = 0.0
    reference_square: float = 0.0
    candidate_square: float = 0.0
    error_square: float = 0.0

    def add(self, reference: Array, candidate: Array) -> None:
        """Take in a part: two arrays of one shape."""
        a = np.asarray(reference, dtype=np.float64).ravel()
        b = np.asarray(candidate, dtype=np.float64).ravel()
        self.dot += float(a @ b)
        self.reference_square += float(a @ a)
        self.candidate_square += float(b @ b)
        self.error_square += float((a - b) @ (a - b))

    @property
    def cosine(self) -> float:
        """Cosine of everything taken in; 1 if both are zero, 0 if one is."""
        product = np.sqrt(self.reference_square * self.candidate_square)
        if product > 0:
            return float(self.dot / product)
        return float(self.reference_square == self.candidate_square)

    @property
    def relative_error(self) -> float | None:
        """Norm of the difference over that of the reference; None if the reference alone is 0."""
        if self.reference_square > 0:
            return float(np.sqrt(self.error_square / self.reference_square))
        return 0.0 if self.error_square == 0 else None
