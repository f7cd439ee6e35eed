"""Retrieval: the best documents of every query, and how good they are.

The definitions are those of trec_eval, which BEIR reports: linear gains, equal scores in falling
order of identifiers, and a query's own document (of the same identifier) left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..model.scores import SIMILARITIES

_QUERIES = 64
DEPTH = 100
"""Documents that are ranked."""


def rankings(
    queries: NDArray[np.float32],
    documents: NDArray[np.float32],
    query_ids: Sequence[str],
    document_ids: Sequence[str],
    similarity: str = "cosine",
) -> Iterator[list[str]]:
    """Rank documents by their similarity to queries.

    Parameters
    ----------
    queries, documents
        Vectors, float32 [queries, channels] and [documents, channels].
    query_ids, document_ids
        Their identifiers.
    similarity
        One of `SIMILARITIES`, of vectors of texts.

    Yields
    ------
    list of str
        For each query the identifiers of the best `DEPTH` documents.
    """
    own = {name: place for place, name in enumerate(document_ids)}
    falling = np.empty(len(document_ids), np.int64)
    falling[np.argsort(np.array(document_ids))] = np.arange(len(document_ids), 0, -1)
    depth = min(DEPTH, len(document_ids))
    for start in range(0, len(query_ids), _QUERIES):
        some = queries[start : start + _QUERIES]
        scores = np.asarray(SIMILARITIES[similarity](some, documents))
        for row, name in zip(scores, query_ids[start : start + _QUERIES], strict=True):
            if name in own:
                row[own[name]] = -np.inf
            least = np.partition(row, -depth)[-depth]
            places = np.flatnonzero((row >= least) & (row > -np.inf))
            order = places[np.lexsort((falling[places], -row[places]))][:depth]
            yield [document_ids[place] for place in order]


def ndcg(ranking: Sequence[str], grades: Mapping[str, int], depth: int) -> float:
    """Discounted gain of the first `depth` documents, over the largest that there can be."""

    def gain(values: Sequence[int]) -> float:
        return sum(float(v / np.log2(place + 2)) for place, v in enumerate(values[:depth]))

    best = gain(sorted(grades.values(), reverse=True))
    return gain([grades.get(name, 0) for name in ranking]) / best if best else 0.0


def recall(ranking: Sequence[str], grades: Mapping[str, int], depth: int) -> float:
    """Share of the relevant documents that are among the first `depth`."""
    relevant = {name for name, grade in grades.items() if grade > 0}
    return len(relevant.intersection(ranking[:depth])) / len(relevant) if relevant else 0.0
