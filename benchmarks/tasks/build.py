"""Build the tasks.

    python -m benchmarks.tasks.build --out build/tasks

Each gets a folder with its splits and `card.json`: sizes, classes, source, licence, and hashes of
the files. What is built follows from Debian's lists and the installed packages alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .debian import sections
from .docstrings import code_words, names, queries
from .samples import SPLITS, Sample, distinct, draw

__all__ = ["TASKS", "Task", "build", "main"]

_PYTHON = "docstrings of Python's standard library and of packages that `make setup` installs"
_PYTHON_LICENCE = "PSF-2.0, and that of each package (BSD, MIT, Apache-2.0 ...)"


@dataclass(frozen=True)
class Task:
    """How a task is made and evaluated.

    Attributes
    ----------
    name : str
        Its folder.
    what : str
        What is asked, in a sentence.
    samples : callable
        Yields all samples.
    per_group, per_label : int
        Most training samples of one group, and of one class.
    kind : str
        What `ibert eval --task` calls it.
    columns : tuple of str
        Of the TSV files; empty for CoNLL's columns and for retrieval.
    source, licence : str
        For the card.
    """

    name: str
    what: str
    samples: Callable[[], Iterable[Sample]]
    per_group: int
    per_label: int
    kind: str
    columns: tuple[str, ...]
    source: str = _PYTHON
    licence: str = _PYTHON_LICENCE


TASKS = {
    task.name: task
    for task in (
        Task(
            "sections",
            "Which section of Debian a package is in, by its one-line summary.",
            sections,
            *(1, 800, "classification", ("text", "label")),
            "`apt-cache dumpavail` (Debian 12, main): Description and Section",
            "that of each package's `debian/` folder, free as all of main",
        ),
        Task(
            "names",
            "Whether a name and a docstring's first paragraph belong together; the wrong names are "
            "of the same file.",
            names,
            *(300, 2400, "classification", ("text", "pair", "label")),
        ),
        Task(
            "code-words",
            "Which words of a docstring's paragraph are code (their marks are taken away).",
            code_words,
            *(700, 3600, "token-classification", ()),
        ),
        Task(
            "docstrings",
            "Which rest of a docstring belongs to a first paragraph (retrieval, nothing trained).",
            queries,
            *(400, 3000, "retrieval", ()),
        ),
    )
}


def build(task: Task, folder: Path) -> dict[str, Any]:
    """Write a task's files.

    Parameters
    ----------
    task : Task
        One of `TASKS`.
    folder : pathlib.Path
        Where to write; made if it is not there.

    Returns
    -------
    dict
        The card.
    """
    splits = draw(distinct(task.samples()), task.per_group, task.per_label)
    folder.mkdir(parents=True, exist_ok=True)
    if task.kind == "retrieval":
        files = _write_retrieval(splits["test"], folder)
    elif task.columns:
        files = {
            split: _write(folder / f"{split}.tsv", [task.columns, *(s.fields for s in samples)])
            for split, samples in splits.items()
        }
    else:
        files = {
            split: _write_text(
                folder / f"{split}.conll", "".join(f"{s.fields[0]}\n\n" for s in samples)
            )
            for split, samples in splits.items()
        }
    kept = ("test",) if task.kind == "retrieval" else SPLITS
    card = {
        "name": task.name,
        "what": task.what,
        "task": task.kind,
        "source": task.source,
        "licence": task.licence,
        "samples": {split: len(splits[split]) for split in kept},
        "groups": {split: len({s.group for s in splits[split]}) for split in kept},
        "classes": dict(sorted(Counter(s.label for s in splits["test"] if s.label).items())),
        "sha256": {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files.values()
        },
    }
    _write_text(folder / "card.json", json.dumps(card, indent=1) + "\n")
    return card


def _write_retrieval(samples: list[Sample], folder: Path) -> dict[str, Path]:
    (folder / "qrels").mkdir(exist_ok=True)

    def lines(column: int, letter: str) -> str:
        return "".join(
            json.dumps({"_id": f"{letter}{number}", "text": sample.fields[column]}) + "\n"
            for number, sample in enumerate(samples)
        )

    relevant = [(f"q{number}", f"d{number}", "1") for number in range(len(samples))]
    return {
        "queries": _write_text(folder / "queries.jsonl", lines(0, "q")),
        "corpus": _write_text(folder / "corpus.jsonl", lines(1, "d")),
        "qrels": _write(
            folder / "qrels" / "test.tsv", [("query-id", "corpus-id", "score"), *relevant]
        ),
    }


def _write(path: Path, rows: Iterable[tuple[str, ...]]) -> Path:
    return _write_text(path, "".join("\t".join(row) + "\n" for row in rows))


def _write_text(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def main(arguments: list[str] | None = None) -> int:
    """Build tasks; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tasks.build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write the tasks to")
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated")
    options = parser.parse_args(arguments)
    names_asked = options.tasks.split(",")
    if unknown := [name for name in names_asked if name not in TASKS]:
        parser.error(f"--tasks: {unknown[0]!r} is none of {', '.join(TASKS)}")
    cards = [build(TASKS[name], options.out / name) for name in names_asked]
    json.dump(cards, sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
