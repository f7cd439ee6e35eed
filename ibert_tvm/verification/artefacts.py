"""Checking an artefact: a model, a library for a processor or a GPU, or a package."""

from __future__ import annotations

import json
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.errors import (
    ArtefactError,
    DeviceError,
    IbertError,
    LibraryError,
    TargetError,
    UsageError,
)
from ..common.files import files_sha256
from ..common.integrity import MANIFEST, check_manifest
from ..common.strict_json import JsonDict
from ..common.types import Array
from ..model.artefact import QuantizedModel
from ..model.model_info import ModelInfo
from ..runtime.emulated_engine import target_of
from ..runtime.library_file import METADATA_SECTION, WEIGHTS_SECTION, read_metadata
from ..targets.bare_metal import PackageOptions, is_package, read_package
from .certificate import MOST_FINDINGS, Certificate, Check
from .checks import (
    Advance,
    Inputs,
    Run,
    check_amount,
    check_intervals,
    check_same_bits,
    check_tokenizer,
    one_line,
    random_batches,
)

if TYPE_CHECKING:
    from ..targets.rpc import Address

# Compiled artefacts as they are checked: a library, or a package for a microcontroller.


class Compiled(ABC):
    """An artefact whose own digests hold.

    Attributes
    ----------
    path
        The file or folder.
    facts : dict
        Of the check of its digests.
    info
        What it says of that model.
    shapes
        Rows and tokens that it was compiled for.
    """

    path: Path
    facts: JsonDict
    info: ModelInfo
    shapes: list[tuple[int, int]]

    def tokenizer(self) -> dict[str, bytes] | None:
        """Files of its tokenizer; None where it never has one."""
        return None

    @abstractmethod
    def code(self) -> list[Check]:
        """Check that its machine code computes without floating point."""

    @abstractmethod
    def made_again(self, model: QuantizedModel, scratch: Path) -> Path:
        """Compile a model with this artefact's options into a folder."""

    @abstractmethod
    def document(self, path: Path) -> JsonDict:
        """What an artefact of this kind says of itself, a JSON document."""

    def wrong_weights(self, other: Path) -> list[str]:
        """Say which weights differ from those of another artefact with the same document."""
        return []

    def wrong_parts(self, other: Path) -> list[str]:
        """Say which parts of a file differ from those of another one."""
        return []

    @abstractmethod
    def running(self, model: QuantizedModel) -> AbstractContextManager[tuple[str, Run]]:
        """Where it runs, and a function that runs it; TargetError where it cannot run here."""


class CompiledLibrary(Compiled):
    """A library; LibraryError if it is damaged.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    emulate
        Run it under the emulator of its target.
    address : ibert_tvm.targets.rpc.Address, optional
        Run it on that board.
    database
        The measurements that it was compiled with.
    """

    def __init__(
        self, path: Path, emulate: bool, address: Address | None, database: Path | None
    ) -> None:
        self.path, self._emulate, self._address = path, emulate, address
        self._database = database
        self._metadata = read_metadata(path)
        self.facts = {"bytes": self._metadata.file_bytes}
        self.info = self._metadata.info
        self.shapes = [(f.batch, f.seq_len) for f in self._metadata.functions]

    def tokenizer(self) -> dict[str, bytes] | None:
        from ..runtime.library import tokenizer_files

        return tokenizer_files(self._metadata)

    def code(self) -> list[Check]:
        from ..targets.library_audit import audit_library

        metadata = self._metadata
        target = target_of(metadata)
        layers = {kernel.name: kernel.layer for f in metadata.functions for kernel in f.kernels}
        audit = audit_library(metadata.path, target, layers)
        facts = {
            "instructions": audit.instructions,
            "target": dict(metadata.target),
            "outside": [f"{name}, which it is linked with" for name in audit.needed],
        }
        checks = [Check("no floating point", facts, audit.findings[:MOST_FINDINGS])]
        if metadata.device == "cuda":
            from ..targets.cuda.library import audit_device_code

            device = audit_device_code(metadata.path, metadata.device_code, target.name)
            facts = {
                "instructions": sum(device.instructions.values()),
                "architectures": device.instructions,
                "kernels": device.kernels,
                "outside": list(device.outside),
            }
            findings = device.findings[:MOST_FINDINGS]
            checks.append(Check("no floating point on the GPU", facts, findings))
        return checks

    def made_again(self, model: QuantizedModel, scratch: Path) -> Path:
        from ..compiler import compile as compile_model

        metadata = self._metadata
        made = compile_model(
            model,
            target_of(metadata).name,
            self.shapes,
            runtime=metadata.runtime,
            emit=str(self.document(self.path).get("form", "objects")),
            database=self._database,
            prefix=metadata.prefix if metadata.runtime == "none" else None,
        )
        # A library of the machine that compiled it calls its target "host".
        target = {**made.metadata["target"], "name": metadata.target["name"]}
        return replace(made, metadata={**made.metadata, "target": target}).export(
            scratch / "again.so"
        )

    def document(self, path: Path) -> JsonDict:
        return json.loads(_sections(path).get(METADATA_SECTION, "{}"))

    def wrong_weights(self, other: Path) -> list[str]:
        ours, theirs = (_sections(path).get(WEIGHTS_SECTION, b"") for path in (self.path, other))
        if ours == theirs:
            return []
        wrong = [
            f"the weights {row.name}"
            for row in self._metadata.parameters
            for part in [slice(row.offset, row.offset + row.num_bytes)]
            if ours[part] != theirs[part]
        ]
        return [f"{name} are not the model's" for name in wrong or ["bytes between the weights"]]

    def wrong_parts(self, other: Path) -> list[str]:
        ours, theirs = _sections(self.path), _sections(other)
        if not ours:
            return ["headers of its sections are damaged"]
        wrong = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
        return [f"section {name} differs" for name in wrong] or ["headers or padding differ"]

    @contextmanager
    def running(self, model: QuantizedModel) -> Iterator[tuple[str, Run]]:
        from ..runtime import load_library
        from ..runtime.remote_engine import load_remote

        if self._address is None:
            library = load_library(self._metadata.path, emulate=self._emulate)
            yield ("emulator" if self._emulate else library.device), _integers_of(library)
            return
        with load_remote(self._metadata.path, self._address) as library:
            yield str(self._address), _integers_of(library)


def _sections(path: Path) -> dict[str, bytes]:
    """Bytes of a library's sections in the file, by their names; empty if its headers are odd."""
    from ..targets.elf import opened

    content = path.read_bytes()
    try:
        with opened(content) as elf:
            places = {
                section.name: slice(section["sh_offset"], section["sh_offset"] + section["sh_size"])
                for section in elf.iter_sections()
                if section["sh_type"] != "SHT_NOBITS"
            }
    except Exception:  # pyelftools raises many classes for what headers can hold
        return {}
    if sum(place.stop - place.start for place in places.values()) > 2 * len(content):
        return {}  # sections of a linker do not overlap
    return {name: content[place] for name, place in places.items()}


def _integers_of(library: Any) -> Run:
    def run(given: Inputs) -> dict[str, Array]:
        outputs = library.run(**given, dequantize=False)
        return {name: output.values for name, output in outputs.items()}

    return run


class CompiledPackage(Compiled):
    """A package for a microcontroller; LibraryError if it is damaged.

    Parameters
    ----------
    path : pathlib.Path
        The folder.
    emulate
        Link firmware and run it under the emulator of its target.
    scratch : pathlib.Path
        An empty folder for objects and firmware.
    """

    def __init__(self, path: Path, emulate: bool, scratch: Path) -> None:
        from ..runtime.package_engine import package_metadata
        from ..targets import get_target

        self.path, self._emulate, self._scratch = path, emulate, scratch
        document = read_package(path)
        self._document = document
        self._description = get_target(str(document["target"]["name"]))
        self._objects: tuple[Path, ...] = ()
        self.facts = {"manifest": MANIFEST}
        self.info = package_metadata(path, document).info
        self.shapes = [(int(f["batch"]), int(f["seq_len"])) for f in document["functions"]]

    def code(self) -> list[Check]:
        from ..targets import packages

        work = self._scratch / "objects"
        work.mkdir()
        audit = packages.audit(self.path, self._document, self._description, work)
        self._objects = audit.objects
        facts: JsonDict = {
            "instructions": audit.instructions,
            "objects": len(audit.objects),
            "form": self._document["emit"],
            "target": self._document["target"],
            "outside": list(audit.outside),
        }
        return [Check("no floating point", facts, audit.findings[:MOST_FINDINGS])]

    def made_again(self, model: QuantizedModel, scratch: Path) -> Path:
        from ..compiler import compile as compile_model

        document = self._document
        systems = tuple(map(str, document.get("build_systems", ())))
        options = PackageOptions(str(document["emit"]), build_systems=systems)
        made = compile_model(
            model,
            self._description.name,
            self.shapes,
            emit=str(document.get("form", "objects")),
            prefix=str(document["prefix"]),
            tokenizer="text" in document,
            external_weights=str(document.get("external", "")),
            fetch_buffer=document.get("fetch", {}).get("buffer"),
        )
        return made.export(scratch / "again", options)

    def document(self, path: Path) -> JsonDict:

        return read_package(path)

    @contextmanager
    def running(self, model: QuantizedModel) -> Iterator[tuple[str, Run]]:
        from ..runtime.pixels import image_record, quantize_images
        from ..targets.packages import PackageRunner

        if not self._emulate:
            raise TargetError(
                "the target is another machine; --emulate runs it under the target's emulator"
            )
        document, size = self._document, model.info.image_size
        folder = self._scratch / "firmware"
        folder.mkdir()
        runner = PackageRunner(self.path, document, folder, self._description, self._objects)

        def run(given: Inputs) -> dict[str, Array]:
            rows, tokens = next(iter(given.values())).shape[:2]
            index = next(
                number
                for number, shape in enumerate(self.shapes)
                if shape == (rows, tokens) or (size is not None and shape[0] == rows)
            )
            record = None if size is None else image_record(document["inputs"])
            if size is not None and record is not None:
                given = {record.name: quantize_images(record, given[record.name], size)}
            try:
                return runner.run(index, given)
            except TargetError as error:  # of this firmware: a finding, not an end of the checks
                raise DeviceError(error.what, error.where, error.why, error.todo) from error

        yield "emulator", run


# Whether an artefact is what its model gives: it is made again, and every byte compared.
#
# Compilation is deterministic: the same model, options, versions and compilers give the same bytes.
# So nothing that an artefact holds is believed, whether code, weights, scales, labels or tokenizer.

_COMPILER = re.compile(rb"GCC: \([^)\0]*\) [\w.]+")
"""What GCC writes into every object file."""


def check_derived(compiled: Compiled, model: QuantizedModel, scratch: Path) -> Check:
    """Make an artefact again and compare.

    Parameters
    ----------
    compiled
        The artefact.
    model
        What it is said to be made of.
    scratch
        A folder that exists.
    """
    name = "made from the model"
    try:
        again = compiled.made_again(model, scratch)
    except TargetError as error:
        return Check(name, {}, (), one_line(error))
    except IbertError as error:
        return Check(name, {}, (f"it cannot be made again: {one_line(error)}",))
    files, others = _files(compiled.path), _files(again)
    facts = {"files": len(others), "bytes": sum(file.stat().st_size for file in others.values())}
    wrong = [
        place
        for place in sorted({*files, *others})
        if place not in files
        or place not in others
        or files_sha256([files[place]]) != files_sha256([others[place]])
    ]
    if not wrong:
        return Check(name, facts)
    findings = [
        *differences(compiled.document(compiled.path), compiled.document(again)),
        *compiled.wrong_weights(again),
    ]
    ours, theirs = _compilers(others.values()), _compilers(files.values())
    if not findings and ours != theirs:
        return Check(
            name,
            facts,
            (),
            f"its code was made by {', '.join(sorted(theirs)) or 'no known compiler'} and cannot "
            f"be compared with that of {', '.join(sorted(ours))} here; what it says of itself is "
            "true of the model",
        )
    findings += [f"{place} is not what the model gives" for place in wrong]
    return Check(name, facts, tuple((findings + compiled.wrong_parts(again))[:MOST_FINDINGS]))


def _files(place: Path) -> dict[str, Path]:
    """Files of an artefact by their names in it: of a folder those that its manifest lists."""
    if place.is_file():
        return {"the file": place}
    names = check_manifest(place, lambda file, why: LibraryError(f"cannot read {file}", why=why))
    return {name: place / name for name in (*names, MANIFEST)}


def _compilers(files: Any) -> set[str]:
    return {text.decode() for file in files for text in _COMPILER.findall(file.read_bytes())}


def differences(found: Any, expected: Any, place: str = "") -> Iterator[str]:
    """Say where two JSON documents differ, by keys and numbers of elements."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted({*found, *expected}):
            inner = f"{place}.{key}" if place else str(key)
            if key not in expected:
                yield f"{inner} is there, and the model gives none"
            elif key not in found:
                yield f"{inner} is missing"
            else:
                yield from differences(found[key], expected[key], inner)
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for number, pair in enumerate(zip(found, expected, strict=True)):
            yield from differences(*pair, f"{place}[{number}]")
    elif found != expected or type(found) is not type(expected):
        yield f"{place} is {_shown(found)}, and the model gives {_shown(expected)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"


_LONGEST_UNBOUNDED = 16

Progress = Callable[[str], None]


def verify(
    path: Path,
    model: Path | None = None,
    inputs: int = 8,
    emulate: bool = False,
    seed: int = 0,
    progress: Progress = lambda _: None,
    address: Address | None = None,
    advance: Advance = lambda _done, _total: None,
    database: Path | None = None,
) -> Certificate:
    """Check an artefact.

    Parameters
    ----------
    path : pathlib.Path
        A ``NAME.ibert`` folder, a library, or a package for a microcontroller.
    model : pathlib.Path, optional
        The folder that a library or package was compiled from.
    inputs
        How many random inputs, at least one of each compiled shape.
    emulate
        Run a library without runtime, or a package, under the emulator of its target.
    seed
        Of the random inputs.
    progress
        Called with the name of each check as it starts.
    address : ibert_tvm.targets.rpc.Address, optional
        Run a library on that board.
    advance : callable
        Called while bits are compared, with how many inputs are done and how many there are.
    database
        The measurements that a library was compiled with.

    Returns
    -------
    Certificate
        Of a damaged artefact, that it is. Where the code cannot be run here, its check of bits says
        why it was not made, and the certificate is not complete.

    Raises
    ------
    UsageError
        If there is nothing at a path, or a library or package is given without its model.
    VerificationError
        If it lists shapes that its model does not take, or more than are verified.
    TargetError
        If a tool that a check needs is missing.
    """
    for place in filter(None, (path, model)):
        if not place.exists():
            raise UsageError(f"there is nothing at {place}", todo="check the path")
    package = path.is_dir() and is_package(path)
    if model is None and (package or not path.is_dir()):
        raise UsageError(
            f"a {'package' if package else 'library'} alone cannot be verified: {path}",
            why="its numbers are compared with those of the integer program that it was made from",
            todo="give that as well: --model NAME.ibert",
        )
    progress("digests")
    sealed = path / MANIFEST if path.is_dir() else path
    digest = files_sha256([sealed]) if sealed.is_file() else ""
    with tempfile.TemporaryDirectory(prefix="ibert-verify-") as scratch:
        compiled: Compiled | None = None
        try:
            if package:
                compiled = CompiledPackage(path, emulate, Path(scratch))
            elif path.is_file():
                compiled = CompiledLibrary(path, emulate, address, database)
            else:
                quantized = QuantizedModel.load(path)
        except (ArtefactError, LibraryError) as error:
            return Certificate(path.name, digest, "", (Check("digests", {}, (one_line(error),)),))
        if compiled is None or model is None:
            shapes = [_shape_of(quantized)]
            progress("intervals")
            batches = list(random_batches(quantized.info, shapes, inputs, seed))
            checks = [
                Check("digests", {"manifest": MANIFEST}),
                *check_tokenizer(quantized.info, lambda: quantized.tokenizer, quantized),
                check_intervals(quantized, batches),
            ]
            return Certificate(path.name, digest, "", tuple(checks))
        quantized = QuantizedModel.load(model)
        check_amount(compiled.shapes, quantized)
        checks = [
            Check("digests", compiled.facts),
            *check_tokenizer(compiled.info, compiled.tokenizer, quantized),
        ]
        progress("made from the model")
        checks.append(check_derived(compiled, quantized, Path(scratch)))
        progress("no floating point")
        checks += compiled.code()
        batches = list(random_batches(quantized.info, compiled.shapes, inputs, seed))
        progress("intervals")
        checks.append(check_intervals(quantized, batches))
        progress("same bits")
        with ExitStack() as stack:
            try:
                where, run = stack.enter_context(compiled.running(quantized))
            except TargetError as error:
                if address is not None:  # no certificate of a board that was not reached
                    raise
                why = "; ".join(filter(None, (error.what, error.why, error.todo)))
                checks.append(Check("same bits", {}, (), why))
            else:
                on = {"on": where}
                checks.append(check_same_bits(quantized, batches, run, on, advance))
    return Certificate(path.name, digest, files_sha256([model / MANIFEST]), tuple(checks))


def _shape_of(model: QuantizedModel) -> tuple[int, int]:
    """A small shape that a model can be evaluated at."""
    rows, tokens = model.info.static_shape or (None, None)
    longest = min(model.info.max_sequence_length or _LONGEST_UNBOUNDED, _LONGEST_UNBOUNDED)
    return rows or 1, tokens or longest
