"""`ibert verify`: what was promised of an artefact, checked on the file itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from ..common.errors import ExitCode, UsageError
from .options import AtLeastOne, Board, address_of
from .result import CommandResult

# About what each takes, with weights of 22 million parameters.
_SHARES = {
    "digests": 1,
    "made from the model": 8,
    "no floating point": 4,
    "intervals": 8,
    "same bits": 20,
}


def command(
    path: Path,
    *,
    model: Path | None = None,
    inputs: AtLeastOne = 8,
    emulate: bool = False,
    database: Path | None = None,
    rpc: Annotated[str | None, Option(metavar="HOST:PORT", rich_help_panel=Board.panel)] = None,
    rpc_key: Annotated[str | None, Option(rich_help_panel=Board.panel)] = None,
    output: Path | None = None,
    key: Path | None = None,
    verbose: bool = False,
) -> CommandResult:
    """Check digests, code, intervals and bits of an artefact, and write a certificate.

    A report for readers is written beside it, with the ending .txt.

    Parameters
    ----------
    path
        A NAME.ibert folder, or a library or package made of one.
    model
        Of a library or package: the NAME.ibert folder that it was compiled from.
    inputs
        How many random inputs to compare.
    emulate
        Run a package, or a library without runtime, in its emulator.
    database
        Of a tuned library: the measurements that it was compiled with.
    rpc
        Work on a board: its RPC server, or a tracker.
    rpc_key
        Key of the board; a tracker hands out boards by it.
    output
        Where to write the certificate. [default: PATH.verify.json]
    key
        PEM file of a public key that it has to be signed with.

    Examples
    --------
    ibert verify minilm.so --model minilm.ibert
    ibert verify firmware --model minilm.ibert --emulate
    """
    import json

    from ..common.files import check_writable, write_file
    from ..progress import progress
    from ..verification.certificate import CERTIFICATE, REPORT, certificate_place, report_place

    address = address_of(rpc, rpc_key)
    if emulate and address is not None:
        raise UsageError(
            "both --emulate and --rpc were given",
            why="an artefact runs under an emulator here, or on a board",
            todo="give one of them",
        )
    output = output or certificate_place(path)
    report = report_place(output)
    check_writable(output, CERTIFICATE)
    check_writable(report, REPORT)
    signed = []
    if key is not None:
        from ..verification.signature import check_signature

        signed = [f"signature: passed (key {check_signature(path, key)})"]
    with progress(_SHARES) as line:
        if model is not None:  # which is compiled again
            from ..runtime.tvm_runtime import import_tvm

            import_tvm()
        from ..verification import verify

        certificate = verify(
            path,
            model,
            inputs,
            emulate,
            progress=line.step,
            address=address,
            advance=line.advance,
            database=database,
        )
    document = certificate.to_json()
    with write_file(report, REPORT) as temporary:
        temporary.write_text("\n".join(certificate.report()) + "\n", encoding="utf-8")
    with write_file(output, CERTIFICATE) as temporary:
        temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    body = certificate.report(tables=verbose)
    lines = [body[0], *signed, *body[1:], f"wrote {output} and {report}"]
    code = ExitCode.OK if certificate.passed else ExitCode.VERIFICATION
    return CommandResult({"output": str(output), "report": str(report), **document}, lines, code)
