"""BEIR's folders: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..common.errors import DocumentError
from ..common.schema import STRING, check
from ..common.strict_json import JsonDict, parse
from .errors import DataError, malformed
from .lines import MAX_ROWS, read_lines
from .samples import Retrieval
from .tables import TableFormat, read_table

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
