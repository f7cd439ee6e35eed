"""What `ibert compile` takes and prints for microcontrollers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.errors import UsageError
from ..common.strict_json import JsonDict, JsonObject
from .inspect_model import tokenizer_rows
from .result import CommandResult
from .tables import Table

if TYPE_CHECKING:
    from ibert_tvm.targets import TargetDescription
    from ibert_tvm.targets.bare_metal import PackageOptions


@dataclass(frozen=True)
class Microcontroller:
    """Options that only microcontrollers have; None where they were not given.

    Attributes
    ----------
    flash
        Refuse a model that needs more bytes, e.g. 1M.
    ram
        Refuse a model that needs more bytes, e.g. 192K.
    emit
        Objects (a static library), c (C sources), or c-arrays (the weights as C arrays too).
        [default: objects; c-arrays for c99]
    external_weights
        Weights in a file of their own: all, or words (the table of words), whose address the
        program gives at run time; or fetch, piece by piece while the model runs.
    fetch_buffer
        Fetch no more than this at once, e.g. 16K.
    build_system
        Add the files of build systems, comma-separated: arduino, cmake, cmsis-pack, esp-idf,
        pkg-config, zephyr.
    """

    panel = "Microcontrollers"

    flash: str | None = None
    ram: str | None = None
    emit: str | None = None
    external_weights: str | None = None
    fetch_buffer: str | None = None
    build_system: str | None = None

    @property
    def fetch_bytes(self) -> int | None:
        """The buffer for weights that are fetched, in bytes; a `UsageError` if it is no size."""
        from ibert_tvm.targets.bare_metal.options import parse_memory

        wanted = self.fetch_buffer
        return None if wanted is None else parse_memory("--fetch-buffer", wanted)


def package_options(target: TargetDescription, wanted: Microcontroller) -> PackageOptions | None:
    """Parse and check the options that only microcontrollers have.

    Returns
    -------
    PackageOptions or None
        None for a target with an operating system, which has libraries.

    Raises
    ------
    UsageError
        If a value is wrong, or an option was given for a target that is no microcontroller.
    """
    from ibert_tvm.targets import list_targets
    from ibert_tvm.targets.bare_metal import PackageOptions
    from ibert_tvm.targets.bare_metal.integration import check_build_system
    from ibert_tvm.targets.bare_metal.options import WASM, forms_of, parse_memory

    given = [
        f"--{name.replace('_', '-')}" for name, value in asdict(wanted).items() if value is not None
    ]
    if target.system != "bare-metal":
        if given:
            from ibert_tvm.targets import get_target

            names = [
                status.name
                for status in list_targets()
                if status.name != "host" and get_target(status.name).system == "bare-metal"
            ]
            raise UsageError(
                f"{' and '.join(given)} cannot be used with --target {target.name}",
                why="the option is for microcontrollers, whose memory is fixed and whose model is "
                "a package to link",
                todo=f"leave it out, or choose one of: {', '.join(names)}",
            )
        return PackageOptions(WASM) if target.system == WASM else None
    forms = forms_of(target)
    emit = wanted.emit or forms[0]
    if emit not in forms:
        raise UsageError(
            f"bad value for --emit: {emit!r}",
            why="packages have no such form",
            todo=f"use one of: {', '.join(forms)}",
        )
    systems = (wanted.build_system or "").split(",") if wanted.build_system else ()
    for name in systems:
        check_build_system(name, emit)
    return PackageOptions(
        emit=emit,
        build_systems=tuple(systems),
        flash=None if wanted.flash is None else parse_memory("--flash", wanted.flash),
        ram=None if wanted.ram is None else parse_memory("--ram", wanted.ram),
    )


def package_facts(path: Path) -> JsonDict:
    """What `ibert compile` says of a package that it wrote, besides what it says of a library."""
    from ibert_tvm.targets.bare_metal import read_package

    document = read_package(path)
    return {
        "emit": document["emit"],
        "bytes": sum(entry.stat().st_size for entry in path.iterdir()),
        "files": sorted(entry.name for entry in path.iterdir()),
        "memory": document["memory"],
        "verified": document["verified"],
        **{key: document[key] for key in ("external_bytes", "fetch") if key in document},
    }


def inspect_package(path: Path) -> CommandResult:
    """What a package holds, for `ibert inspect`.

    Parameters
    ----------
    path : pathlib.Path
        The path.

    Raises
    ------
    LibraryError
        If the package is damaged, or its document is none of this project's.
    """
    from ibert_tvm.targets.bare_metal import read_package

    document = read_package(path)
    return CommandResult(
        {"path": str(path), **document}, [Table((), _package_rows(path, document))]
    )


def _package_rows(path: Path, document: JsonObject) -> list[tuple[str, str]]:
    shapes = ", ".join(f"{f['batch']}x{f['seq_len']}" for f in document["functions"])
    return [
        ("package", str(path)),
        ("target", str(document["target"]["name"])),
        ("form", str(document["emit"])),
        ("names", f"begin with {document['prefix']}"),
        ("shapes", f"{shapes} (batch x tokens)"),
        ("inputs", ", ".join(str(one["name"]) for one in document["inputs"])),
        ("outputs", ", ".join(str(one["name"]) for one in document["outputs"])),
        *tokenizer_rows(document.get("info", {})),
        *memory_rows(document),
    ]


def _external_rows(document: JsonObject) -> list[tuple[str, str]]:
    """Weights that are a file of their own."""
    if "external_bytes" not in document:
        return []
    how = "at an address that the program gives"
    if "fetch" in document:
        how = f"fetched in pieces of at most {document['fetch']['largest']}"
    return [("weights apart", f"{document['external_bytes']} bytes, {how}")]


def memory_rows(document: JsonObject) -> list[tuple[str, str]]:
    """The memory that a package takes, and what was checked, for people."""
    flash, ram = document["memory"]["flash"], document["memory"]["ram"]
    read, written = ("files", "memory") if document["emit"] == "wasm" else ("flash", "RAM")
    return [
        (
            read,
            f"{flash['total']} bytes: {flash['weights']} weights, {flash['code']} code, "
            f"{flash['constants']} constants",
        ),
        (
            written,
            f"{ram['total']} bytes: {ram['arena']} arena, {ram['stack']} stack at most; the arena "
            f"is fullest in {ram['peak']['layer']}",
        ),
        *_external_rows(document),
        (
            "checked",
            f"{document['verified']['instructions']} instructions, none of floating point; no "
            "symbol undefined",
        ),
    ]
