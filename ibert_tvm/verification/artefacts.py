"""Checking an artefact: a model, a library for a processor or a GPU, or a package."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.errors import ArtefactError, IbertError, LibraryError, TargetError, UsageError
from ..common.files import files_sha256
from ..common.integrity import MANIFEST, check_manifest
from ..model.artefact import QuantizedModel
from .certificate import MOST_FINDINGS, Certificate, Check
from .checks import Advance, check_intervals, check_same_bits, check_tokenizer, one_line
from .compiled import Compiled, CompiledLibrary, CompiledPackage
from .inputs import check_amount, random_batches

if TYPE_CHECKING:
    from ..targets.rpc import Address

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
    from ..targets.bare_metal import is_package

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
