"""`ibert verify`: what was promised of an artefact, checked on the file itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ..common.errors import ExitCode, UsageError
from .options import BOARD, JsonFlag, VerboseFlag
from .result import CommandResult
from .rpc_options import RpcOption, parse_address

# About what each takes, with weights of 22 million parameters.
_SHARES = {"digests": 1, "no floating point": 4, "intervals": 8, "same bits": 20}


def command(
    path: Annotated[
        Path, Argument(help="A NAME.ibert folder, or a library or package made of one.")
    ],
    model: Annotated[
        Path | None,
        Option(help="Of a library or package: the NAME.ibert folder that it was compiled from."),
    ] = None,
    inputs: Annotated[int, Option(min=1, help="How many random inputs to compare.")] = 8,
    emulate: Annotated[
        bool,
        Option("--emulate", help="Run a package, or a library without runtime, in its emulator."),
    ] = False,
    rpc: RpcOption = None,
    rpc_key: Annotated[
        str | None,
        Option(
            "--rpc-key",
            rich_help_panel=BOARD,
            help="Key of the board, which a tracker hands out by it.",
        ),
    ] = None,
    output: Annotated[
        Path, Option("-o", "--output", help="Where to write the certificate.")
    ] = Path("verify.json"),
    key: Annotated[
        Path | None, Option(help="PEM file of a public key that it has to be signed with.")
    ] = None,
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
) -> CommandResult:
    """Check digests, code, intervals and bits of an artefact, and write a certificate.

    A report for readers is written beside it, with the ending .txt.
    """
    import json as json_module

    from ..common.files import check_writable, write_file
    from .progress import progress

    if rpc_key is not None and rpc is None:
        raise UsageError("--rpc-key was given without --rpc", todo="give --rpc HOST:PORT as well")
    address = parse_address(rpc, rpc_key)
    if emulate and address is not None:
        raise UsageError(
            "both --emulate and --rpc were given",
            why="an artefact runs under an emulator here, or on a board",
            todo="give one of them",
        )
    report = output.with_suffix(".txt")
    if report == output:
        raise UsageError(
            f"bad value for --output: {output}",
            why="the report takes that name",
            todo="give a name that ends in .json",
        )
    check_writable(output)
    check_writable(report)
    signed = [] if key is None else [_signer(path.expanduser(), key.expanduser())]
    with progress(_SHARES) as line:
        from ..verification import verify

        certificate = verify(
            path.expanduser(),
            None if model is None else model.expanduser(),
            inputs,
            emulate,
            progress=line.step,
            address=address,
            advance=line.advance,
        )
    document = certificate.to_json()
    with write_file(report) as temporary:
        temporary.write_text("\n".join(certificate.report()) + "\n", encoding="utf-8")
    with write_file(output) as temporary:
        temporary.write_text(json_module.dumps(document, indent=1) + "\n", encoding="utf-8")
    body = certificate.report(tables=verbose)
    lines = [body[0], *signed, *body[1:], f"wrote {output} and {report}"]
    code = ExitCode.OK if certificate.passed else ExitCode.VERIFICATION
    return CommandResult({"output": str(output), "report": str(report), **document}, lines, code)


def _signer(path: Path, key: Path) -> str:
    """Check the signature; say whose it is."""
    from ..verification.signature import check_signature

    return f"signature: passed (key {check_signature(path, key)})"
