"""What tests ask of imported models: operators, calls, outputs, the comparison with the source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

import ibert_tvm as ibert
from ibert_tvm.frontend import CanonicalModel
from ibert_tvm.frontend.canonicalise import Canonical
from ibert_tvm.relay_passes.canonical import FloatModel, canonical_calls

Imported = CanonicalModel | Canonical


def verified(
    source: Any, most: float = 1e-5, /, load: Callable[..., Any] = ibert.load, **options: Any
) -> CanonicalModel:
    """Import a model, and ask that it was compared with its source and is this near."""
    model: CanonicalModel = load(source, **options)
    assert model.verified_error is not None and model.verified_error <= most
    return model


def op_of(call: relax.Call) -> str:
    """The canonical operator, without the prefix."""
    return str(call.op.name).removeprefix("canonical.")


def calls_of(model: Imported, *kinds: str) -> list[relax.Call]:
    """Calls of canonical operators in order; of some kinds where any are named."""
    calls = [call for _, call in canonical_calls(model.module)]
    return [call for call in calls if not kinds or op_of(call) in kinds]


def ops(model: Imported) -> list[str]:
    """Canonical operators in order."""
    return [op_of(call) for call in calls_of(model)]


def run(model: Imported, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """The first output of the float program."""
    outputs = FloatModel(model.module, model.parameters).run(dict(inputs)).outputs
    first: NDArray[np.float32] = outputs[0]
    return first
