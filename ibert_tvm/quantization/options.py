"""Settings of calibration, by what it observes, what it may split, how it searches."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ..common.errors import UsageError, check_choice
from ..common.strict_json import JsonDict

OBSERVERS = ("mse", "minmax", "percentile")
"""How the range of an 8-bit activation is chosen: see `ibert_tvm.quantization.observers`."""

NEVER, AUTO, ALWAYS = "never", "auto", "always"
ROW_SCALES = (NEVER, AUTO, ALWAYS)
"""Whether matrix operands have a scale per token: none of them, those where it pays, all."""


@dataclass(frozen=True)
class Observation:
    """What calibration observes, and which range it takes from that.

    Parameters
    ----------
    seq_len
        Texts are truncated to this many tokens.
    most_texts
        Calibrate on so many of the texts or batches, evenly spread; None for all.
    short_pieces
        Calibrate on one to three words of every text besides.
    sample_tokens
        Tokens of which whole rows are kept for the searches.
    seed
        Of the choice of these tokens.
    observer
        One of `OBSERVERS`.
    percentile
        For the observer of that name: percentage of the absolute values that are not clipped.
    margin
        How many times as far as calibration saw what attention yields may go before it is clipped,
        at least 1 (preset ``accurate``).

    Raises
    ------
    UsageError
        If a setting is out of range; the message lists the allowed values.
    """

    seq_len: int | None = None
    most_texts: int | None = None
    short_pieces: bool = False
    sample_tokens: int = 2048
    seed: int = 0
    observer: str = "mse"
    percentile: float = 99.99
    margin: float = 1.0

    def __post_init__(self) -> None:
        why = "an observer chooses the range of an activation"
        check_choice("observer", self.observer, OBSERVERS, why)
        _check(
            self.seq_len is None or self.seq_len >= 1,
            f"a sequence length of {self.seq_len}",
            "a sequence has at least one token",
            "use a positive number",
        )
        _check(
            self.most_texts is None or self.most_texts >= 1,
            f"at most {self.most_texts} texts",
            "calibration needs some",
            "use a positive number, or None for all",
        )
        _check(
            50.0 < self.percentile <= 100.0,
            f"a percentile of {self.percentile}",
            "it is the percentage of values that are kept",
            "use more than 50 and at most 100",
        )
        _check(
            1.0 <= self.margin <= 4.0,
            f"a margin of {self.margin}",
            "it is how many times as far as calibration saw numbers may go",
            "use a number from 1 to 4",
        )
        _check(
            self.sample_tokens >= 1,
            f"a sample of {self.sample_tokens} tokens",
            "scales are searched on a sample",
            "use a positive number; 2048 is the default",
        )


@dataclass(frozen=True)
class Forms:
    """Which forms beyond 8 bits at one scale values and weights may have.

    Parameters
    ----------
    split_share
        Columns that channels with outliers may be split into, as a share of the channels, in
        [0, 1]: that much longer are the products with them. 1/48 serves models whose feed-forward
        layers have channels far larger than the others (MPNet).
    copied_share
        The same of what linear layers do not compute, as LayerNorm's outputs: such a channel is
        copied at run time.
    channel_zero_points
        Give each channel of what linear layers read a zero point of its own, so that its range lies
        around its centre (preset ``accurate``). The next bias takes it off again.
    value_offsets
        Take the middle of each channel off what attention averages (preset ``accurate``); the bias
        behind it makes up for that. It costs nothing.
    first_tokens
        Move these zero points and offsets by fractions of a step, so that the mean of the texts'
        first tokens lies on the grid of each channel (`observers.phase_of`). It costs nothing.
    wide_values
        Give what attention averages three bits more than 8 (preset ``accurate``), for which its
        products with the weights of attention are twice as many. With `first_tokens`, layers whose
        first tokens are alike in all texts keep 8, if most layers are such. Models of more than
        8288 tokens have 8 bits: their sums would not fit 32.
    wide_operands
        Give what linear layers read 15 bits instead of 8 (preset ``accurate``), or as many as leave
        their sums 32, without splits, zero points and scales per token. Where the target multiplies
        16 bits (AVX2, Cortex-M0 to -M7) that costs no time, elsewhere it is twice as many products.
    fine_tables
        Keep embedding tables that are small beside the others, as those of positions and token
        types are, in 16 bits (preset ``accurate``).
    row_scales
        One of `ROW_SCALES`: whether what matrices of weights multiply has a scale per token, where
        that is possible: "never", "auto" (where the products come closer to those of the float
        model by a factor of 1.5 in squared error) or "always".
    widen
        Of a model that came quantised to 8 bits throughout: keep sums, LayerNorm's outputs and
        GELU's inputs in 16 bits over the range that it gives them, instead of rounding them.

    Raises
    ------
    UsageError
        If a setting is out of range; the message lists the allowed values.
    """

    split_share: float = 0.0
    copied_share: float = 0.0
    channel_zero_points: bool = False
    value_offsets: bool = False
    first_tokens: bool = False
    wide_values: bool = False
    wide_operands: bool = False
    fine_tables: bool = False
    row_scales: str = NEVER
    widen: bool = False

    def __post_init__(self) -> None:
        for share in (self.split_share, self.copied_share):
            _check(
                0.0 <= share <= 1.0,
                f"{share} of the channels are to be split",
                "it is a share of them",
                "use a number from 0 to 1",
            )
        why = "it says which matrix operands have one"
        check_choice("choice of scales per token", self.row_scales, ROW_SCALES, why)


@dataclass(frozen=True)
class Search:
    """How far calibration searches, and what it makes up for.

    Parameters
    ----------
    alphas
        Smoothing strengths that are tried for every matrix operand, in [0, 1). With 0 no smoothing
        is meant. More than 0.8 makes the weights the harder part.
    balance
        Weights of the rounding of weights against that of activations with which the divisors of
        the best strength are improved (`ibert_tvm.quantization.balancing`); none for no attempt.
    compensate
        Round weights column by column, spreading each column's error over the later ones
        (GPTQ); otherwise to the nearest.
    centre
        Let biases make up for what rounding in two steps adds in the mean to what linear layers
        read (preset ``accurate``). It costs nothing.

    Raises
    ------
    UsageError
        If a setting is out of range; the message lists the allowed values.
    """

    alphas: tuple[float, ...] = (0.0, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8)
    balance: tuple[float, ...] = ()
    compensate: bool = True
    centre: bool = False

    def __post_init__(self) -> None:
        _check(
            bool(self.alphas) and all(0.0 <= alpha < 1.0 for alpha in self.alphas),
            f"smoothing strengths {self.alphas}",
            "each lies between no smoothing (0) and moving everything to the weights (1)",
            "use at least one number in [0, 1)",
        )
        _check(
            all(0.0 < weight < float("inf") for weight in self.balance),
            f"weights {self.balance} of the rounding of weights",
            "divisors are balanced for each of them",
            "use positive numbers, or none",
        )


def _check(right: bool, what: str, why: str, todo: str) -> None:
    if not right:
        raise UsageError(what, why=why, todo=todo)


@dataclass(frozen=True, init=False)
class CalibrationOptions:
    """How scales are chosen.

    Parameters
    ----------
    observation
        What calibration observes.
    forms
        What it may split, widen and give scales of its own.
    search
        How far it searches.
    settings
        Single settings of these groups by their own names: ``CalibrationOptions(observer="minmax",
        split_share=1 / 48)``.
    """

    observation: Observation = field(default_factory=Observation)
    forms: Forms = field(default_factory=Forms)
    search: Search = field(default_factory=Search)

    def __init__(
        self,
        observation: Observation | None = None,
        forms: Forms | None = None,
        search: Search | None = None,
        **settings: Any,
    ) -> None:
        given: dict[str, Observation | Forms | Search] = {
            "observation": observation or Observation(),
            "forms": forms or Forms(),
            "search": search or Search(),
        }
        for name, group in given.items():
            own = {f.name: settings.pop(f.name) for f in fields(group) if f.name in settings}
            object.__setattr__(self, name, replace(group, **own))
        if settings:
            raise TypeError(f"CalibrationOptions has no setting {next(iter(settings))!r}")

    def but(self, **settings: Any) -> CalibrationOptions:
        """Return the same options with other single settings."""
        return CalibrationOptions(self.observation, self.forms, self.search, **settings)

    def to_json(self) -> JsonDict:
        """Return all settings by their own names, as artefacts record them."""
        groups = (self.observation, self.forms, self.search)
        flat = {name: value for group in groups for name, value in asdict(group).items()}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in flat.items()}
