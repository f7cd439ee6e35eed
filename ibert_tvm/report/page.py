"""The page: the template filled in with a document. One file, which loads nothing.

Whatever a document holds is escaped, and the page's own policy lets nothing run or load but the
script and the style that are in it, by their hashes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ..common.content_policy import content_policy
from ..common.files import marked
from ..common.strict_json import JsonDict, JsonObject
from ..compiler.statements import target_words
from ..evaluation.agreements import figures, verdict
from .charts import cosines, furthest, roofline, spread
from .numbers import key

if TYPE_CHECKING:
    from jinja2 import Environment

# What two artefacts are compared by: the same place in the documents of both.

_Place = tuple[str, str, str]
_FACTS: tuple[_Place, ...] = (
    ("kind", "/kind", ""),
    ("target", "{said}/target/name", ""),
    ("runtime", "/inspect/runtime", ""),
    ("preset", "{model}/preset", ""),
    ("sha256", "/sha256", ""),
    ("sha256 of the source", "{said}/info/source_sha256", ""),
    ("size", "/inspect/bytes", "bytes"),
    ("weights", "/inspect/weight_bytes", "bytes"),
    ("steps' widest intermediate, bits", "/graph/widest_bits", ""),
    ("flash", "/package/memory/flash/total", "bytes"),
    ("weights in flash", "/package/memory/flash/weights", "bytes"),
    ("code in flash", "/package/memory/flash/code", "bytes"),
    ("RAM", "/package/memory/ram/total", "bytes"),
    ("arena in RAM", "/package/memory/ram/arena", "bytes"),
    ("stack in RAM", "/package/memory/ram/stack", "bytes"),
)


@dataclass(frozen=True)
class Row:
    """One line of the comparison.

    Attributes
    ----------
    title
    pointers
        Where the value is, of each artefact.
    form
        As `Numbers.shown` takes it.
    """

    title: str
    pointers: tuple[str | None, ...]
    form: str


def compare(artefacts: Sequence[JsonObject]) -> list[Row]:
    """List what can be compared of two artefacts, versions and shapes included.

    Parameters
    ----------
    artefacts : sequence of dict
        Of a page's document.

    Returns
    -------
    list of Row
        Those may have a value on one side only.
    """
    roots = _roots(artefacts)
    rows = [
        *_rows(artefacts, _FACTS),
        *fidelity_rows(artefacts),
        *_rows(artefacts, _versions(artefacts)),
    ]
    measured = [_measured(artefact) for artefact in artefacts]
    for shape in {shape: None for found in measured for shape in found}:
        batch, seq_len, threads = shape
        title = f"median of {batch} × {seq_len}, ms"
        title += "" if threads is None else f" ({threads} thread{'s' * (threads != 1)})"
        pointers = tuple(
            root.pointer(f"/bench/results/{found[shape]}/median_ms") if shape in found else None
            for root, found in zip(roots, measured, strict=True)
        )
        rows.append(Row(title, pointers, ".3f"))
    return rows


class _Roots:
    """Where the documents of one artefact are: what is said of a package is in its own."""

    def __init__(self, index: int, artefact: JsonObject) -> None:
        self._root = f"/artefacts/{index}"
        self._places = {
            "said": "/package" if artefact["package"] else "/inspect",
            "model": "/model" if artefact["model"] else "/inspect",
            "fidelity": "/eval" if artefact["eval"] else "/layers",
        }

    def pointer(self, place: str) -> str:
        return self._root + place.format(**self._places)


def fidelity_rows(artefacts: Sequence[JsonObject]) -> list[Row]:
    """List what artefacts, or their layers, differ from the float model by."""
    documents = [artefact["eval"] or artefact["layers"] or {} for artefact in artefacts]
    places = [
        (figure.title, "{fidelity}/" + _escaped("/".join(map(key, figure.key))), figure.form)
        for figure in dict.fromkeys(figure for each in documents for figure in figures(each))
    ]
    return _rows(artefacts, places)


def _rows(artefacts: Sequence[JsonObject], places: Sequence[_Place]) -> list[Row]:
    roots = _roots(artefacts)
    return [
        Row(title, tuple(root.pointer(place) for root in roots), form)
        for title, place, form in places
    ]


def _roots(artefacts: Sequence[JsonObject]) -> list[_Roots]:
    return [_Roots(index, artefact) for index, artefact in enumerate(artefacts)]


def _escaped(pointer: str) -> str:
    """A pointer in which `str.format` finds no field."""
    return pointer.replace("{", "{{").replace("}", "}}")


def _versions(artefacts: Sequence[JsonObject]) -> list[_Place]:
    said = [artefact["package"] or artefact["inspect"] for artefact in artefacts]
    names = {name: None for document in said for name in document.get("versions", {})}
    return [(f"version of {name}", "{said}/versions/" + _escaped(key(name)), "") for name in names]


def _measured(artefact: JsonObject) -> dict[tuple[int, int, int | None], int]:
    """Places of the shapes that were measured."""
    results = (artefact["bench"] or {}).get("results", ())
    return {(row["batch"], row["seq_len"], row["threads"]): i for i, row in enumerate(results)}


# Lanes for the values of a program, as a version history is drawn: one row per step.
#
# A value runs down its lane from the step that makes it to the last one that reads it.

MOST_LANES = 12
"""Values beyond these are not drawn; rows name what they read anyway."""


@dataclass(frozen=True)
class Rail:
    """What is drawn beside one step.

    Attributes
    ----------
    lane
        Of the step; None where all are taken.
    passing
        Lanes that run through the row, those included that the step reads and others after it.
    read
        Lanes of what the step reads.
    goes_on
        Whether something below reads the step's value, or it is an output.
    """

    lane: int | None
    passing: tuple[int, ...]
    read: tuple[int, ...]
    goes_on: bool


def draw_rails(steps: Sequence[JsonObject], outputs: Sequence[str]) -> list[Rail]:
    """Give every step of `program_graph` a lane.

    Parameters
    ----------
    steps : sequence of dict
        In order of execution.
    outputs
        Values that run on to the end.
    """
    last: dict[str, int] = {}
    for index, step in enumerate(steps):
        for operand in step["operands"]:
            last[operand["value"]] = index
    last |= dict.fromkeys(outputs, len(steps))
    lanes: list[str | None] = [None] * MOST_LANES
    rails = []
    for index, step in enumerate(steps):
        reads = {operand["value"] for operand in step["operands"]}
        read = tuple(i for i, value in enumerate(lanes) if value in reads)
        passing = tuple(
            i for i, value in enumerate(lanes) if value is not None and last[value] > index
        )
        free = [i for i in read if i not in passing]
        free += [i for i, value in enumerate(lanes) if value is None]
        lane = free[0] if free else None
        for i in read:
            if i not in passing:
                lanes[i] = None
        goes_on = last.get(step["name"], -1) > index
        if lane is not None and goes_on:
            lanes[lane] = step["name"]
        rails.append(Rail(lane, passing, read, goes_on))
    return rails


_PATHS = ("path", "source", "model", "against", "library")
SCHEMA_VERSION = 1
"""Of the document that a page holds."""
PAGE = marked("a page that `ibert report` wrote", b'<meta name="generator" content="ibert_tvm')


def render_page(document: JsonObject) -> str:
    """Fill in the page.

    Parameters
    ----------
    document : dict
        JSON-able: ``artefacts``, one or two, with the documents of the commands that looked at
        them (`ibert_tvm.cli.report_parts.collect`), ``made`` and ``ibert_tvm``.

    Returns
    -------
    str
        HTML. Needs Jinja2.
    """
    from markupsafe import Markup

    from .numbers import Numbers, key

    document = without_folders(document)
    numbers = Numbers(document)
    style, script = (_own(name) for name in ("page.css", "page.js"))
    artefacts = document["artefacts"]
    first = artefacts[0]
    layers = [_layers(artefact) for artefact in artefacts]
    graph = first["graph"]
    fidelity = first["eval"] or first["layers"] or {}
    return (
        _environment()
        .get_template("page.html")
        .render(
            document=document,
            number=numbers.shown,
            at=numbers.at,
            key=key,
            style=Markup(style),
            script=Markup(script),
            policy=content_policy(style, script),
            rooflines=[
                roofline(*_parts(first, row)) for row in (first["bench"] or {}).get("results", ())
            ],
            figures=fidelity_rows([first]),
            verdict=verdict(fidelity),
            texts=spread(fidelity.get("text_errors", ())),
            target=_target(first),
            busy=_busy(first),
            layers=layers[0],
            layer_chart=cosines(layers),
            furthest=furthest,
            rails=[] if graph is None else draw_rails(graph["steps"], graph["outputs"]),
            comparison=compare(artefacts) if len(artefacts) > 1 else [],
        )
    )


@functools.cache
def _environment() -> Environment:
    """What keeps the templates once it has compiled them, which takes longer than filling in."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("ibert_tvm.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _own(name: str) -> str:
    return files(__package__).joinpath("template", name).read_text(encoding="utf-8")


def without_folders(value: Any, key: str = "") -> Any:
    """A document without the folders that files lay in, which are nobody else's business."""
    if isinstance(value, Mapping):
        return {name: without_folders(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [without_folders(part) for part in value]
    private = key in _PATHS and isinstance(value, str) and value.startswith(("/", "~"))
    return PurePath(value).name if private else value


def _target(artefact: JsonObject) -> str:
    said = artefact["package"] or artefact["inspect"]
    return target_words(said.get("target") or {}, said.get("required_cpu_features") or ())


def _busy(artefact: JsonObject) -> bool:
    """Whether other work had half of the processors, or more, when speed was measured."""
    machine = (artefact["bench"] or {}).get("machine", {})
    load = machine.get("load_average")
    return load is not None and load >= machine["processors"] / 2


def _layers(artefact: JsonObject) -> list[JsonDict]:
    """Layers of an artefact, wherever they were evaluated."""
    for part in ("layers", "eval"):
        found: list[JsonDict] = (artefact[part] or {}).get("layers", [])
        if found:
            return found
    return []


def _parts(artefact: JsonObject, row: JsonObject) -> tuple[list[JsonDict], float | None]:
    """What a run of one shape consists of, repeated layers together, and the machine's limit."""
    limit = artefact["bench"]["ceilings"].get(str(row["threads"]), {}).get("gmacs")
    return row.get("layers", {}).get("by_role", []), limit
