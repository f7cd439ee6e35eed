"""`ibert sign`: a signature of an artefact, with a key of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from .options import JsonFlag, VerboseFlag
from .result import CommandResult


def command(
    path: Annotated[
        Path, Argument(help="A NAME.ibert folder, a library, or a package for a microcontroller.")
    ],
    key: Annotated[Path, Option(help="PEM file of a private Ed25519 key.")],
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
) -> CommandResult:
    """Sign an artefact; `ibert verify --key` checks the signature."""
    from ..verification.signature import sign

    file = sign(path.expanduser(), key.expanduser())
    return CommandResult({"signature": str(file)}, [f"wrote {file}"])
