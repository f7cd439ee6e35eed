"""Scales that a model came with, for people: what is used, what is missing, what is ignored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..common.strict_json import JsonObject

_USES = {
    "inside": "inside operators that are computed in one piece",
    "inputs": "of tensors that depend on the inputs only, such as a mask",
    "superseded": "followed by another one before anything reads them",
    "unread": "that nothing reads",
}
_SECTIONS = {"matmul": "8-bit operands", "grids": "rounded values", "stream": "16-bit streams"}
_FORMS = {"matmul": "8-bit operand", "stream": "16-bit stream"}
_MOST = 3


def artefact_lines(source: JsonObject, verbose: bool) -> list[tuple[str, str]]:
    """Describe the entry ``source_scales`` of a quantised model.

    Parameters
    ----------
    source : mapping
        As `ibert_tvm.quantization.scale_source.SourceScales.to_json` returns it.
    verbose
        List everything, not only the first few.

    Returns
    -------
    list of (str, str)
        Label and text of every line.
    """
    used = [
        f"{len(source['file'][section])} {what}"
        for section, what in _SECTIONS.items()
        if source["file"][section]
    ]
    lines = [("scales of the file", ", ".join(used) or "none")]
    if source["widened"]:
        text = "streams keep 16 bits over the file's range; its roundings to 8 bits are left out"
        lines.append(("widened", text))
    estimated = [
        f"{value} ({_FORMS[section]})"
        for section, values in source["calibrated"].items()
        for value in values
    ]
    lines.append(("calibrated", _listed(estimated, verbose) or "nothing"))
    weights = source["weights"].values()
    exact, rows = sum(w["exact"] for w in weights), sum(w["rows"] for w in weights)
    lines.append(("weights", f"{exact} of {rows} rows hold the file's integers"))
    again = [
        f"{name}: {use['rows'] - use['exact']} of {use['rows']} rows ({use['why']})"
        for name, use in source["weights"].items()
        if use["exact"] < use["rows"]
    ]
    lines += _many("rounded again", again, verbose)
    notes = [f"{n['value']}: {n['what']} ({n['tensor']})" for n in source["notes"]]
    lines += _many("converted", notes, verbose)
    if source["centred_keys"]:
        text = "keys counted from the middle of their grid, which softmax does not see"
        lines.append(("shifted", f"{text}: {_listed(source['centred_keys'], verbose)}"))
    return lines + _ignored(source["ignored"], verbose)


def model_lines(document: JsonObject, verbose: bool) -> list[tuple[str, str]]:
    """Describe a `given_document`; parameters and result as for `artefact_lines`."""
    edges: Sequence[JsonObject] = document["edges"]
    used = [edge for edge in edges if edge["use"] == "value"]
    values = {edge["value"] for edge in used}
    lines = [("scales", f"{len(used)} of {len(edges)} roundings, of {len(values)} values")]
    if verbose:
        lines += [("rounding", f"{e['tensor']}: {e['grid']} → {e['value']}") for e in used]
    missing = [f"{item['value']} ({_FORMS[item['section']]})" for item in document["missing"]]
    lines.append(("need calibration", _listed(missing, verbose) or "none"))
    matrices = document["matrices"].values()
    found, rows = sum(m["found"] for m in matrices), sum(m["rows"] for m in matrices)
    lines.append(("weights", f"{len(matrices)} quantised matrices, {found} of {rows} rows found"))
    notes = [f"{n['value']}: {n['what']} ({n['tensor']})" for n in document["notes"]]
    lines += _many("converted", notes, verbose)
    return lines + _ignored([edge for edge in edges if edge["use"] != "value"], verbose)


def _ignored(edges: Sequence[JsonObject], verbose: bool) -> list[tuple[str, str]]:
    counts = Counter(edge["use"] for edge in edges)
    lines = [("ignored", f"{counts[use]} {text}") for use, text in _USES.items() if counts[use]]
    if verbose:
        lines += [
            ("ignored", f"{e['tensor']}: {e['grid']}" + (f" ({e['value']})" if e["value"] else ""))
            for e in edges
        ]
    return lines


def _many(label: str, items: Sequence[str], verbose: bool) -> list[tuple[str, str]]:
    shown = items if verbose else items[:_MOST]
    lines = [(label, item) for item in shown]
    if len(items) > len(shown):
        lines.append((label, f"and {len(items) - len(shown)} more (-v lists them)"))
    return lines


def _listed(items: Sequence[str], verbose: bool) -> str:
    if verbose or len(items) <= _MOST:
        return ", ".join(items)
    return f"{len(items)} values, {', '.join(items[:_MOST])} and more (-v lists them)"
