"""What two artefacts are compared by: the same place in the documents of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..common.strict_json import JsonObject
from ..evaluation.agreements import figures
from .numbers import key

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
