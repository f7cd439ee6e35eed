"""Compiled artefacts as they are checked: a library, or a package for a microcontroller."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.errors import DeviceError, TargetError
from ..common.integrity import MANIFEST
from ..common.strict_json import JsonDict
from ..common.types import Array
from ..model.artefact import QuantizedModel
from ..model.model_info import ModelInfo
from .certificate import MOST_FINDINGS, Check
from .checks import Run
from .inputs import Inputs

if TYPE_CHECKING:
    from ..targets.rpc import Address


class Compiled(ABC):
    """An artefact whose own digests hold.

    Attributes
    ----------
    facts : dict
        Of the check of its digests.
    source_sha256
        Of the source of the model that it was compiled from.
    info
        What it says of that model.
    shapes
        Rows and tokens that it was compiled for.
    """

    facts: JsonDict
    source_sha256: str
    info: ModelInfo
    shapes: list[tuple[int, int]]

    def tokenizer(self) -> dict[str, bytes] | None:
        """Files of its tokenizer; None where it never has one."""
        return None

    @abstractmethod
    def code(self) -> list[Check]:
        """Check that its machine code computes without floating point."""

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
    """

    def __init__(self, path: Path, emulate: bool, address: Address | None) -> None:
        from ..runtime.library_file import read_metadata

        self._emulate, self._address = emulate, address
        self._metadata = read_metadata(path)
        self.facts = {"bytes": self._metadata.file_bytes}
        self.source_sha256, self.info = self._metadata.source_sha256, self._metadata.info
        self.shapes = [(f.batch, f.seq_len) for f in self._metadata.functions]

    def tokenizer(self) -> dict[str, bytes] | None:
        from ..runtime.library import tokenizer_files

        return tokenizer_files(self._metadata)

    def code(self) -> list[Check]:
        from ..runtime.emulated_engine import target_of
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

    @contextmanager
    def running(self, model: QuantizedModel) -> Iterator[tuple[str, Run]]:
        from ..runtime import load_library
        from ..runtime.remote import load_remote

        if self._address is None:
            library = load_library(self._metadata.path, emulate=self._emulate)
            yield ("emulator" if self._emulate else library.device), _integers_of(library)
            return
        with load_remote(self._metadata.path, self._address) as library:
            yield str(self._address), _integers_of(library)


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
        from ..targets.bare_metal import read_package

        self._path, self._emulate, self._scratch = path, emulate, scratch
        document = read_package(path)
        self._document = document
        self._description = get_target(str(document["target"]["name"]))
        self._objects: tuple[Path, ...] = ()
        self.facts = {"manifest": MANIFEST}
        self.source_sha256 = str(document["source_sha256"])
        self.info = package_metadata(path, document).info
        self.shapes = [(int(f["batch"]), int(f["seq_len"])) for f in document["functions"]]

    def code(self) -> list[Check]:
        from ..targets.bare_metal.package_audit import audit_package

        work = self._scratch / "objects"
        work.mkdir()
        audit = audit_package(self._path, self._document, self._description, work)
        self._objects = audit.objects
        facts: JsonDict = {
            "instructions": audit.instructions,
            "objects": len(audit.objects),
            "form": self._document["emit"],
            "target": self._document["target"],
            "outside": list(audit.outside),
        }
        return [Check("no floating point", facts, audit.findings[:MOST_FINDINGS])]

    @contextmanager
    def running(self, model: QuantizedModel) -> Iterator[tuple[str, Run]]:
        from ..runtime.pixels import image_record, quantize_images
        from ..targets.bare_metal.firmware import link_firmware, run_firmware
        from ..targets.bare_metal.package import FileNames

        if not self._emulate:
            raise TargetError(
                "the target is another machine; --emulate runs it under the target's emulator"
            )
        document, description, size = self._document, self._description, model.info.image_size
        names = FileNames(str(document["prefix"]))
        header = (self._path / names.header).read_text(encoding="utf-8")
        folder = self._scratch / "firmware"
        folder.mkdir()
        linked: dict[int, Path] = {}

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
                if index not in linked:
                    linked[index] = link_firmware(
                        document, header, self._objects, index, folder, description
                    )
                return run_firmware(linked[index], document, index, given, description)
            except TargetError as error:  # of this firmware: a finding, not an end of the checks
                raise DeviceError(error.what, error.where, error.why, error.todo) from error

        yield "emulator", run
