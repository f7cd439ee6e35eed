"""Checking a package for a microcontroller."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..common.errors import LibraryError, TargetError
from ..common.integrity import MANIFEST, file_sha256
from ..model.artefact import QuantizedModel
from .certificate import MOST_FINDINGS, Certificate, Check
from .checks import Advance, check_intervals, check_same_bits, one_line
from .inputs import Inputs, random_batches


def verify_package_folder(
    path: Path,
    folder: Path,
    inputs: int,
    emulate: bool,
    seed: int,
    progress: Callable[[str], None],
    advance: Advance,
) -> Certificate:
    """Check a package; parameters, result and errors are those of `verify`."""
    from ..targets import get_target
    from ..targets.bare_metal import read_package
    from ..targets.bare_metal.package import FileNames
    from ..targets.bare_metal.package_audit import audit_package

    progress("digests")
    digest = file_sha256(path / MANIFEST) if (path / MANIFEST).is_file() else ""
    try:
        document = read_package(path)
    except LibraryError as error:
        return Certificate(path.name, digest, "", (Check("digests", {}, (one_line(error),)),))
    description = get_target(str(document["target"]["name"]))
    model = QuantizedModel.load(folder)
    checks = [Check("digests", {"manifest": MANIFEST})]
    with tempfile.TemporaryDirectory(prefix="ibert-verify-") as scratch:
        progress("no floating point")
        work = Path(scratch) / "objects"
        work.mkdir()
        audit = audit_package(path, document, description, work)
        facts: dict[str, Any] = {
            "instructions": audit.instructions,
            "objects": len(audit.objects),
            "form": document["emit"],
            "target": document["target"],
            "outside": list(audit.outside),
        }
        checks.append(Check("no floating point", facts, audit.findings[:MOST_FINDINGS]))
        shapes = [(int(f["batch"]), int(f["seq_len"])) for f in document["functions"]]
        batches = list(random_batches(model.info, shapes, inputs, seed))
        progress("intervals")
        checks.append(check_intervals(model, batches))
        progress("same bits")
        found = ""
        if document["source_sha256"] != model.info.source_sha256:
            found = f"{path.name} was made from another source than {folder.name}"
        header = (path / FileNames(str(document["prefix"])).header).read_text(encoding="utf-8")
        firmware = Path(scratch) / "firmware"
        firmware.mkdir()
        if not emulate:
            why = "the target is another machine; --emulate runs it under the target's emulator"
            checks.append(Check("same bits", {}, (found,) if found else (), why))
        else:
            run = _runner(model, document, header, audit.objects, firmware, shapes, description)
            try:
                checks.append(
                    check_same_bits(model, batches, run, {"on": "emulator"}, found, advance)
                )
            except TargetError as error:
                checks.append(Check("same bits", {}, (one_line(error),)))
    return Certificate(path.name, digest, file_sha256(folder / MANIFEST), tuple(checks))


def _runner(
    model: QuantizedModel,
    document: dict[str, Any],
    header: str,
    objects: tuple[Path, ...],
    folder: Path,
    shapes: list[tuple[int, int]],
    description: Any,
) -> Callable[[Inputs], dict[str, NDArray[Any]]]:
    """What runs firmware of the shape that inputs have, which is linked when it is first needed."""
    from ..runtime.pixels import image_record, quantize_images
    from ..targets.bare_metal.firmware import link_firmware, run_firmware

    linked: dict[int, Path] = {}
    size = model.info.image_size

    def run(given: Inputs) -> dict[str, NDArray[Any]]:
        rows, tokens = next(iter(given.values())).shape[:2]
        index = next(
            number
            for number, shape in enumerate(shapes)
            if shape == (rows, tokens) or (size is not None and shape[0] == rows)
        )
        if size is not None:
            record = image_record(document["inputs"])
            if record is not None:
                given = {record.name: quantize_images(record, given[record.name], size)}
        if index not in linked:
            linked[index] = link_firmware(document, header, objects, index, folder, description)
        return run_firmware(linked[index], document, index, given, description)

    return run
