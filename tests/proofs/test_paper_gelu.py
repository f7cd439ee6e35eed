"""The published i-GELU, compiled: on every accumulator of 32 bits, for scales fine to coarse.

Where the polynomial moves, between its cuts, all values are enumerated; beyond, where it stands
still, the solver shows the rest. A solver does not decide the square between the cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ibert_tvm.relay_passes.spec.arithmetic import VECTORS
from ibert_tvm.relay_passes.spec.gelu import PaperGelu, gelu_paper
from ibert_tvm.relay_passes.spec.released.gelu import released_gelu
from tests.examples import examples
from tests.spec.conftest import both_domains  # noqa: F401  (a fixture)

from .solver import ARITHMETICS, prove_traced

INT32 = (-(2**31), 2**31 - 1)
SCALES = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1)
PRESETS: dict[str, Callable[[np.ndarray], PaperGelu]] = {
    "paper": PaperGelu.from_scales,
    "released": released_gelu,
}
# Not decided within 20 s, beyond the cut of vectors and GPUs.
UNDECIDED = ("released", 1e-6)
CASES = [(p, s, a) for p in PRESETS for s in SCALES for a in ARITHMETICS if (p, s) != UNDECIDED]


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("preset", "scale", "arithmetic"),
    examples(CASES, ("paper", 1e-3, "vectors"), ("released", 1e-3, "scalar"), unpack=True),
)
def test_every_accumulator(
    both_domains: Callable[..., Any],  # noqa: F811
    preset: str,
    scale: float,
    arithmetic: str,
) -> None:
    # Of a layer with two channels: constants are operands, their intervals hold both.
    constants = PRESETS[preset](np.array([scale, 1.5 * scale]))
    channels = {name: getattr(constants, name) for name in ("q_b", "q_c", "q_1", "erf_shift")}
    intervals = {name: (int(k.min()), int(k.max())) for name, k in channels.items()}
    this = {name: int(k[0]) for name, k in channels.items()}
    written, cut = ARITHMETICS[arithmetic], -this["q_b"]
    between = np.arange(-cut - 1, cut + 2)
    operands = [(np.full(between.size, this[name]), *ends) for name, ends in intervals.items()]
    both_domains(
        gelu_paper, (between, *INT32), *operands, vectorise=written is VECTORS, arithmetic=written
    )
    one = {name: (k, k) for name, k in this.items()}
    for part in ((INT32[0], -cut), (cut, INT32[1])):
        shown = prove_traced(gelu_paper, written, {"q": part, **one}, q=INT32, **intervals)
        assert shown >= 2
