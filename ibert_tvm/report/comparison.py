"""What two artefacts are compared by: the same place in the documents of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..common.strict_json import JsonObject
from .numbers import key

_FACTS = (
    ("kind", "/kind", ""),
    ("target", "{said}/target/name", ""),
    ("runtime", "/inspect/runtime", ""),
    ("preset", "{model}/preset", ""),
    ("sha256", "/sha256", ""),
    ("sha256 of the source", "{said}/info/source_sha256", ""),
    ("size", "/inspect/bytes", "bytes"),
    ("parameters", "/inspect/parameter_bytes", "bytes"),
    ("steps' widest intermediate, bits", "/graph/widest_bits", ""),
    ("cosine to the float model, mean", "{fidelity}/cosine_mean", ".5f"),
    ("smallest cosine", "{fidelity}/cosine_min", ".5f"),
    ("Spearman of all pairs", "{fidelity}/spearman", ".5f"),
    ("same nearest neighbour", "{fidelity}/same_nearest_neighbour", ".1%"),
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
    roots = [_Roots(index, artefact) for index, artefact in enumerate(artefacts)]
    places = [*_FACTS, *_versions(artefacts)]
    rows = [
        Row(title, tuple(root.pointer(place) for root in roots), form)
        for title, place, form in places
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


def _versions(artefacts: Sequence[JsonObject]) -> list[tuple[str, str, str]]:
    said = [artefact["package"] or artefact["inspect"] for artefact in artefacts]
    names = {name: None for document in said for name in document.get("versions", {})}
    return [
        (
            f"version of {name}",
            "{said}/versions/" + key(name).replace("{", "{{").replace("}", "}}"),
            "",
        )
        for name in names
    ]


def _measured(artefact: JsonObject) -> dict[tuple[int, int, int | None], int]:
    """Places of the shapes that were measured."""
    results = (artefact["bench"] or {}).get("results", ())
    return {(row["batch"], row["seq_len"], row["threads"]): i for i, row in enumerate(results)}
