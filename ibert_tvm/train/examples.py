"""What a model is tuned on: a task's samples, rows of a table with named columns, or lines.

Files are read and measured by what `ibert eval --task` has (`ibert_tvm.tasks`); here is what a
training adds: a tenth taken apart, columns that are found by their names, and texts without labels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..common.errors import UsageError
from ..tasks import TASKS, Options, Side
from ..tasks.glue import FORMATS, texts_of
from ..tasks.lines import read_lines
from ..tasks.samples import Labelled, Questions, Samples, Scored, Tagged, Text
from ..tasks.tables import TableFormat, column_names

TEXT_COLUMNS = (("text",), ("sentence",), ("text_a", "text_b"), ("sentence1", "sentence2"))
"""Names of the columns that hold texts, or pairs of texts, where none are given."""
LABEL_COLUMNS = ("label", "score")
_MEASURED_AS = {
    Labelled: "classification",
    Scored: "sts",
    Tagged: "token-classification",
    Questions: "squad",
}


@dataclass(frozen=True)
class Examples:
    """Samples to learn from, and the task whose first metric says how well.

    Attributes
    ----------
    samples : Labelled, Scored, Tagged or Questions
        Classes, numbers, tags or answers; without labels those of a `Labelled` are empty.
    task
        A name of `ibert_tvm.tasks.TASKS`; by default that of such samples.
    """

    samples: Samples
    task: str = ""

    def __len__(self) -> int:
        return len(self.samples)

    @classmethod
    def of_texts(cls, texts: Sequence[Text]) -> Examples:
        """Texts without labels."""
        return cls(Labelled(texts, ()))

    @property
    def labelled(self) -> bool:
        """Whether there is anything to learn but the float model itself."""
        return not isinstance(self.samples, Labelled) or bool(self.samples.labels)

    @property
    def digest(self) -> str:
        """Hash of the content."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def split(self, share: float, order: Sequence[int]) -> tuple[Examples, Examples]:
        """Take the last `share` of an order of the examples apart; one at least."""
        count = max(int(len(self) * share), 1)
        return self.chosen(order[:-count]), self.chosen(order[-count:])

    def chosen(self, indices: Sequence[int]) -> Examples:
        """Return some of the examples."""
        return Examples(self.samples.chosen(indices), self.task)

    def score(self, side: Side) -> float:
        """First metric of the task, in points; 0 where it has no value."""
        task = TASKS[self.task or _MEASURED_AS[type(self.samples)]]
        value = task.measure(self.samples, side, Options())[0].value
        return value if value == value else 0.0


def read_examples(
    path: Path,
    task: str | None = None,
    columns: Mapping[str, str] | None = None,
    dev: Path | None = None,
) -> tuple[Examples, Examples | None]:
    """Read files of examples.

    Parameters
    ----------
    path : pathlib.Path
        The task's file, or a folder with ``train.*`` and the development set. Without a task
        ``*.tsv`` or ``*.csv``, whose first line names the columns, or any other name: a text on
        each line, without labels.
    task
        Of `ibert_tvm.tasks.TASKS`.
    columns
        Columns by what they hold: ``text``, ``pair``, ``label``. Without a task by default those of
        `TEXT_COLUMNS` and `LABEL_COLUMNS` that the file has; labels that are numbers and not all
        whole are such, others are classes.
    dev : pathlib.Path, optional
        The development set.

    Returns
    -------
    examples : Examples
        In the order of the file.
    dev : Examples or None
        None if there is no file of them.

    Raises
    ------
    UsageError
        If a file cannot be read, or nothing can be learned from the task.
    """
    if task is None:
        read = partial(_read_any, columns=columns or {})
    else:
        _check_loss(task)
        read = partial(_read_task, task=task, columns=columns or {})
        if path.is_dir():
            own = path / FORMATS[task].file if task in FORMATS else None
            dev = dev or own or _only_file(path, "dev")
            path = _only_file(path, "train")
    return read(path), None if dev is None else read(dev)


def _only_file(folder: Path, name: str) -> Path:
    found = sorted(folder.glob(f"{name}.*"))
    if len(found) != 1:
        raise UsageError(
            f"the folder has {len(found)} files {name}.*",
            where=str(folder),
            why="a folder of a task holds one set to tune on, and one to choose by",
            todo="give the files with --data and --dev",
        )
    return found[0]


def _check_loss(task: str) -> None:
    """A loss is of logits, whatever they are of; what vectors alone are measured on has none."""
    able = [name for name, known in TASKS.items() if any("logits" in kind for kind in known.kinds)]
    if task not in able:
        raise UsageError(
            f"no model can be tuned on the task {task}",
            why="vectors of texts are all that it is about, and there is no loss of them",
            todo=f"give one of {', '.join(able)}; or texts alone, and --distill embeddings",
        )


def _read_task(path: Path, task: str, columns: Mapping[str, str]) -> Examples:
    return _enough(path, Examples(TASKS[task].read(path, Options(columns)), task))


def _read_any(path: Path, columns: Mapping[str, str]) -> Examples:
    if path.suffix.lower() not in (".tsv", ".csv"):
        lines = [text.strip() for _, text in read_lines(path)]
        return _enough(path, Examples.of_texts([line for line in lines if line]))
    form = TableFormat.of(path)
    given = _columns(path, column_names(path, form), columns)
    if "label" not in given:
        # The reader wants a label: a text stands for it.
        rows = texts_of(path, {**given, "label": given["text"]}, form, ())
        return _enough(path, Examples.of_texts(rows.texts))
    samples = texts_of(path, given, form, ())
    assert isinstance(samples, Labelled)
    if _are_numbers(samples.labels):
        samples = texts_of(path, given, form, None)
    return _enough(path, Examples(samples))


def _columns(path: Path, names: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Columns that were given, and found by their names where the texts or the label were not."""
    result: dict[str, str] = {what: given[what] for what in ("text", "pair") if what in given}
    if "text" not in given:
        found = next((texts for texts in TEXT_COLUMNS if set(texts) <= set(names)), None)
        if found is None:
            raise UsageError(
                "which columns hold texts?",
                where=str(path),
                why=f"its columns are {', '.join(names) or 'none'}",
                todo="name them: --columns text=A,label=B, and pair=C for pairs of texts",
            )
        result = dict(zip(("text", "pair"), found, strict=False))
    label = given.get("label", next((name for name in LABEL_COLUMNS if name in names), None))
    return result if label is None else {**result, "label": label}


def _are_numbers(labels: Sequence[str]) -> bool:
    """Whether all are numbers and not all whole: a regression."""
    try:
        return not all(float(label).is_integer() for label in labels)
    except (ValueError, OverflowError):
        return False


def _enough(path: Path, examples: Examples) -> Examples:
    if len(examples) < 2:
        raise UsageError(
            f"{path} has {len(examples)} examples",
            why="a model is tuned on some, and measured on others",
            todo="give a text on each line, or a TSV or CSV with named columns",
        )
    return examples
