"""The certificate of an artefact: what was promised of it, checked on the file itself.

===================  ============================================================================
digests              every file, or every section, is what it was when it was written
no floating point    of the library's code, every instruction was looked at
intervals            every value and intermediate of the program has an interval that fits it, and
                     none leaves it on the inputs below
same bits            the library gives what the integer specification gives, on random inputs
===================  ============================================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .artefact import QuantizedModel
from .errors import ArtefactError, IbertError, LibraryError, UsageError
from .evaluate import evaluate_integers
from .integrity import MANIFEST, file_sha256, sealed
from .model_info import ModelInfo
from .version import __version__

FORMAT, VERSION = "ibert-certificate", 1
_SHOWN = 20
# Products of Python's integers take a minute for more.
_UNBOUNDED_ENTRIES = 200_000
_LONGEST_UNBOUNDED = 16

Inputs = dict[str, NDArray[Any]]
Progress = Callable[[str], None]
Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class Check:
    """One property.

    Attributes
    ----------
    name : str
        What was checked.
    facts : dict
        How, JSON-able.
    findings : tuple of str
        What does not hold; empty if all does. Of many the first twenty.
    """

    name: str
    facts: dict[str, Any]
    findings: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


@dataclass(frozen=True)
class Certificate:
    """All checks of an artefact.

    Attributes
    ----------
    artefact : str
        Name of the file or folder.
    sha256 : str
        Of the library, or of the folder's manifest, which holds the hashes of its files.
    model_sha256 : str
        Of the manifest of the model that a library was compared with; else empty.
    checks : tuple of Check
        In the order in which they were made; what a failed one stands in the way of is not there.
    """

    artefact: str
    sha256: str
    model_sha256: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check did."""
        return all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON-able document with a seal, see `ibert_tvm.integrity.sealed`."""
        return sealed(
            {
                "format": FORMAT,
                "version": VERSION,
                "ibert_tvm": __version__,
                "artefact": self.artefact,
                "artefact_sha256": self.sha256,
                "model_sha256": self.model_sha256,
                "passed": self.passed,
                "checks": [
                    {**asdict(check), "findings": list(check.findings), "passed": check.passed}
                    for check in self.checks
                ],
            }
        )


def verify(
    path: Path,
    model: Path | None = None,
    inputs: int = 16,
    emulate: bool = False,
    seed: int = 0,
    progress: Progress = lambda _: None,
    advance: Advance = lambda _done, _total: None,
) -> Certificate:
    """Check an artefact.

    Parameters
    ----------
    path : pathlib.Path
        A ``NAME.ibert`` folder, or a library whose kernels run on a processor.
    model : pathlib.Path, optional
        The folder that a library was compiled from.
    inputs : int
        How many random inputs, at least one of each compiled shape.
    emulate : bool
        Run a library without runtime under the emulator of its target.
    seed : int
        Of the random inputs.
    progress : callable
        Called with the name of each check as it starts.
    advance : callable
        Called with how many of the inputs were compared, and how many there are.

    Returns
    -------
    Certificate
        Of a damaged artefact, that it is.

    Raises
    ------
    UsageError
        If there is nothing at a path, or a library is given without its model.
    TargetError
        If a tool that a check needs is missing.
    """
    for place in filter(None, (path, model)):
        if not place.exists():
            raise UsageError(f"there is nothing at {place}", todo="check the path")
    if path.is_dir():
        return _verify_folder(path, inputs, seed, progress)
    if model is None:
        raise UsageError(
            f"a library alone cannot be verified: {path}",
            why="its numbers are compared with those of the integer program that it was made from",
            todo="give that as well: --model NAME.ibert",
        )
    return _verify_library(path, model, inputs, emulate, seed, progress, advance)


def _verify_folder(path: Path, inputs: int, seed: int, progress: Progress) -> Certificate:
    progress("digests")
    digest = file_sha256(path / MANIFEST) if (path / MANIFEST).is_file() else ""
    try:
        model = QuantizedModel.load(path)
    except ArtefactError as error:
        failed = Check("digests", {}, (_one_line(error),))
        return Certificate(path.name, digest, "", (failed,))
    passed = Check("digests", {"manifest": MANIFEST}, ())
    progress("intervals")
    length = min(model.info.max_sequence_length or _LONGEST_UNBOUNDED, _LONGEST_UNBOUNDED)
    static = model.info.static_shape or (None, None)
    given = (static[0] or 1, static[1] or length)
    batches = [given_inputs for _, given_inputs in _random(model.info, [given], inputs, seed)]
    return Certificate(path.name, digest, "", (passed, _intervals(model, batches)))


def _verify_library(
    path: Path,
    folder: Path,
    inputs: int,
    emulate: bool,
    seed: int,
    progress: Progress,
    advance: Advance,
) -> Certificate:
    from .runtime import load_library
    from .runtime.emulated_engine import target_of
    from .runtime.library_file import read_metadata
    from .targets.library_audit import audit_library

    progress("digests")
    digest = file_sha256(path)
    try:
        metadata = read_metadata(path)
    except LibraryError as error:
        return Certificate(path.name, digest, "", (Check("digests", {}, (_one_line(error),)),))
    if metadata.device != "cpu":
        raise UsageError(
            f"cannot verify {path}",
            why="its kernels run on a GPU; their code is audited when they are compiled",
            todo="give a library for a processor",
        )
    model = QuantizedModel.load(folder)
    checks = [Check("digests", {"bytes": metadata.file_bytes}, ())]

    progress("no floating point")
    audit = audit_library(path, target_of(metadata))
    facts = {"instructions": audit.instructions, "target": dict(metadata.target)}
    checks.append(Check("no floating point", facts, audit.findings[:_SHOWN]))

    shapes = [(function.batch, function.seq_len) for function in metadata.functions]
    batches = list(_random(model.info, shapes, inputs, seed))
    progress("intervals")
    checks.append(_intervals(model, [given for _, given in batches[: len(shapes)]]))
    progress("same bits")
    library = load_library(path, emulate=emulate)

    def run(given: Inputs) -> dict[str, NDArray[Any]]:
        return {
            name: output.values for name, output in library.run(**given, dequantize=False).items()
        }

    found = []
    if metadata.source_sha256 != model.info.source_sha256:
        found.append(f"{path.name} was made from another source than {folder.name}")
    checks.append(_same_bits(model, batches, run, found, advance))
    return Certificate(path.name, digest, file_sha256(folder / MANIFEST), tuple(checks))


def _one_line(error: IbertError) -> str:
    return ": ".join(filter(None, (error.what, error.where, error.why)))


def _random(
    info: ModelInfo, shapes: list[tuple[int, int]], count: int, seed: int
) -> Iterator[tuple[tuple[int, int], Inputs]]:
    """Inputs of each shape in turn: any ids, padding behind any number of tokens."""
    random = np.random.default_rng(seed)
    for index in range(max(count, len(shapes))):
        batch, length = shapes[index % len(shapes)]
        if info.image_size is not None:
            values = random.normal(size=(batch, *info.image_size)).astype(np.float32)
            yield (batch, length), {info.inputs[0]: values}
            continue
        lengths = random.integers(1, length + 1, batch)
        mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
        ids = random.integers(0, info.vocab_size, (batch, length), dtype=np.int32)
        types = random.integers(0, max(info.type_vocab_size, 1), (batch, length), dtype=np.int32)
        made = {
            "input_ids": np.where(mask, ids, np.int32(info.pad_token_id)),
            "attention_mask": mask,
            "token_type_ids": types,
        }
        yield (batch, length), {name: made[name] for name in info.inputs}


def _intervals(model: QuantizedModel, batches: list[Inputs]) -> Check:
    """Prove the width of every intermediate, and look whether one leaves its interval."""
    from .relay_passes.errors import CompilerError
    from .relay_passes.integer.ranges import analyse_ranges
    from .relay_passes.integer.unbounded import check_unbounded

    try:
        report = analyse_ranges(model.program, model.parameters)
    except CompilerError as error:
        return Check("intervals", {}, (_one_line(error),))
    small = sum(array.size for array in model.parameters.values()) <= _UNBOUNDED_ENTRIES
    kind: Any = object if small else np.int64
    found: list[str] = []
    checked = [given for given in batches if set(given) == {*model.program.inputs}]
    if model.info.image_size is None:
        for given in checked[:2]:
            typed = {
                name: given[name].astype(type_.dtype)
                for name, type_ in model.program.inputs.items()
            }
            found += check_unbounded(model.program, typed, model.parameters, report.details, kind)
    facts = {
        "longest_sequence": report.max_seq_len,
        "values": len(report.details),
        "intermediates": sum(len(value.stages) for value in report.details.values()),
        "widest_bits": max(value.width for value in report.details.values()),
        "numbers": "without bounds" if small else "64 bits",
        "bits": {
            name: {"low": value.low, "high": value.high, "type": value.dtype, "width": value.width}
            for name, value in report.details.items()
        },
    }
    return Check("intervals", facts, tuple(found[:_SHOWN]))


def _same_bits(
    model: QuantizedModel,
    batches: list[tuple[tuple[int, int], Inputs]],
    run: Callable[[Inputs], Mapping[str, NDArray[Any]]],
    found: list[str],
    advance: Advance,
) -> Check:
    """Compare a library with the reference; the digest is that of the reference's outputs."""
    digest = hashlib.sha256()
    for index, ((batch, length), given) in enumerate(batches):
        advance(index, len(batches))
        expected, outputs = evaluate_integers(model, given), run(given)
        if set(outputs) != set(expected):
            found.append(f"it gives {', '.join(outputs)}; the model {', '.join(expected)}")
            break
        for name, want in expected.items():
            digest.update(np.ascontiguousarray(want).tobytes())
            have = outputs[name]
            if have.shape != want.shape or have.dtype != want.dtype:
                found.append(
                    f"{name} is {have.dtype}{list(have.shape)}, not {want.dtype}{list(want.shape)}"
                )
            elif wrong := int((have != want).sum()):
                found.append(
                    f"input {index}, batch {batch}, {length} tokens: {wrong} of {want.size} "
                    f"integers of {name} differ"
                )
    shapes = sorted({f"{batch}x{length}" for (batch, length), _ in batches})
    facts = {"inputs": len(batches), "shapes": shapes, "outputs_sha256": digest.hexdigest()}
    return Check("same bits", facts, tuple(found[:_SHOWN]))
