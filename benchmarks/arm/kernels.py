"""The kernels that are counted, and what others execute for the same work.

Each kernel is emitted as the compiler emits it for a model, with random constants: how many
instructions run does not depend on them. Results are compared with the specification.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ibert_tvm.targets import TargetDescription
from tests.arm import matrix_kernels, row_kernels, softmax_kernel
from tests.arm.row_program import RowKernel

from .cmsis_nn import KERNELS

__all__ = ["CASES", "Bar", "Case"]


@dataclass(frozen=True)
class Bar:
    """What somebody else's kernel executes for the same work on a processor.

    Attributes
    ----------
    source
        Whose.
    instructions
        How many.
    goal
        Largest fraction of it that this project allows itself; None where there is no goal.
    """

    source: str
    instructions: int
    goal: float | None = None

    @property
    def peer(self) -> str:
        """Which of `cmsis_nn.KERNELS` it is; empty for others."""
        name = self.source.removeprefix(_CMSIS)
        return name if name in KERNELS else ""


@dataclass(frozen=True)
class Case:
    """One kernel to count.

    Attributes
    ----------
    name
        Shown in tables; sizes are tokens x channels (-> channels).
    build
        Makes the kernel for a target.
    bars
        What to compare with, by target.
    macs
        Multiply-accumulates of its matrix products.
    note
        What is compared, where that is not the same work.
    targets
        Targets to count it on; empty for all.
    sizes
        Rows, depth and columns of a linear layer that others are counted for, too.
    """

    name: str
    build: Callable[[TargetDescription], RowKernel]
    bars: dict[str, Bar] = field(default_factory=dict)
    macs: int = 0
    note: str = ""
    targets: tuple[str, ...] = ()
    sizes: tuple[int, int, int] | None = None


_CMSIS = "CMSIS-NN "


def _millions(source: str, goal: float | None = None, **targets: float) -> dict[str, Bar]:
    return {
        f"cortex-{name}": Bar(source, round(1e6 * number), goal) for name, number in targets.items()
    }


def _sdot_limit(macs: int) -> Bar:
    return Bar("MACs / 16", macs // 16, 1.5)


_S8, _S4 = f"{_CMSIS}mat_mult_nt_t_s8", f"{_CMSIS}mat_mult_nt_t_s4"
_LAYER = (128, 384, 384)
CASES = (
    Case(
        "linear 128x384->384",
        lambda target: matrix_kernels.linear(target, *_LAYER),
        {
            **_millions(_S8, 0.75, m4=28.7),
            **_millions(_S8, 0.9, m3=49.4),
            # 118.0M for fully_connected_s8, the faster of the two on this processor.
            **_millions(f"{_CMSIS}fully_connected_s8", 0.8, m0=118.0),
            **_millions(_S8, 1.0, m55=3.93),
            "rv32imc": Bar("CMSIS-NN, its plain C", 82_400_000, 0.63),
            "aarch64-dotprod": Bar("MACs / 16", math.prod(_LAYER) // 16),
        },
        macs=math.prod(_LAYER),
        sizes=_LAYER,
    ),
    Case(
        "linear 128x384->384, 4-bit weights",
        lambda target: matrix_kernels.linear(target, *_LAYER, halves=True),
        {
            **_millions(_S4, 1.0, m4=58.4, m3=63.4, m55=6.17),
            # A vector at a time takes fewer than all at once there.
            **_millions(f"{_CMSIS}vec_mat_mult_t_s4", 1.0, m0=148.9),
        },
        macs=math.prod(_LAYER),
        note="a scale for every 32 weights of a channel; CMSIS-NN has one for a channel",
        sizes=_LAYER,
    ),
    Case(
        "linear 128x768->768",
        lambda target: matrix_kernels.linear(target, 128, 768, 768),
        {"aarch64-dotprod": _sdot_limit(128 * 768 * 768)},
        macs=128 * 768 * 768,
        targets=("rpi4", "aarch64-dotprod", "aarch64-i8mm", "armv7-neon"),
    ),
    Case(
        "attention 1 head 128x64",
        lambda target: matrix_kernels.attention(target, 1, 128, 1, 64),
        {
            **_millions("CMSIS-NN", m0=2 * 7.9 + 31.4, m3=2 * 4.16 + 8.35),
            **_millions("CMSIS-NN", m4=2 * 2.79 + 8.39, m55=2 * 0.71 + 8.9),
        },
        macs=2 * 128 * 128 * 64,
        note="compared with two batch matrix products and a softmax",
    ),
    Case(
        "softmax 128x128",
        lambda target: softmax_kernel.softmax(target, 128, 128),
        {
            **_millions("Deeploy iSoftmax", m0=2.02, m3=0.64),
            **_millions("Deeploy iSoftmax", 1.0, m4=0.63),
            **_millions("CMSIS-NN softmax_s8", m55=8.9),
        },
        note="with the mask, and the division and requantisation of a context of 32 channels",
        targets=("cortex-m0", "cortex-m3", "cortex-m4"),
    ),
    Case(
        "GELU 128x384",
        lambda target: row_kernels.gelu(target, 128, 384),
        {
            **_millions("Deeploy RQiGELU", m0=2.41, m3=1.83),
            "cortex-m4": Bar("goal", 1_200_000, 1.0),
        },
        note="requantised; Deeploy's on a Cortex-M4: 1.80M",
    ),
    Case(
        "LayerNorm 128x384",
        lambda target: row_kernels.layer_norm(target, 128, 384),
        {
            **_millions("Deeploy iLayerNorm", m0=25.2, m3=4.89),
            "cortex-m4": Bar("goal", 2_000_000, 1.0),
        },
        note="results in 15 bits and requantised to 8; Deeploy's on a Cortex-M4: 4.89M",
    ),
    Case(
        "residual add 128x384",
        lambda target: row_kernels.residual_add(target, 128, 384),
        _millions("CMSIS-NN elementwise_add_s8", m0=11.6, m3=4.13, m4=3.87, m55=0.68),
        note="of 16-bit streams, one of them requantised",
    ),
    Case("requantise 128x384", lambda target: row_kernels.requantise(target, 128, 384)),
)
"""All kernels, with the bars of CMSIS-NN (July 2026, -Ofast) and of Deeploy's generic kernels."""
