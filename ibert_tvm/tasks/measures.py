"""Metrics of tasks, in points (hundredths), of a sample and of its resamples.

A `Measure` is a function of how often each sample counts: once for the value itself, as often as it
was drawn for a resample of the bootstrap. Most metrics are functions of sums over samples, so a
thousand resamples are one matrix product; rank correlation ranks every resample anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..common.types import Doubles

Array = Doubles


@dataclass(frozen=True)
class Measure:
    """One metric of one model on one set.

    Attributes
    ----------
    name
        As tables show it.
    samples
        How many there are: texts, sentences, questions or queries.
    values
        From float64 [samples, resamples], how often each sample counts, to float64 [resamples], the
        metric in points; NaN where it has no value.
    """

    name: str
    samples: int
    values: Callable[[Array], Array]

    @property
    def value(self) -> float:
        """The metric of the samples themselves."""
        return float(self.values(np.ones((self.samples, 1)))[0])


def _of_sums(name: str, columns: Sequence[ArrayLike], function: Callable[..., Array]) -> Measure:
    """A metric that is a function of sums over samples; `columns` are [samples] each."""
    statistics = np.stack([np.asarray(column, np.float64) for column in columns])
    return Measure(name, statistics.shape[1], lambda counts: 100 * function(*(statistics @ counts)))


def _ratio(above: Array, below: Array) -> Array:
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def mean(name: str, values: ArrayLike) -> Measure:
    """Mean of one figure per sample, each from 0 to 1."""
    return _of_sums(name, [values, np.ones(np.size(values))], _ratio)


def accuracy(gold: ArrayLike, predicted: ArrayLike) -> Measure:
    """Share of right classes; arguments are class numbers [samples]."""
    return mean("accuracy", np.asarray(gold) == np.asarray(predicted))


def _f1(right: Array, predicted: Array, gold: Array) -> Array:
    """Harmonic mean of precision and recall; 0 where nothing is right, as everybody has it."""
    return _ratio(2 * right, predicted + gold)


def f1(gold: ArrayLike, predicted: ArrayLike, positive: int) -> Measure:
    """F1 of one class."""
    a, b = np.asarray(gold) == positive, np.asarray(predicted) == positive
    return _of_sums("F1", [a & b, b, a], _f1)


def micro_f1(right: ArrayLike, predicted: ArrayLike, gold: ArrayLike) -> Measure:
    """F1 of things that are found in samples: how many right, found and there are in each."""
    return _of_sums("F1", [right, predicted, gold], _f1)


def macro_f1(gold: ArrayLike, predicted: ArrayLike) -> Measure:
    """Mean of the F1 of all classes that are in the set or were predicted."""
    gold, predicted = np.asarray(gold), np.asarray(predicted)
    classes = np.union1d(gold, predicted)[:, None]
    a, b = gold == classes, predicted == classes

    def function(*sums: Array) -> Array:
        right, found, there = np.split(np.stack(sums), 3)
        present = (found + there > 0).sum(axis=0)
        return np.asarray(_f1(right, found, there).sum(axis=0) / np.maximum(present, 1))

    return _of_sums("macro F1", [*(a & b), *b, *a], function)


def matthews(gold: ArrayLike, predicted: ArrayLike) -> Measure:
    """Matthews' correlation of any number of classes; 0 where one side is constant."""
    gold, predicted = np.asarray(gold), np.asarray(predicted)
    classes = np.union1d(gold, predicted)[:, None]

    def function(total: Array, right: Array, *sums: Array) -> Array:
        there, found = np.split(np.stack(sums), 2)
        covariance = right * total - (there * found).sum(axis=0)
        spread = (total**2 - (found**2).sum(axis=0)) * (total**2 - (there**2).sum(axis=0))
        return _ratio(covariance, np.sqrt(np.maximum(spread, 0)))

    columns = [np.ones(len(gold)), gold == predicted, *(gold == classes), *(predicted == classes)]
    return _of_sums("Matthews", columns, function)


def _correlation(n: Array, x: Array, y: Array, xx: Array, yy: Array, xy: Array) -> Array:
    """Pearson's correlation from sums; NaN where one side is constant."""
    spread = (n * xx - x * x) * (n * yy - y * y)
    constant = spread <= 1e-20 * (n * xx) * (n * yy)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(constant, np.nan, (n * xy - x * y) / np.sqrt(np.abs(spread)))


def pearson(gold: ArrayLike, predicted: ArrayLike) -> Measure:
    """Pearson's correlation of two figures per sample."""
    # Centred, and of one spread: sums of squares of large numbers would cancel.
    x, y = (_standardised(np.asarray(values, np.float64)) for values in (gold, predicted))
    columns = [np.ones(len(x)), x, y, x * x, y * y, x * y]
    return _of_sums("Pearson", columns, _correlation)


def _standardised(values: Array) -> Array:
    centred = values - values.mean()
    return centred / (np.abs(centred).max() or 1.0)


def spearman(gold: ArrayLike, predicted: ArrayLike) -> Measure:
    """Spearman's rank correlation; equal figures share the mean of their ranks."""
    ranks_x, ranks_y = (_Ranks(np.asarray(values, np.float64)) for values in (gold, predicted))

    def values(counts: Array) -> Array:
        n = counts.sum(axis=0)
        x, y = (ranks.of(counts) - (n + 1) / 2 for ranks in (ranks_x, ranks_y))
        weighted = counts * x
        zero = np.zeros_like(n)
        sums = [
            (weighted * x).sum(axis=0),
            (counts * y * y).sum(axis=0),
            (weighted * y).sum(axis=0),
        ]
        return 100 * _correlation(n, zero, zero, *sums)

    return Measure("Spearman", np.size(gold), values)


class _Ranks:
    """Ranks of samples that count as often as they are told to."""

    def __init__(self, figures: Array) -> None:
        self._order = np.argsort(figures, kind="stable")
        distinct, self._group = np.unique(figures, return_inverse=True)
        self._starts = np.searchsorted(figures[self._order], distinct)

    def of(self, counts: Array) -> Array:
        """Ranks from 1, float64 [samples, resamples], for counts of the same shape."""
        tied = counts[self._order]
        if len(self._starts) < len(tied):
            tied = np.add.reduceat(tied, self._starts, axis=0)
        middle = np.cumsum(tied, axis=0) - (tied - 1) / 2
        return np.asarray(middle[self._group])
