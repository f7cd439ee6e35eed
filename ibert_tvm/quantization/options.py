"""Settings of calibration."""

from __future__ import annotations

from dataclasses import dataclass

from ..common.errors import UsageError
from .row_scaling import NEVER, ROW_SCALES

__all__ = ["OBSERVERS", "CalibrationOptions"]

OBSERVERS = ("mse", "minmax", "percentile")
"""How the range of an 8-bit activation is chosen: see `ibert_tvm.quantization.observers`."""


@dataclass(frozen=True)
class CalibrationOptions:
    """How scales are chosen.

    Parameters
    ----------
    seq_len : int
        Texts are truncated to this many tokens.
    observer : str
        One of `OBSERVERS`.
    percentile : float
        For the observer of that name: percentage of the absolute values that are not clipped.
    alphas : tuple of float
        Smoothing strengths that are tried for every matrix operand, in [0, 1). With 0 no smoothing
        is meant. More than 0.8 makes the weights the harder part.
    balance : tuple of float
        Weights of the rounding of weights against that of activations with which the divisors of
        the best strength are improved (`ibert_tvm.quantization.balancing`); none for no attempt.
    split_share : float
        Columns that channels with outliers may be split into, as a share of the channels, in
        [0, 1]: that much longer are the products with them. 1/48 serves models whose feed-forward
        layers have channels far larger than the others (MPNet).
    copied_share : float
        The same of what linear layers do not compute, as LayerNorm's outputs: such a channel is
        copied at run time.
    channel_zero_points : bool
        Give each channel of what linear layers read a zero point of its own, so that its range lies
        around its centre (preset ``accurate``). The next bias takes it off again.
    value_offsets : bool
        Take the middle of each channel off what attention averages (preset ``accurate``); the bias
        behind it makes up for that. It costs nothing.
    first_tokens : bool
        Move these zero points and offsets by fractions of a step, so that the mean of the texts'
        first tokens lies on the grid of each channel (`observers.phase_of`). It costs nothing.
    wide_values : bool
        Give what attention averages three bits more than 8 (preset ``accurate``), for which its
        products with the weights of attention are twice as many. With `first_tokens`, layers whose
        first tokens are alike in all texts keep 8, if most layers are such. Models of more than
        8288 tokens have 8 bits: their sums would not fit 32.
    wide_operands : bool
        Give what linear layers read 15 bits instead of 8 (preset ``accurate``), or as many as leave
        their sums 32, without splits, zero points and scales per token. Where the target multiplies
        16 bits (AVX2, Cortex-M0 to -M7) that costs no time, elsewhere it is twice as many products.
    margin : float
        How many times as far as calibration saw what attention yields may go before it is clipped,
        at least 1 (preset ``accurate``).
    short_pieces : bool
        Calibrate on one to three words of every text besides.
    fine_tables : bool
        Keep embedding tables that are small beside the others, as those of positions and token
        types are, in 16 bits (preset ``accurate``).
    row_scales : str
        One of `ibert_tvm.quantization.row_scaling.ROW_SCALES`: whether what matrices of weights
        multiply has a scale per token, where that is possible: "never", "auto" (where the products
        come closer to those of the float model by a factor of 1.5 in squared error) or "always".
    compensate : bool
        Round weights column by column, spreading each column's error over the later ones
        (GPTQ); otherwise to the nearest.
    centre : bool
        Let biases make up for what rounding in two steps adds in the mean to what linear layers
        read (preset ``accurate``). It costs nothing.
    sample_tokens : int
        Tokens of which whole rows are kept for the searches.
    seed : int
        Of the choice of these tokens.
    widen : bool
        Of a model that came quantised to 8 bits throughout: keep sums, LayerNorm's outputs and
        GELU's inputs in 16 bits over the range that it gives them, instead of rounding them.

    Raises
    ------
    UsageError
        If a setting is out of range; the message lists the allowed values.
    """

    seq_len: int = 128
    observer: str = "mse"
    percentile: float = 99.99
    alphas: tuple[float, ...] = (0.0, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8)
    balance: tuple[float, ...] = ()
    split_share: float = 0.0
    copied_share: float = 0.0
    channel_zero_points: bool = False
    value_offsets: bool = False
    first_tokens: bool = False
    wide_values: bool = False
    wide_operands: bool = False
    margin: float = 1.0
    short_pieces: bool = False
    fine_tables: bool = False
    row_scales: str = NEVER
    compensate: bool = True
    centre: bool = False
    sample_tokens: int = 2048
    seed: int = 0
    widen: bool = False

    def __post_init__(self) -> None:
        if self.observer not in OBSERVERS:
            raise UsageError(
                f"unknown observer {self.observer!r}",
                why="an observer chooses the range of an activation",
                todo=f"use one of: {', '.join(OBSERVERS)}",
            )
        if self.seq_len < 1:
            raise UsageError(
                f"a sequence length of {self.seq_len}",
                why="a sequence has at least one token",
                todo="use a positive number",
            )
        if not 50.0 < self.percentile <= 100.0:
            raise UsageError(
                f"a percentile of {self.percentile}",
                why="it is the percentage of values that are kept",
                todo="use more than 50 and at most 100",
            )
        if not self.alphas or not all(0.0 <= alpha < 1.0 for alpha in self.alphas):
            raise UsageError(
                f"smoothing strengths {self.alphas}",
                why="each lies between no smoothing (0) and moving everything to the weights (1)",
                todo="use at least one number in [0, 1)",
            )
        if not all(0.0 < weight < float("inf") for weight in self.balance):
            raise UsageError(
                f"weights {self.balance} of the rounding of weights",
                why="divisors are balanced for each of them",
                todo="use positive numbers, or none",
            )
        for share in (self.split_share, self.copied_share):
            if not 0.0 <= share <= 1.0:
                raise UsageError(
                    f"{share} of the channels are to be split",
                    why="it is a share of them",
                    todo="use a number from 0 to 1",
                )
        if not 1.0 <= self.margin <= 4.0:
            raise UsageError(
                f"a margin of {self.margin}",
                why="it is how many times as far as calibration saw numbers may go",
                todo="use a number from 1 to 4",
            )
        if self.row_scales not in ROW_SCALES:
            raise UsageError(
                f"unknown choice of scales per token {self.row_scales!r}",
                why="it says which matrix operands have one",
                todo=f"use one of: {', '.join(ROW_SCALES)}",
            )
        if self.sample_tokens < 1:
            raise UsageError(
                f"a sample of {self.sample_tokens} tokens",
                why="scales are searched on a sample",
                todo="use a positive number; 2048 is the default",
            )
