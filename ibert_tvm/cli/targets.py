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
            row.description,
            "yes" if row.available else f"no: {row.missing}",
            _runs(row.runs, row.runs_missing),
        )
        for row in found
    ]
    shown: list[str | Table] = [
        Table(("target", "description", "compiles here", "runs here"), cells),
        "other NVIDIA GPUs: cuda:sm_XX; several: t4+a100 (docs/targets.md)",
    ]
    return CommandResult({"targets": [asdict(row) for row in found]}, shown)


def _runs(runs: str, missing: str) -> str:
    """Whether, and by what, a target's code runs here; without the folder of the emulator."""
    if not runs:
        return f"no: {missing}"
    if runs == "this machine":
        return "yes"
    return f"yes, under {runs.split()[0].rpartition('/')[2]}"
