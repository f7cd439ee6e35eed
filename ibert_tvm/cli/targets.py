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
    from targets import list_targets

    rows = [
        {
            "name": row.name,
            "description": row.description,
            "available": row.available,
            "missing": row.missing,
        }
        for row in list_targets()
    ]

    def render(console: Console) -> None:
        cells = [
            (
                str(row["name"]),
                str(row["description"]),
                "yes" if row["available"] else f"no: {row['missing']}",
            )
            for row in rows
        ]
        console.print(table(("target", "description", "on this machine"), cells))

    return CommandResult({"targets": rows}, render)
