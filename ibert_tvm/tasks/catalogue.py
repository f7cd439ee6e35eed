"""The tasks by name: how their files are read, and what is measured on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import UsageError
from ..model.heads import kinds_of
from ..model.model_info import ModelInfo
from ..model.scores import SIMILARITIES, normalized
from .beir import DEPTH, ndcg, rankings, read_beir, recall
from .conll import OUTSIDE, entities_of, read_conll, split_tag
from .errors import DataError
from .glue import FORMATS, read_glue, texts_of
from .labels import class_numbers, unknown_labels
from .measures import Measure, accuracy, f1, macro_f1, matthews, mean, micro_f1, pearson, spearman
from .samples import Labelled, Questions, Retrieval, Samples, Scored, Tagged
from .sides import Side, output_read
from .squad import exact_match, predicted_answer, read_squad, token_f1
from .tables import TableFormat

_VECTORS = tuple(sorted(kinds_of("encode")))


@dataclass(frozen=True)
class Options:
    """What the user says besides the files.

    Attributes
    ----------
    columns
        Columns by what they hold: ``text``, ``pair``, ``label``.
    labels
        Classes of the model, by name or number, by the file's label.
    split
        Of a BEIR folder.
    limit
        Use only the first samples.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    split: str = "test"
    limit: int | None = None


Measures = list[Measure]


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes
    ----------
    name
        As users write it.
    kinds
        Outputs that it can be measured on, of `ibert_tvm.model.heads.KINDS`.
    reader
        From a path and `Options` to `Samples`.
    score
        From samples, a `Side` that reads one of `kinds`, and `Options` to measures.
    takes
        Columns that can be named; empty where the format names them.
    seq_len
        Tokens that texts are cut off at, where nothing else says it.
    """

    name: str
    kinds: tuple[str, ...]
    reader: Callable[[Path, Options], Samples]
    score: Callable[[Any, Side, Options], Measures]
    takes: tuple[str, ...] = ()
    seq_len: int = 128

    def read(self, path: Path, options: Options) -> Samples:
        """Read a file or folder; a `DataError` names what is wrong with it, and the line."""
        samples = self.reader(path, options)
        return (
            samples
            if options.limit is None
            else samples.chosen(range(len(samples))[: options.limit])
        )

    def check_head(self, info: ModelInfo) -> None:
        """Refuse a model without an output that this task can be measured on.

        Raises
        ------
        DataError
            If there is none.
        """
        output_read(info, self.name, self.kinds)

    def measure(self, samples: Any, side: Side, options: Options) -> Measures:
        """Measure a model on samples that `read` gave.

        Raises
        ------
        DataError
            If model and samples do not belong together.
        """
        return self.score(samples, side.reading(self.name, *self.kinds), options)


def _read_table(order: tuple[str, ...] | None, path: Path, options: Options) -> Samples:
    """A table with named columns; pairs where a column `pair` is named."""
    default = {"text": "text", "label": "label"}
    if order is None:
        default = {"text": "sentence1", "pair": "sentence2", "label": "score"}
    columns = {**default, **options.columns}
    ordered: dict[str, str] = {
        what: columns[what] for what in ("text", "pair", "label") if what in columns
    }
    return texts_of(path, ordered, TableFormat.of(path), order)


def _classes(
    name: str,
    metrics: Sequence[Callable[..., Measure]],
    positive: str | None,
    samples: Labelled,
    side: Side,
    options: Options,
) -> Measures:
    """Classes of texts; `positive` is the label whose F1 is measured after `metrics`."""
    logits = side.outputs(samples.texts)
    names = [side.info.label(i) for i in range(logits.shape[1])]
    if len(names) == 1:
        raise DataError(
            f"the model cannot be evaluated on the task {name}",
            why="it gives one figure for a text, and no classes",
            todo="give a model that was trained on this task",
        )
    numbers = class_numbers([*samples.labels, *samples.order], names, samples.order, options.labels)
    gold = np.array([numbers[label] for label in samples.labels])
    predicted = logits.argmax(axis=1)
    extra = [] if positive is None else [f1(gold, predicted, numbers[positive])]
    return [*(metric(gold, predicted) for metric in metrics), *extra]


def _similarity(name: str, samples: Scored, side: Side, options: Options) -> Measures:
    """Scores of pairs: a model's one logit, or the similarity of two vectors."""
    if side.kind == "logits":
        figures = side.outputs(samples.texts)
        if figures.shape[1] != 1:
            raise DataError(
                f"the model cannot be evaluated on the task {name}",
                why=f"it gives {figures.shape[1]} classes, and a similarity is one figure",
                todo="give a model with one class (regression), or one that gives vectors",
            )
        predicted = figures[:, 0].astype(np.float64)
    else:
        prompt = side.info.prompts.get(side.info.default_prompt_name or "", "")
        # One text may be in several pairs, and is computed once.
        texts = list(dict.fromkeys(text for pair in samples.texts for text in pair))
        known = side.info.post_processing
        vectors = known.finished(side.outputs([prompt + text for text in texts]))
        function = known.similarity or "cosine"
        if function == "cosine":
            vectors, function = normalized(vectors), "dot"
        rows = [row[None] for row in vectors.astype(np.float64)]
        place = {text: number for number, text in enumerate(texts)}
        predicted = np.array(
            [
                SIMILARITIES[function](*(rows[place[text]] for text in pair))[0][0]
                for pair in samples.texts
            ]
        )
    return [spearman(samples.scores, predicted), pearson(samples.scores, predicted)]


def _entities(samples: Tagged, side: Side, options: Options) -> Measures:
    """Entities, found by the class of every word's first token."""
    kinds = {split_tag(label)[1] for label in side.info.id2label.values()} - {""}
    known = {kind: kind for kind in kinds} | dict(options.labels)
    asked = {kind for tags in samples.tags for _, kind in map(split_tag, tags) if kind}
    if missing := sorted(kind for kind in asked if known.get(kind) not in kinds):
        raise unknown_labels(missing, sorted(kinds))
    texts = [" ".join(words) for words in samples.words]
    parts = [
        (i, w)
        for i, text in enumerate(texts)
        for w in side.tokenizer.windows(text, side.max_length)
    ]
    logits = side.windows([window for _, window in parts])
    firsts: list[dict[int, str]] = [{} for _ in texts]
    for (sentence, window), scores in zip(parts, logits, strict=True):
        best = scores.argmax(axis=1)
        for place, text in enumerate(window.texts):
            if text is not None:
                label = side.info.id2label.get(int(best[place]), OUTSIDE)
                # By its last character: a token may begin with the space before its word.
                firsts[sentence].setdefault(window.offsets[place][1] - 1, label)
    counts = []
    for words, tags, found in zip(samples.words, samples.tags, firsts, strict=True):
        predicted = entities_of(_tags_of_words(words, found))
        gold = {(known[kind], start, end) for kind, start, end in entities_of(tags)}
        counts.append((len(gold & predicted), len(predicted), len(gold)))
    right, predicted_count, gold_count = np.array(counts).T
    return [micro_f1(right, predicted_count, gold_count)]


def _tags_of_words(words: Sequence[str], first: Mapping[int, str]) -> list[str]:
    """Tag of every word: that of its first token, by where it ends; ``O`` without one."""
    tags = []
    start = 0
    for word in words:
        places = range(start, start + len(word))
        tags.append(next((first[place] for place in places if place in first), OUTSIDE))
        start += len(word) + 1
    return tags


def _answers(samples: Questions, side: Side, options: Options) -> Measures:
    windows = [side.tokenizer.question_windows(pair, side.max_length) for pair in samples.pairs]
    logits = iter(side.windows([window for group in windows for window in group]))
    answers = [
        predicted_answer(context, group, [next(logits) for _ in group], samples.unanswerable)
        for (_, context), group in zip(samples.pairs, windows, strict=True)
    ]
    pairs = list(zip(answers, samples.answers, strict=True))
    exact = [exact_match(answer, right) for answer, right in pairs]
    return [mean("exact match", exact), mean("F1", [token_f1(*pair) for pair in pairs])]


def _retrieval(samples: Retrieval, side: Side, options: Options) -> Measures:
    prompts, known = side.info.prompts, side.info.post_processing

    def vectors(texts: Mapping[str, str], names: Sequence[str]) -> Any:
        prompt = next((prompts[name] for name in names if name in prompts), "")
        return known.finished(side.outputs([prompt + text for text in texts.values()]))

    documents = vectors(samples.documents, ("document", "passage", "corpus"))
    queries = vectors(samples.queries, ("query",))
    judged = [
        (ranking, samples.relevance[query])
        for query, ranking in zip(
            samples.queries,
            rankings(
                queries,
                documents,
                list(samples.queries),
                list(samples.documents),
                known.similarity or "cosine",
            ),
            strict=True,
        )
    ]
    return [
        mean("NDCG@10", [ndcg(ranking, grades, 10) for ranking, grades in judged]),
        mean("recall@10", [recall(ranking, grades, 10) for ranking, grades in judged]),
        mean(f"recall@{DEPTH}", [recall(ranking, grades, DEPTH) for ranking, grades in judged]),
    ]


def _glue(name: str, *metrics: Callable[..., Measure], positive: str | None = None) -> Task:
    score = partial(_classes, name, metrics, positive)
    return Task(name, ("logits",), lambda path, _: read_glue(path, FORMATS[name]), score)


def _figure(name: str, read: Callable[[Path, Options], Samples], *takes: str) -> Task:
    return Task(name, ("logits", *_VECTORS), read, partial(_similarity, name), takes)


_TABLE = ("text", "pair", "label")
_TASKS = (
    _glue("cola", matthews),
    _glue("sst-2", accuracy),
    _glue("mrpc", accuracy, positive="1"),
    _figure("sts-b", lambda path, _: read_glue(path, FORMATS["sts-b"])),
    _glue("qqp", accuracy, positive="1"),
    _glue("mnli-m", accuracy),
    _glue("mnli-mm", accuracy),
    _glue("qnli", accuracy),
    _glue("rte", accuracy),
    Task(
        "classification",
        ("logits",),
        partial(_read_table, ()),
        partial(_classes, "classification", (accuracy, macro_f1), None),
        _TABLE,
    ),
    _figure("sts", partial(_read_table, None), *_TABLE),
    Task("retrieval", _VECTORS, lambda path, given: read_beir(path, given.split), _retrieval),
    Task(
        "token-classification",
        ("token_logits",),
        lambda path, given: read_conll(path, given.columns),
        _entities,
        ("text", "label"),
    ),
    Task("squad", ("span_logits",), lambda path, _: read_squad(path), _answers, seq_len=384),
)
TASKS = {task.name: task for task in _TASKS}
"""By name."""


def task_of(name: str | None) -> Task:
    """Return the task of a name; a `UsageError` lists all of them."""
    if name not in TASKS:
        raise UsageError(f"unknown task {name!r}", todo=f"give one of {', '.join(TASKS)}")
    return TASKS[name]


def checked_columns(
    task: Task | None, columns: Mapping[str, str], otherwise: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return what ``--columns`` names if a task takes it; `otherwise` is taken without one.

    Raises
    ------
    UsageError
        If it has no such columns.
    """
    takes = otherwise if task is None else task.takes
    for name in columns:
        if name not in takes:
            raise UsageError(
                f"--columns names {name!r}",
                why=f"{'such data' if task is None else f'the task {task.name}'} takes "
                f"{', '.join(takes) or 'no columns'}",
                todo="give only these",
            )
    return dict(columns)
