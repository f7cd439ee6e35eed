"""Presets: which form of each approximation a model is lowered with."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import PresetError
from .exponential import PolynomialExponential
from .preset_names import PRESET_NAMES
from .short_softmax import ShortExponential


@dataclass(frozen=True)
class Preset:
    """Choices of the integer specification.

    Parameters
    ----------
    name
        "paper", "accurate" or "released".
    gelu
        "polynomial" (of 16 bits, at one scale), "i-erf" (published, on the accumulator, constants
        per channel) or "i-erf-fixed-shift" (released).
    exponential
        "short" (by powers of two, 16 bits), "polynomial" (published) or "calibrated" (released: its
        result has a scale from training).
    softmax
        "normalised" (published) or "short" (divided once per row, 16 bits).
    reciprocal_bits
        Of the layer norm: 31 as released, or 40.
    unsigned_gelu_output
        Whether GELU's output may use uint8 with a zero point.
    smoothing
        Whether calibration may move scale from activations to weights.
    split_outliers
        Whether calibration may split channels with outliers into several columns.
    compensated_rounding
        Whether weights are rounded one column after the other, and what a column loses is made up
        for by those that follow.
    embedding_scale_per_row
        Whether every row of an embedding table has a scale of its own.
    value_scale_per_channel
        Whether the values of attention have a scale per channel, which the context divides by.
    short
        Whether to requantise, add and normalise in 16-bit arithmetic where the ranges allow it.
    """

    name: str
    gelu: str
    exponential: str
    softmax: str
    reciprocal_bits: int = 31
    unsigned_gelu_output: bool = False
    smoothing: bool = False
    split_outliers: bool = False
    compensated_rounding: bool = False
    embedding_scale_per_row: bool = False
    value_scale_per_channel: bool = False
    short: bool = False

    def exponential_for(self, scale: float) -> ShortExponential | PolynomialExponential:
        """Constants of this preset's exponential for scores of the given scale.

        Parameters
        ----------
        scale
            Scale of the scores, 1/sqrt(d) included.

        Raises
        ------
        RangeError
            If the scale cannot be served.
        PresetError
            If the exponential has a calibrated result: its constants need that scale as well.
        """
        if self.exponential == "calibrated":
            raise PresetError(
                f"the exponential of the preset {self.name!r} has no constants for a scale alone",
                why="the scale of its result was calibrated in training",
                todo="use ibert_tvm.relay_passes.spec.released.ReleasedExponential.from_scales",
            )
        if self.exponential == "short":
            return ShortExponential.from_scale(scale)
        return PolynomialExponential.from_scale(scale)


ACCURATE = Preset(
    name="accurate",
    gelu="polynomial",
    exponential="short",
    softmax="short",
    reciprocal_bits=40,
    unsigned_gelu_output=True,
    smoothing=True,
    split_outliers=True,
    compensated_rounding=True,
    embedding_scale_per_row=True,
    value_scale_per_channel=True,
    short=True,
)
"""Better polynomials of the same cost, rounding instead of floors: the default."""

PAPER = Preset(name="paper", gelu="i-erf", exponential="polynomial", softmax="normalised")
"""The published formulas and constants, in widths that hold them."""

RELEASED = Preset(
    name="released",
    gelu="i-erf-fixed-shift",
    exponential="calibrated",
    softmax="normalised",
)
"""The arithmetic of the released code to the last bit, for checkpoints that were trained with it:
every scale comes from the checkpoint, none from calibration."""

PRESETS: dict[str, Preset] = dict(zip(PRESET_NAMES, (ACCURATE, PAPER, RELEASED), strict=True))


def preset(name: str) -> Preset:
    """Look a preset up by name.

    Parameters
    ----------
    name
        "accurate", "paper" or "released".

    Raises
    ------
    PresetError
        If there is no preset of that name; the message lists the allowed ones.
    """
    try:
        return PRESETS[name]
    except KeyError:
        raise PresetError(
            f"unknown preset {name!r}",
            why="a preset chooses the form of every approximation",
            todo=f"use one of: {', '.join(PRESETS)}",
        ) from None
