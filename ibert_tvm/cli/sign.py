"""`ibert sign`: a signature of an artefact, with a key of the user's."""

from __future__ import annotations

from pathlib import Path

from .result import CommandResult


def command(path: Path, *, key: Path) -> CommandResult:
    """Sign an artefact; `ibert verify --key` checks the signature.

    Parameters
    ----------
    path
        A NAME.ibert folder, a library, or a package for a microcontroller.
    key
        PEM file of a private key, of the elliptic curve P-256, P-384 or P-521.

    Examples
    --------
    ibert sign minilm.so --key private.pem
    """
    from ..verification.signature import sign

    file = sign(path, key)
    return CommandResult({"signature": str(file)}, [f"wrote {file}"])
