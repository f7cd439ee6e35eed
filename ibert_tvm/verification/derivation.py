"""Whether an artefact is what its model gives: it is made again, and every byte compared.

Compilation is deterministic: the same model, options, versions and compilers give the same bytes.
So nothing that an artefact holds is believed, whether code, weights, scales, labels or tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..common.errors import IbertError, LibraryError, TargetError
from ..common.files import files_sha256
from ..common.integrity import MANIFEST, check_manifest
from ..model.artefact import QuantizedModel
from .certificate import MOST_FINDINGS, Check
from .checks import one_line
from .compiled import Compiled

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
