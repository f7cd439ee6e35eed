"""What a certificate says, and the two forms in which it is given: JSON and a report."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from ..common.errors import DocumentError, LibraryError, UsageError
from ..common.files import OutputKind, marked
from ..common.integrity import check_sealed, sealed
from ..common.schema import FLAG, OBJECT, STRING, one_of
from ..common.schema import check as check_document
from ..common.strict_json import JsonDict, read_json
from ..common.version import __version__

FORMAT, VERSION = "ibert-certificate", 2
MOST_FINDINGS = 20
_MAX_BYTES, _MAX_DEPTH = 64 * 2**20, 16


@dataclass(frozen=True)
class Check:
    """One property.

    Attributes
    ----------
    name
        What was checked.
    facts : dict
        How, JSON-able.
    findings
        What does not hold; empty if all does. Of many the first twenty.
    not_run
        Why it could not be made here; empty if it was made.
    """

    name: str
    facts: JsonDict
    findings: tuple[str, ...] = ()
    not_run: str = ""

    @property
    def passed(self) -> bool:
        """Whether it was made and nothing was found."""
        return not self.findings and not self.not_run


@dataclass(frozen=True)
class Certificate:
    """All checks of an artefact.

    Attributes
    ----------
    artefact
        Name of the file or folder.
    sha256
        Of the library, or of the folder's manifest, which holds the hashes of its files.
    model_sha256
        Of the manifest of the model that a library was compared with; else empty.
    checks
        In the order in which they were made; what a failed one stands in the way of is not there.
    """

    artefact: str
    sha256: str
    model_sha256: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check found anything."""
        return not any(check.findings for check in self.checks)

    @property
    def complete(self) -> bool:
        """Whether every check was made."""
        return not any(check.not_run for check in self.checks)

    def to_json(self) -> JsonDict:
        """Return it as a sealed JSON-able document, see `ibert_tvm.common.integrity.sealed`."""
        return sealed(
            {
                "format": FORMAT,
                "version": VERSION,
                "ibert_tvm": __version__,
                "artefact": self.artefact,
                "artefact_sha256": self.sha256,
                "model_sha256": self.model_sha256,
                "passed": self.passed,
                "complete": self.complete,
                "checks": [
                    {**asdict(check), "findings": list(check.findings), "passed": check.passed}
                    for check in self.checks
                ],
            }
        )

    def report(self, tables: bool = True) -> list[str]:
        """Return it as lines for a reader.

        Parameters
        ----------
        tables
            With the interval and the widest intermediate of every value.
        """
        lines = [f"{self.artefact}: sha256 {self.sha256}"]
        if self.model_sha256:
            lines.append(f"compared with the model whose manifest has sha256 {self.model_sha256}")
        for check in self.checks:
            facts = [
                f"{key.replace('_', ' ')} {value}"
                for key, value in check.facts.items()
                if isinstance(value, (int, str)) and value != ""
            ]
            word = "FAILED" if check.findings else "NOT RUN" if check.not_run else "passed"
            lines.append(f"{check.name}: {word}" + (f" ({', '.join(facts)})" if facts else ""))
            if check.not_run:
                lines.append(f"  {check.not_run}")
            lines += [f"  {finding}" for finding in check.findings]
            lines += [f"  not looked at: {text}" for text in check.facts.get("outside", ())]
            if tables:
                lines += _widths(check.facts.get("bits", {}))
        return lines


def _widths(bits: dict[str, JsonDict]) -> list[str]:
    return [
        f"  {name}: {row['low']} to {row['high']} in {row['type']} ({row['headroom']} bits of "
        f"headroom), intermediates of {row['width']} bits"
        for name, row in bits.items()
    ]


def read_certificate(file: Path) -> JsonDict:
    """Return the content of a certificate; a `LibraryError` if its seal is not whole."""
    schema = {
        "format": one_of(FORMAT),
        "version": one_of(VERSION),
        "artefact": STRING,
        "artefact_sha256": STRING,
        "passed": FLAG,
        "complete": FLAG,
        "checks": [
            {
                "name": STRING,
                "passed": FLAG,
                "facts": OBJECT,
                "findings": [STRING],
                "not_run": STRING,
            }
        ],
    }
    try:
        document: JsonDict = read_json(file, _MAX_BYTES, _MAX_DEPTH)
        check_document(document, schema)
        check_sealed(document)
    except DocumentError as error:
        raise LibraryError(
            f"cannot use the certificate {file}",
            where=error.where,
            why=error.what,
            todo="write it again with `ibert verify`",
        ) from error
    return document


def report_place(output: Path) -> Path:
    """Where the report goes of a certificate that is written to `output`.

    Raises
    ------
    UsageError
        If both would have one name.
    """
    report = output.with_suffix(".txt")
    if report == output:
        raise UsageError(
            f"bad value for --output: {output}",
            why="the report takes that name",
            todo="give a name that ends in .json",
        )
    return report


def certificate_place(artefact: Path) -> Path:
    """Where a certificate is written, and looked for, unless somebody says otherwise."""
    return artefact.with_name(f"{artefact.name}.verify.json")


def _is_report(file: Path) -> bool:
    """Whether a file begins as `Certificate.report` does."""
    with file.open("rb") as content:
        return re.search(rb": sha256 [0-9a-f]{64}\n", content.read(4096)) is not None


CERTIFICATE = marked("a certificate that `ibert verify` wrote", FORMAT.encode())
REPORT = OutputKind("the report of a certificate", _is_report)
