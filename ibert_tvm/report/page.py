"""The page: the template filled in with a document. One file, which loads nothing.

Whatever a document holds is escaped, and the page's own policy lets nothing run or load but the
script and the style that are in it, by their hashes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.resources import files
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ..common.content_policy import content_policy
from ..common.files import marked
from ..common.strict_json import JsonDict, JsonObject
from ..compiler.statements import target_words
from ..evaluation.agreements import verdict
from .charts import cosines, furthest, roofline, spread
from .comparison import compare, fidelity_rows
from .rails import draw_rails

if TYPE_CHECKING:
    from jinja2 import Environment

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
