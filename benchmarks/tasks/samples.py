"""What all tasks do with their samples: no duplicates, honest splits, files.

A sample belongs to a *group*, a source package or a module's top-level package, and a group is in
one split. Texts that two groups share, word for word or but for one word, are left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["SPLITS", "Sample", "distinct", "draw", "split_of", "words_of"]

SPLITS = ("train", "dev", "test")
_SHARES = (0.6, 0.1, 0.3)


@dataclass(frozen=True)
class Sample:
    """One sample of any task.

    Attributes
    ----------
    group : str
        What it comes from; all samples of a group are in one split.
    text : str
        What makes it what it is: two samples of one text are the same sample.
    fields : tuple of str
        What is written, in the order of the task's columns.
    label : str
        Its class, by which samples are balanced.
    """

    group: str
    text: str
    fields: tuple[str, ...]
    label: str = ""


def words_of(text: str) -> frozenset[str]:
    """Words of a text in lower case, without digits and punctuation."""
    return frozenset(re.findall(r"[^\W\d_]+", text.lower()))


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def split_of(group: str) -> str:
    """The split of a group, which follows from its name alone."""
    share = _digest(f"split {group}") / 2**64
    for name, size in zip(SPLITS, _SHARES, strict=True):
        if share < size:
            return name
        share -= size
    return SPLITS[-1]


def distinct(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Leave out samples whose words others had before, all of them or all but one.

    Parameters
    ----------
    samples : iterable of Sample
        In a fixed order: of equal ones the first stays.

    Yields
    ------
    Sample
        No two of one split or of two whose sets of words differ in one word that was exchanged,
        added or left out.
    """
    seen: set[frozenset[str]] = set()
    for sample in samples:
        words = words_of(sample.text)
        keys = {words, *(words - {word} for word in words)}
        if words and not keys & seen:
            seen |= keys
            yield sample


def draw(samples: Iterable[Sample], per_group: int, per_label: int) -> dict[str, list[Sample]]:
    """Split samples, and keep no more of a group and of a class than so many.

    Parameters
    ----------
    samples : iterable of Sample
        Any number.
    per_group : int
        Most of one group.
    per_label : int
        Most of one class in the training set; of the other splits in proportion.

    Returns
    -------
    dict of str to list of Sample
        By split, in an order that follows from the texts alone.
    """
    chosen: dict[str, list[Sample]] = {name: [] for name in SPLITS}
    of_group: dict[str, int] = {}
    of_label: dict[tuple[str, str], int] = {}
    most = {n: round(per_label * s / _SHARES[0]) for n, s in zip(SPLITS, _SHARES, strict=True)}
    for sample in sorted(samples, key=lambda sample: _digest(sample.text)):
        split = split_of(sample.group)
        groups, labels = of_group.get(sample.group, 0), of_label.get((split, sample.label), 0)
        if groups < per_group and labels < most[split]:
            of_group[sample.group] = groups + 1
            of_label[split, sample.label] = labels + 1
            chosen[split].append(sample)
    return chosen
