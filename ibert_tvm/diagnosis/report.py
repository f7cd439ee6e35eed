"""What a diagnosis says. An error is 1 - cosine of the output to that of the float model."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..common.strict_json import JsonDict


@dataclass(frozen=True)
class Loss:
    """What one kind of rounding, of integer weights or of integer operators costs.

    Attributes
    ----------
    what
        "rounding" (and clipping), "weights" or "embeddings" (in integers), "requantisation" (what
        its integers differ by from rounding), or "operator" (what an integer operator differs by
        from the float one on the same numbers).
    where
        Operators of the float model: what yields the value, and what reads it.
    places
        Of the model that are of this kind.
    noise
        Sum over the places of squared error over squared value.
    alone, alone_max
        Mean and largest error of the float model with this alone; None where the noise is so small
        that it was not measured.
    without
        Mean error of the integer model without this; None where it was not measured.
    """

    what: str
    where: str
    places: int
    noise: float
    alone: float | None = None
    alone_max: float | None = None
    without: float | None = None


@dataclass(frozen=True)
class ValueLoss:
    """One integer form of a value.

    Attributes
    ----------
    value, form
        Canonical name; native, matmul, stream, term or grid.
    rounding_snr, operator_snr
        Signal over noise in dB, of rounding the value to this form, and of the integer operators
        that make it; None for no noise at all.
    snr
        Of the value in the integer model, with all the errors before it.
    clipped
        Share of entries beyond the ends of the range.
    constant
        Share of the operators' squared error that is the same for every token, which averages
        out nowhere.
    alone, without
        Mean error of the float model with this place in integers alone, of the integer model
        without it; None where that was not measured.
    """

    value: str
    form: str
    rounding_snr: float | None
    operator_snr: float | None
    snr: float | None
    clipped: float
    constant: float
    alone: float | None = None
    without: float | None = None


@dataclass(frozen=True)
class WorstText:
    """A text with a large error.

    Attributes
    ----------
    text
    error
        Of the integer model.
    what, where
        The kind of loss that is largest alone for this text.
    alone
        Its error alone.
    value
        Of that kind, the value with the least signal over noise in this text.
    clipped_value
        The value of which the largest share is clipped in this text, if one is.
    clipped
        That share.
    """

    text: str
    error: float
    what: str
    where: str
    alone: float
    value: str
    clipped_value: str | None
    clipped: float


@dataclass(frozen=True)
class Suggestion:
    """Something to do, tried on the integer model.

    Attributes
    ----------
    change
        What was changed, and how to have it.
    error
        Mean error of the integer model with it.
    """

    change: str
    error: float


@dataclass(frozen=True)
class Diagnosis:
    """Where an integer model loses quality.

    Attributes
    ----------
    texts, tokens
        What was measured on.
    output
        The output that is compared; hidden states are mean-pooled.
    error, error_max
        Mean and largest error of the integer model.
    rounding, computing
        Mean error of rounding and clipping alone, everywhere, and of integer weights and operators
        alone; what `error` is beyond their sum comes from both together.
    losses
        Largest alone first.
    values
        In the order of the model.
    worst
    suggestions
        Smallest error first.
    complete
        False where it was interrupted: what was not measured is None.
    """

    texts: int
    tokens: int
    output: str
    error: float
    error_max: float
    rounding: float | None
    computing: float | None
    losses: tuple[Loss, ...]
    values: tuple[ValueLoss, ...]
    worst: tuple[WorstText, ...]
    suggestions: tuple[Suggestion, ...]
    complete: bool

    def to_json(self) -> JsonDict:
        """Return nested dictionaries and lists."""
        return asdict(self)
