"""The result of importing a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..model.model_info import ModelInfo
from .given import GivenQuantization
from .report import ImportReport

if TYPE_CHECKING:
    import tvm

    from ..model.trained_scales import TrainedScales
    from .ibert_checkpoint.quantization import IbertQuantization


@dataclass(frozen=True)
class CanonicalModel:
    """A model in canonical form: float32, symbolic batch and sequence length.

    Attributes
    ----------
    module
        One function ``main`` in the canonical dialect (docs/architecture.md).
    parameters
        Its weights by parameter name, float32. They may share memory with the source: read only.
    info
        Architecture, sizes, head and source.
    report
        What was matched and folded on the way here; `print(model.report)`.
    tokenizer
        The source's tokenizer files by name, empty if it had none.
    verified_error
        Largest absolute difference from the source's outputs on the verification batch; None if
        `load` was asked not to verify.
    given
        Scales and integers that a quantised source came with; `ibert_tvm.quantize` uses them.
    released
        Ranges of an I-BERT checkpoint, for the preset ``released``.
    trained
        Scales that the model was trained with (`ibert_tvm.train`); `ibert_tvm.quantize` uses them.
    """

    module: tvm.IRModule
    parameters: Mapping[str, NDArray[np.float32]]
    info: ModelInfo
    report: ImportReport
    tokenizer: Mapping[str, bytes] = field(default_factory=dict)
    verified_error: float | None = None
    given: GivenQuantization | None = None
    released: IbertQuantization | None = None
    trained: TrainedScales | None = None
