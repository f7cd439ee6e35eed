"""The result document of a GPU: written after every cell, continued by a later run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, describe_software
from benchmarks.store import StoreError, save

from .cells import Task
from .peers import PEERS

__all__ = ["SCHEMA", "add_rows", "continue_result", "is_measured", "load", "new_result", "save"]

SCHEMA = 1
MEASUREMENT = "measurement"


def new_result(
    gpu: Mapping[str, Any],
    driver: str | None,
    manifest: Mapping[str, Any],
    peers: Iterable[str],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """An empty result of this GPU and this checkout.

    Parameters
    ----------
    gpu : dict
        What it was measured on, as of `gpu.GpuDescription`.
    driver : str or None
        Version of the kernel driver.
    manifest : dict
        Of the prepared folder.
    peers : iterable of str
        Names of the peers that will be measured.
    settings : dict
        How they will be measured.
    """
    names = list(peers)
    return {
        "schema": SCHEMA,
        "kind": MEASUREMENT,
        "machine": describe_machine(),
        "gpu": {**gpu, "kernel_driver": driver},
        "software": describe_software(),
        "prepared": {key: manifest[key] for key in ("target", "architectures", "software")},
        "settings": dict(settings),
        "peers": {name: PEERS[name].title for name in names},
        "precision": {name: PEERS[name].precision for name in names},
        "skipped": {},
        "limits": {},
        "rows": [],
    }


def load(path: Path) -> dict[str, Any]:
    """Read a document.

    Raises
    ------
    StoreError
        If it is no measurement by this version of the benchmark.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error
    found = (result.get("schema"), result.get("kind")) if isinstance(result, dict) else None
    if found != (SCHEMA, MEASUREMENT):
        raise StoreError(f"{path} is no measurement of schema {SCHEMA}: measure again")
    return dict(result)


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (row["model"], row["cell"], row["peer"])


def add_rows(result: dict[str, Any], new: Iterable[dict[str, Any]]) -> None:
    """Add rows, replacing older ones of the same cell and peer."""
    by_key = {_key(row): row for row in result["rows"]}
    by_key.update({_key(row): row for row in new})
    result["rows"] = list(by_key.values())


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    for key in ("name", "kernel_driver", "driver"):
        if ours["gpu"][key] != theirs["gpu"][key]:
            return f"another GPU or driver: {key} {theirs['gpu'][key]!r}"
    if ours["prepared"]["software"]["sources"] != theirs["prepared"]["software"]["sources"]:
        commit = theirs["prepared"]["software"]["commit"]
        return f"another version of the compiler: commit {commit}"
    if ours["software"]["packages"] != theirs["software"]["packages"]:
        return "other versions of packages"
    return ""


def continue_result(result: dict[str, Any], path: Path) -> int:
    """Take over what an earlier run has measured.

    Returns
    -------
    int
        Rows taken over; 0 where there is no earlier run.

    Raises
    ------
    StoreError
        If the earlier run was of another GPU, driver, compiler or set of packages.
    """
    if not path.exists():
        return 0
    earlier = load(path)
    different = _difference(result, earlier)
    if different:
        raise StoreError(f"cannot continue {path}: it is of {different}; run without --resume")
    for section in ("peers", "precision"):
        result[section] = {**earlier[section], **result[section]}
    result["limits"] = dict(earlier["limits"])
    add_rows(result, [row for row in earlier["rows"] if "failed" not in row])
    return len(result["rows"])


def is_measured(result: Mapping[str, Any], task: Task, peers: Iterable[str]) -> bool:
    """Whether every one of `peers` has a figure in a cell."""
    found = {
        row["peer"]
        for row in result["rows"]
        if (row["model"], row["cell"]) == (task.model, str(task.cell)) and "median_ms" in row
    }
    return set(peers) <= found
