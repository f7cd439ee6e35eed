"""BEIR's folders: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..common.errors import DocumentError
from ..common.schema import STRING, check
from ..common.strict_json import JsonDict, parse
from ..common.types import Floats
from ..model.scores import SIMILARITIES
from .errors import DataError, malformed
from .lines import MAX_ROWS, read_lines
from .samples import Retrieval
from .tables import TableFormat, read_table

# Retrieval: the best documents of every query, and how good they are.
#
# The definitions are those of trec_eval, which BEIR reports: linear gains, equal scores in falling
# order of identifiers, and a query's own document (of the same identifier) left out.

_QUERIES = 64
DEPTH = 100
"""Documents that are ranked."""


def rankings(
    queries: Floats,
    documents: Floats,
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


_MAX_DEPTH = 8
_MAX_GRADE = 1000
_DOCUMENT = {"_id": STRING, "text": STRING, "title?": STRING}
_QRELS = {"query": "query-id", "document": "corpus-id", "grade": "score"}


def read_beir(folder: Path, split: str = "test") -> Retrieval:
    """Read a folder.

    Parameters
    ----------
    folder : pathlib.Path
        With ``corpus.jsonl``, ``queries.jsonl`` and ``qrels``.
    split
        Name of the file in ``qrels``.

    Returns
    -------
    Retrieval
        A document's text is its title and its text; only judged queries are kept.

    Raises
    ------
    DataError
        If a file cannot be read, is not in that form, or refers to what is not there.
    """
    if not folder.is_dir():
        raise malformed(
            folder, 0, "it is no folder", "give a folder with corpus.jsonl, queries.jsonl and qrels"
        )
    documents = {
        entry["_id"]: " ".join(filter(None, (entry.get("title", ""), entry["text"]))).strip()
        for entry in _entries(folder / "corpus.jsonl")
    }
    queries = {entry["_id"]: entry["text"] for entry in _entries(folder / "queries.jsonl")}
    path = folder / "qrels" / f"{Path(split).name}.tsv"
    todo = f"give the columns {', '.join(_QRELS.values())} these names"
    rows = read_table(path, _QRELS, TableFormat("\t", quoted=False), todo)
    relevance: dict[str, dict[str, int]] = {}
    for (query, document, grade), line in zip(rows.fields, rows.lines, strict=True):
        if not (grade.isascii() and grade.isdigit() and int(grade[:6]) <= _MAX_GRADE):
            raise malformed(
                path, line, f"the score is {grade[:40]!r}, no number up to {_MAX_GRADE}"
            )
        for name, table in ((query, queries), (document, documents)):
            if name not in table:
                file = "queries.jsonl" if table is queries else "corpus.jsonl"
                raise malformed(path, line, f"{name[:40]!r} is not in {file}")
        relevance.setdefault(query, {})[document] = int(grade)
    return Retrieval(documents, {query: queries[query] for query in relevance}, relevance)


def _entries(path: Path) -> Iterator[JsonDict]:
    seen: set[str] = set()
    for line, text in read_lines(path):
        if not text.strip():
            continue
        try:
            entry = parse(text, _MAX_DEPTH)
            check(entry, _DOCUMENT)
        except DocumentError as error:
            raise malformed(
                path, line, "; ".join(part for part in (error.what, error.where) if part)
            ) from None
        if entry["_id"] in seen:
            raise malformed(path, line, f"the _id {entry['_id'][:40]!r} is there twice")
        if len(seen) == MAX_ROWS:
            raise malformed(path, line, f"there are more than {MAX_ROWS} entries")
        seen.add(entry["_id"])
        yield entry
    if not seen:
        raise DataError("the data cannot be read", str(path), "it has no entry")
