"""`ibert targets`: what can be compiled for on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ibert_tvm.cli.options import JsonFlag, VerboseFlag
from ibert_tvm.cli.result import CommandResult
from ibert_tvm.cli.tables import table

if TYPE_CHECKING:
    from rich.console import Console


def command(json: JsonFlag = False, verbose: VerboseFlag = False) -> CommandResult:
    """List the targets, and what is missing on this machine to compile for them."""
    from ibert_tvm.targets import list_targets

    rows = [
        {
            "name": row.name,
            "description": row.description,
            "available": row.available,
            "missing": row.missing,
            "compiler": row.compiler,
            "runs": row.runs,
            "runs_missing": row.runs_missing,
            "runtimes": list(row.runtimes),
            "system": row.system,
        }
        for row in list_targets()
    ]

    def render(console: Console) -> None:
        cells = [
            (
                str(row["name"]),
                str(row["description"]),
                "yes" if row["available"] else f"no: {row['missing']}",
                _runs(str(row["runs"]), str(row["runs_missing"])),
            )
            for row in rows
        ]
        headers = ("target", "description", "compiles here", "runs here")
        console.print(table(headers, cells))
        console.print("other NVIDIA GPUs: cuda:sm_XX; several: t4+a100 (docs/targets.md)")

    return CommandResult({"targets": rows}, render)


def _runs(runs: str, missing: str) -> str:
    """Whether, and by what, a target's code runs here; without the folder of the emulator."""
    if not runs:
        return f"no: {missing}"
    if runs == "this machine":
        return "yes"
    return f"yes, under {runs.split()[0].rpartition('/')[2]}"
