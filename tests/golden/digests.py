"""Digests of integers: equal exactly if every bit is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from tests.golden.models import LENGTH, MODELS, evaluated, quantized

DIGESTS = Path(__file__).with_name("digests.json")
Section = dict[str, str]
_DIGITS = 16
"""Hexadecimal digits that are kept of a SHA-256: 64 bits tell accidents from equality."""


def of_array(array: NDArray[Any]) -> str:
    """Digest of dtype, shape and contents."""
    array = np.ascontiguousarray(array)
    head = f"{array.dtype.newbyteorder('<').str} {array.shape}\n".encode()
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return hashlib.sha256(head + little.tobytes()).hexdigest()[:_DIGITS]


def of_document(document: Any) -> str:
    """Digest of anything JSON-able, whatever the order of its keys."""
    text = json.dumps(document, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def of_arrays(arrays: Mapping[str, NDArray[Any]]) -> Section:
    """Digests by name."""
    return {name: of_array(array) for name, array in arrays.items()}


def specification(name: str, by_name: bool | None = None) -> dict[str, Section]:
    """Everything that is golden of a model.

    ``parameters``: its integers; ``scales``: what they stand for; ``intervals``: what is proven of
    every value; ``values`` and ``outputs``: the reference on fixed inputs.

    Parameters
    ----------
    name
        The model.
    by_name
        A digest for every name, instead of one for all integers, intervals and values each; by
        default for the models of the default tests.
    """
    model = quantized(name)
    outputs, values = evaluated(name)
    report = analyse_ranges(model.module, model.parameters, max_seq_len=LENGTH)
    sections = {
        "parameters": of_arrays(model.parameters),
        "scales": {key: of_document(value) for key, value in model.quantization.items()},
        "intervals": {
            key: of_document([value.low, value.high, value.dtype])
            for key, value in report.details.items()
        },
        "values": of_arrays(values),
        "outputs": of_arrays(outputs),
    }
    if not (MODELS[name].fast if by_name is None else by_name):
        for key in ("parameters", "intervals", "values"):
            sections[key] = {f"{len(sections[key])} names": of_document(sections[key])}
    return sections


def stored() -> dict[str, dict[str, Section]]:
    """Golden digests by model."""
    document: dict[str, dict[str, Section]] = json.loads(DIGESTS.read_text(encoding="utf-8"))
    return document


def differences(want: Mapping[str, Section], got: Mapping[str, Section]) -> list[str]:
    """One line per section that differs, with the first name that does in program order."""
    lines = []
    for section in want.keys() | got.keys():
        before, after = want.get(section, {}), got.get(section, {})
        names = [*before, *(name for name in after if name not in before)]
        wrong = [name for name in names if before.get(name) != after.get(name)]
        if wrong:
            first = wrong[0]
            how = "is gone" if first not in after else "is new" if first not in before else ""
            lines.append(
                f"{section}: {len(wrong)} of {len(names)} differ, first {first!r} {how}".rstrip()
            )
    return sorted(lines)
