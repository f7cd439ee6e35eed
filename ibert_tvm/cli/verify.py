"""`ibert verify`: what was promised of an artefact, checked on the file itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from ..errors import ExitCode
from .options import JsonFlag, VerboseFlag
from .result import CommandResult

# About what each takes, with weights of 22 million parameters.
_SHARES = {"digests": 1, "no floating point": 4, "intervals": 8, "same bits": 20}


def command(
    path: Annotated[Path, Argument(help="A NAME.ibert folder, or a library made of one.")],
    model: Annotated[
        Path | None, Option(help="Of a library: the NAME.ibert folder that it was compiled from.")
    ] = None,
    inputs: Annotated[int, Option(min=1, help="How many random inputs to compare.")] = 16,
    emulate: Annotated[
        bool, Option("--emulate", help="Run a library without runtime under its emulator.")
    ] = False,
    output: Annotated[
        Path, Option("-o", "--output", help="Where to write the certificate.")
    ] = Path("verify.json"),
    key: Annotated[
        Path | None, Option(help="PEM file of a public key that it has to be signed with.")
    ] = None,
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
) -> CommandResult:
    """Check digests, code, intervals and bits of an artefact, and write a certificate."""
    import json as json_module

    from ..files import check_writable, write_file
    from .progress import progress

    check_writable(output)
    signed = [] if key is None else [_signer(path.expanduser(), key.expanduser())]
    with progress(_SHARES) as line:
        from ..verification import verify

        certificate = verify(
            path.expanduser(),
            None if model is None else model.expanduser(),
            inputs,
            emulate,
            progress=line.step,
            advance=line.advance,
        )
    document = certificate.to_json()
    with write_file(output) as temporary:
        temporary.write_text(json_module.dumps(document, indent=1) + "\n", encoding="utf-8")
    lines = [f"{path}: sha256 {certificate.sha256}", *signed]
    for check in certificate.checks:
        facts = [
            f"{key.replace('_', ' ')} {value}"
            for key, value in check.facts.items()
            if isinstance(value, (int, str))
        ]
        word = "passed" if check.passed else "FAILED"
        lines.append(f"{check.name}: {word}" + (f" ({', '.join(facts)})" if facts else ""))
        lines += [f"  {finding}" for finding in check.findings]
        if verbose:
            lines += _widths(check.facts.get("bits", {}))
    lines.append(f"wrote {output}")
    code = ExitCode.OK if certificate.passed else ExitCode.VERIFICATION
    return CommandResult({"output": str(output), **document}, lines, code)


def _signer(path: Path, key: Path) -> str:
    """Check the signature; say whose it is."""
    from ..signature import check_signature

    return f"signature: passed (key {check_signature(path, key)})"


def _widths(bits: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"  {name}: {row['low']} to {row['high']} in {row['type']}, intermediates of "
        f"{row['width']} bits"
        for name, row in bits.items()
    ]
