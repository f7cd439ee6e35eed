"""`ibert targets`: what can be compiled for on this machine."""

from __future__ import annotations

from dataclasses import asdict

from .options import JsonFlag, VerboseFlag
from .result import CommandResult
from .tables import Table


def command(json: JsonFlag = False, verbose: VerboseFlag = False) -> CommandResult:
    """List the targets, and what is missing on this machine to compile for them."""
    from ibert_tvm.targets import list_targets

    found = list_targets()
    cells = [
        (
            row.name,
            row.description if verbose else _short(row.description),
            "yes" if row.available else "no",
            _runs(row.runs),
        )
        for row in found
    ]
    shown: list[str | Table] = [
        Table(("target", "description", "compiles", "runs here"), cells),
        "",
        "other NVIDIA GPUs: cuda:sm_XX; several: t4+a100 (docs/targets.md)",
    ]
    reasons = [
        f"{row.name} {verb}: {missing}"
        for row in found
        for verb, missing in (
            ("is not compiled for here", row.missing),
            ("does not run here", row.runs_missing),
        )
        if missing
    ]
    if reasons:
        shown += reasons if verbose else ["-v says why not, and more of each target"]
    return CommandResult({"targets": [asdict(row) for row in found]}, shown)


def _short(description: str) -> str:
    """A description without the examples that follow."""
    return description.partition(" (")[0].partition(";")[0]


def _runs(runs: str) -> str:
    """Whether, and by what, a target's code runs here; without the folder of the emulator."""
    if not runs:
        return "no"
    if runs == "this machine":
        return "yes"
    return runs.split()[0].rpartition("/")[2]
