"""Checking an artefact: a model, a library for a processor or a GPU, or a package."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ..common.errors import ArtefactError, DeviceError, LibraryError, UsageError
from ..common.integrity import MANIFEST, file_sha256
from ..model.artefact import QuantizedModel
from .certificate import MOST_FINDINGS, Certificate, Check
from .checks import Advance, check_intervals, check_same_bits, one_line
from .inputs import Inputs, random_batches

if TYPE_CHECKING:
    from ..runtime import Library
    from ..runtime.metadata import LibraryMetadata
    from ..targets.rpc import Address

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
) -> Certificate:
    """Check an artefact.

    Parameters
    ----------
    path : pathlib.Path
        A ``NAME.ibert`` folder, a library, or a package for a microcontroller.
    model : pathlib.Path, optional
        The folder that a library or package was compiled from.
    inputs : int
        How many random inputs, at least one of each compiled shape.
    emulate : bool
        Run a library without runtime, or a package, under the emulator of its target.
    seed : int
        Of the random inputs.
    progress : callable
        Called with the name of each check as it starts.
    address : ibert_tvm.targets.rpc.Address, optional
        Run a library on that board.
    advance : callable
        Called while bits are compared, with how many inputs are done and how many there are.

    Returns
    -------
    Certificate
        Of a damaged artefact, that it is. Where the code cannot be run here, its check of bits says
        why it was not made, and the certificate is not complete.

    Raises
    ------
    UsageError
        If there is nothing at a path, or a library or package is given without its model.
    TargetError
        If a tool that a check needs is missing.
    """
    from ..targets.bare_metal import is_package

    for place in filter(None, (path, model)):
        if not place.exists():
            raise UsageError(f"there is nothing at {place}", todo="check the path")
    package = path.is_dir() and is_package(path)
    if path.is_dir() and not package:
        return _verify_folder(path, inputs, seed, progress)
    if model is None:
        raise UsageError(
            f"a {'package' if package else 'library'} alone cannot be verified: {path}",
            why="its numbers are compared with those of the integer program that it was made from",
            todo="give that as well: --model NAME.ibert",
        )
    if package:
        from .package import verify_package_folder

        return verify_package_folder(path, model, inputs, emulate, seed, progress, advance)
    return _verify_library(path, model, inputs, emulate, seed, progress, address, advance)


def _verify_folder(path: Path, inputs: int, seed: int, progress: Progress) -> Certificate:
    progress("digests")
    digest = file_sha256(path / MANIFEST) if (path / MANIFEST).is_file() else ""
    try:
        model = QuantizedModel.load(path)
    except ArtefactError as error:
        return Certificate(path.name, digest, "", (Check("digests", {}, (one_line(error),)),))
    passed = Check("digests", {"manifest": MANIFEST})
    progress("intervals")
    length = min(model.info.max_sequence_length or _LONGEST_UNBOUNDED, _LONGEST_UNBOUNDED)
    static = model.info.static_shape or (None, None)
    given = (static[0] or 1, static[1] or length)
    batches = list(random_batches(model.info, [given], inputs, seed))
    return Certificate(path.name, digest, "", (passed, check_intervals(model, batches)))


def _verify_library(
    path: Path,
    folder: Path,
    inputs: int,
    emulate: bool,
    seed: int,
    progress: Progress,
    address: Address | None,
    advance: Advance,
) -> Certificate:
    from ..runtime.library_file import read_metadata

    progress("digests")
    digest = file_sha256(path)
    try:
        metadata = read_metadata(path)
    except LibraryError as error:
        return Certificate(path.name, digest, "", (Check("digests", {}, (one_line(error),)),))
    model = QuantizedModel.load(folder)
    checks = [Check("digests", {"bytes": metadata.file_bytes})]
    progress("no floating point")
    checks += _code(metadata)
    shapes = [(function.batch, function.seq_len) for function in metadata.functions]
    batches = list(random_batches(model.info, shapes, inputs, seed))
    progress("intervals")
    checks.append(check_intervals(model, batches))
    progress("same bits")
    found = ""
    if metadata.source_sha256 != model.info.source_sha256:
        found = f"{path.name} was made from another source than {folder.name}"
    from ..targets import TargetError

    try:
        loading = _loaded(metadata, emulate, address)
    except (DeviceError, TargetError) as error:
        why = "; ".join(filter(None, (error.what, error.why, error.todo)))
        checks.append(Check("same bits", {}, (found,) if found else (), why))
    else:
        with loading as library:

            def run(given: Inputs) -> dict[str, NDArray[Any]]:
                outputs = library.run(**given, dequantize=False)
                return {name: output.values for name, output in outputs.items()}

            where = str(address) if address else "emulator" if emulate else library.device
            checks.append(check_same_bits(model, batches, run, {"on": where}, found, advance))
    return Certificate(path.name, digest, file_sha256(folder / MANIFEST), tuple(checks))


def _loaded(
    metadata: LibraryMetadata, emulate: bool, address: Address | None
) -> AbstractContextManager[Library]:
    from ..runtime import load_library

    if address is None:
        return nullcontext(load_library(metadata.path, emulate=emulate))
    from ..runtime.remote import load_remote

    return load_remote(metadata.path, address)


def _code(metadata: LibraryMetadata) -> list[Check]:
    """What the library's machine code is: on the processor, and on a GPU if it has one."""
    from ..runtime.emulated_engine import target_of
    from ..targets.library_audit import audit_library

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
        checks.append(Check("no floating point on the GPU", facts, device.findings[:MOST_FINDINGS]))
    return checks
