"""Packages of either kind, for microcontrollers and for browsers: written, checked, run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ibert_tvm.common.strict_json import JsonObject

from .bare_metal.document import FileNames
from .bare_metal.firmware import link_firmware, run_firmware
from .bare_metal.options import WASM, PackageOptions
from .bare_metal.package import write_package
from .bare_metal.package_audit import PackageAudit, audit_package, package_objects
from .description import TargetDescription
from .web.audit import audit_module
from .web.package import MODULE, exports, run_in_node, write_web_package

if TYPE_CHECKING:
    from .aot.model import BareModel


def write(
    bare: BareModel,
    metadata: JsonObject,
    description: TargetDescription,
    folder: Path,
    options: PackageOptions | None,
) -> JsonObject:
    """Fill a folder with the package of a target; see `write_package` and `write_web_package`."""
    if description.system == WASM:
        return write_web_package(bare, metadata, description, folder)
    return write_package(bare, metadata, description, folder, options)


def audit(
    folder: Path, document: JsonObject, description: TargetDescription, work: Path
) -> PackageAudit:
    """Look at the code of a package again; see `audit_package`."""
    if document["emit"] != WASM:
        return audit_package(folder, document, description, work)
    layers = {k["symbol"]: k["layer"] for f in document["functions"] for k in f["kernels"]}
    found = audit_module(folder / MODULE, description, exports(document), layers)
    outside = ("the page, and what its engine makes of the module",)
    return PackageAudit((folder / MODULE,), found.instructions, found.findings, outside)


@dataclass(frozen=True)
class PackageRunner:
    """Runs a package as its target does: in Node.js, or on a board that QEMU stands for.

    Parameters
    ----------
    package
        Its folder.
    document
        Its ``ibert_model.json``.
    folder
        Where objects and firmware are made.
    description
        Its target.
    objects
        Its objects; by default they are taken from the package.
    """

    package: Path
    document: JsonObject
    folder: Path
    description: TargetDescription
    objects: tuple[Path, ...] = ()
    _linked: dict[int, Path] = field(default_factory=dict)

    def run(self, index: int, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Integers of the outputs of a shape, by its number; TargetError if it cannot be run."""
        if self.document["emit"] == WASM:
            with tempfile.TemporaryDirectory(dir=self.folder) as work:
                return run_in_node(
                    self.package, self.document, index, inputs, Path(work), self.description
                )
        if index not in self._linked:
            self._linked[index] = self._link(index)
        return run_firmware(self._linked[index], self.document, index, inputs, self.description)

    def _link(self, index: int) -> Path:
        names = FileNames(str(self.document["prefix"]))
        header = (self.package / names.header).read_text(encoding="utf-8")
        weights = self.package / names.external_weights if "external" in self.document else None
        objects = self.objects or package_objects(
            self.package, self.document, self.description, self.folder
        )
        return link_firmware(
            self.document, header, objects, index, self.folder, self.description, weights
        )
