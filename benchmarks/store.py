"""The result document: written after every cell, continued by a later run, merged from parts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .machine import describe_machine, describe_software
from .models import Cell
from .peers import find_peer

__all__ = [
    "SCHEMA",
    "StoreError",
    "add_limits",
    "add_rows",
    "continue_result",
    "is_measured",
    "load",
    "merge",
    "new_result",
    "save",
    "save_with_text",
]

SCHEMA = 2
_MACHINE = ("processor", "family", "model", "cores")


class StoreError(Exception):
    """A result that cannot be read, continued or merged."""


def new_result(peers: Iterable[str], settings: dict[str, Any]) -> dict[str, Any]:
    """An empty result of this machine and this checkout.

    Parameters
    ----------
    peers : iterable of str
        Names of the peers that will be measured.
    settings : dict
        How they will be measured.
    """
    names = list(peers)
    return {
        "schema": SCHEMA,
        "machine": describe_machine(),
        "software": describe_software(),
        "settings": settings,
        "peers": {name: find_peer(name).title for name in names},
        "precision": {name: find_peer(name).precision for name in names},
        "skipped": {},
        "limits": {},
        "rows": [],
        "memory": [],
        "profiles": [],
    }


def save(result: dict[str, Any], path: Path) -> None:
    """Write the document; an older one is replaced only once the new one is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def save_with_text(result: dict[str, Any], text: str, output: Path) -> list[Path]:
    """Write the document and a text of it to a path without suffix; returns both paths."""
    document, page = (output.with_name(output.name + suffix) for suffix in (".json", ".md"))
    save(result, document)
    page.write_text(text, encoding="utf-8")
    return [document, page]


def load(path: Path) -> dict[str, Any]:
    """Read a document.

    Raises
    ------
    StoreError
        If it is not a result of this version of the benchmark.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error
    schema = result.get("schema") if isinstance(result, dict) else None
    if schema != SCHEMA:
        raise StoreError(f"{path} has schema {schema!r}, not {SCHEMA}: measure again")
    return dict(result)


def _difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Why figures of two results do not belong in one table; empty if they do."""
    for key in _MACHINE:
        if ours["machine"][key] != theirs["machine"][key]:
            return f"another machine: {key} {theirs['machine'][key]!r}"
    if ours["software"]["sources"] != theirs["software"]["sources"]:
        return f"another version of the compiler: commit {theirs['software']['commit']}"
    if ours["software"]["packages"] != theirs["software"]["packages"]:
        return "other versions of packages"
    return ""


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["model"], row["cell"], row["threads"], row["peer"])


def _replace(rows: list[dict[str, Any]], new: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with those of equal key replaced, in the order of the first appearance."""
    by_key = {_key(row): row for row in rows}
    by_key.update({_key(row): row for row in new})
    return list(by_key.values())


def add_rows(result: dict[str, Any], section: str, new: Iterable[dict[str, Any]]) -> None:
    """Add rows to a section, replacing older ones of the same cell and peer."""
    result[section] = _replace(result[section], new)


def add_limits(result: dict[str, Any], threads: int, limits: dict[str, dict[str, Any]]) -> None:
    """Add limits of the machine; of several measurements the best counts, for the clock drifts."""
    known = result["limits"].setdefault(str(threads), {})
    for name, row in limits.items():
        if name not in known or row["value"] > known[name]["value"]:
            known[name] = dict(row)


def continue_result(result: dict[str, Any], path: Path) -> int:
    """Take over what an earlier run has measured.

    Parameters
    ----------
    result : dict
        The new result, changed in place.
    path : Path
        The document of the earlier run; nothing happens if there is none.

    Returns
    -------
    int
        Rows taken over.

    Raises
    ------
    StoreError
        If the earlier run was of another machine, compiler or set of packages.
    """
    if not path.exists():
        return 0
    earlier = load(path)
    different = _difference(result, earlier)
    if different:
        raise StoreError(f"cannot continue {path}: it is of {different}; run without --resume")
    _absorb(result, {**earlier, "skipped": {}})  # what failed is tried again
    return len(result["rows"])


def _absorb(result: dict[str, Any], other: dict[str, Any]) -> None:
    for section in ("peers", "precision", "skipped"):
        result[section] = {**other[section], **result[section]}
    for threads, limits in other["limits"].items():
        add_limits(result, int(threads), limits)
    for section in ("rows", "memory", "profiles"):
        add_rows(result, section, [row for row in other[section] if "failed" not in row])


def merge(paths: Iterable[Path]) -> dict[str, Any]:
    """Merge results of one machine and one version of the compiler; later ones replace earlier.

    Raises
    ------
    StoreError
        If there is none, or two do not belong together.
    """
    documents = [load(path) for path in paths]
    if not documents:
        raise StoreError("no result to merge")
    merged = documents[0]
    for other in documents[1:]:
        different = _difference(merged, other)
        if different:
            raise StoreError(f"cannot merge: one result is of {different}")
        _absorb(merged, other)
    return merged


def is_measured(
    result: dict[str, Any],
    model: str,
    cell: Cell,
    threads: int,
    peers: Iterable[str],
    section: str = "rows",
) -> bool:
    """Whether every one of `peers` has a figure in a cell."""
    found = {
        row["peer"]
        for row in result[section]
        if (row["model"], row["cell"], row["threads"]) == (model, str(cell), threads)
        and "failed" not in row
    }
    return set(peers) <= found
