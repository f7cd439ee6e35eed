"""`ibert inspect MODEL`, before it is quantised: what importing it matches, folds and refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.errors import ExitCode
from ..common.strict_json import JsonObject
from ..model.heads import HEADS
from ..model.model_info import ModelInfo
from .options import HeadOptions
from .result import CommandResult
from .tables import Table

if TYPE_CHECKING:
    from ..frontend import CanonicalModel, ImportReport, UnsupportedModelError


_SHOWN = 8


def inspect_model(path: Path, source: HeadOptions, every: bool, verbose: bool) -> CommandResult:
    """Import a model and show the report; an import that is refused is shown up to there.

    Parameters
    ----------
    path
        A Hugging Face folder, an ONNX file or an exported torch program.
    source
        How it is imported.
    every
        Show every value and what was folded, not only how many.
    verbose
        Show every node of these, too, not only where they stand.

    Returns
    -------
    CommandResult
        With the exit code for a model that cannot be used if it is refused.
    """
    from ..frontend import UnsupportedModelError
    from ..progress import progress
    from ..quantization.given import given_document
    from ..quantization.source_scales import model_lines

    with progress("importing the model"):
        try:
            model = source.load(path, source.chosen_head)
        except UnsupportedModelError as error:
            return _refused(path, error, verbose)
    document = {
        "kind": "source model",
        "path": str(path),
        "supported": True,
        "verified_error": model.verified_error,
        "info": model.info.to_json(),
        "report": model.report.to_json(),
    }
    scales: list[tuple[str, str]] = []
    if model.given is not None:
        given = given_document(model, model.given, "accurate")
        document["quantisation"] = given
        scales = model_lines(given, every or verbose)

    summary = Table((), [*_summary(path, model), *scales])
    return CommandResult(document, [summary, *_shown(model.report, every, verbose)])


def _refused(path: Path, error: UnsupportedModelError, verbose: bool) -> CommandResult:
    from ..frontend import ImportReport

    report = error.report or ImportReport()
    document = {
        "kind": "source model",
        "path": str(path),
        "supported": False,
        "error": {
            "what": error.what,
            "where": error.where,
            "why": error.why,
            "what_to_do": error.todo,
        },
        "report": report.to_json(),
    }

    shown = [*_shown(report, True, verbose), f"\nrefused: {error}"]
    if report.source:
        shown.insert(0, Table((), [("source model", str(path)), ("source", report.source)]))
    return CommandResult(document, shown, ExitCode.MODEL)


def _summary(path: Path, model: CanonicalModel) -> list[tuple[str, str]]:
    info = model.info
    counts = Counter(item.op.removeprefix("canonical.") for item in model.report.matched)
    rows = [
        ("source model", str(path)),
        ("source", model.report.source or info.description),
        model_row(info.to_json()),
        ("inputs", ", ".join(info.inputs)),
        ("outputs", ", ".join(f"{o.name} ({o.kind})" for o in info.outputs)),
        ("matched", ", ".join(f"{count} {op}" for op, count in sorted(counts.items()))),
    ]
    if model.verified_error is not None:
        rows.append(("verified", f"largest difference from the source {model.verified_error:.2g}"))
    rows += after_rows(info)
    rows += [("note", note) for note in info.notes]
    return rows


def model_row(info: JsonObject) -> tuple[str, str]:
    """What a model is, of its information as JSON."""
    return "model", (
        f"{info['architecture']}, {info['num_layers']} layers, {info['hidden_size']} channels, "
        f"head {info['head']}, vocabulary {info['vocab_size']}"
    )


def tokenizer_rows(info: JsonObject) -> list[tuple[str, str]]:
    """What is recorded of a tokenizer's behaviour, of a model's information as JSON."""
    said = info.get("tokenizer_behaviour")
    if not said:
        return []
    compared = f", as {said['compared_with']} does" if "compared_with" in said else ""
    digest = f"ids of the probe texts have sha256 {said.get('sha256', '')[:16]}"
    return [("tokenizing", digest + compared)]


def after_rows(info: ModelInfo) -> list[tuple[str, str]]:
    """What goes before and behind the network, as the model's own library does it."""
    record, rows = info.post_processing, []
    if HEADS[info.head].kind == "logits":
        several, single = record.classes or "softmax", record.classes or "sigmoid"
        scores = single if len(info.id2label) == 1 else several
        pairs = f"; of a pair {record.pairs or 'sigmoid'}" if len(info.id2label) == 1 else ""
        rows.append(("scores", f"{scores} of the logits{pairs}"))
    if HEADS[info.head].kind == "embedding":
        rows.append(("similarity", record.similarity or "cosine"))
    if info.id2label:
        rows.append(("labels", _limited(list(info.id2label.values()))))
    if record.thresholds:
        stated = [f"{label} {least:g}" for label, least in record.thresholds.items()]
        rows.append(("thresholds", _limited(stated)))
    if record.dimensions is not None:
        rows.append(("vectors", f"cut to {record.dimensions} channels"))
    if record.active is not None:
        rows.append(("vectors", f"the {record.active} largest values of each"))
    rows += [
        ("prompt", f"{name}: {text!r}" + (" (default)" if name == info.default_prompt_name else ""))
        for name, text in info.prompts.items()
    ]
    return rows


def _limited(items: Sequence[str]) -> str:
    """The first items, and how many more there are."""
    more = [f"{len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
    return ", ".join([*items[:_SHOWN], *more])


def _shown(report: ImportReport, every: bool, verbose: bool) -> list[str | Table]:
    matched = [
        (
            item.name,
            item.op.removeprefix("canonical."),
            _counted(item.source_ops),
            ", ".join(item.nodes) if verbose else _place(item.nodes),
        )
        for item in report.matched
    ]
    folded = [(item.name, item.what, _place(item.nodes)) for item in report.foldings]
    refused = [(item.op, item.node, item.layer, item.why) for item in report.refusals]
    tables = (
        Table(("value", "operator", "source operators", "source nodes"), matched),
        Table(("folded", "what", "source nodes"), folded),
        Table(("refused", "source node", "layer", "why"), refused),
    )
    if not (every or verbose):
        return [f"{len(matched)} values, {len(folded)} foldings: --all shows each"]
    return [item for table in tables if table.rows for item in ("", table)]


def _counted(ops: Sequence[str]) -> str:
    """Operators in the order of their first use, with how often each occurs."""
    counts = Counter(op.removeprefix("relax.") for op in ops)
    return ", ".join(op if count == 1 else f"{count} {op}" for op, count in counts.items())


def _place(nodes: Sequence[str]) -> str:
    """Where the nodes stand: their names, or what the names have in common if they are many."""
    if len(nodes) <= 2:
        return ", ".join(nodes)
    first, last = min(nodes), max(nodes)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), None)
    common = first[:same]
    cut = max(common.rfind(mark) for mark in "/._") + 1
    return f"{common[:cut]}… ({len(nodes)} nodes)" if cut else f"{nodes[0]} … {nodes[-1]}"
