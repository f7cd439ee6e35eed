"""What `ibert eval --why` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .tables import Table

if TYPE_CHECKING:
    from ..diagnosis import Diagnosis

TEXTS = 8
"""Texts that a diagnosis takes by default, spread over the file."""

_UNIT = 1e4
_LONGEST = 60


def shown(result: Diagnosis) -> list[str | Table]:
    """Return the lines and tables of a diagnosis."""
    error = result.error
    head = (
        f"{result.texts} texts, {result.tokens} tokens, output {result.output}; "
        "errors are 1 - cosine to the float model, in 1e-4"
    )
    parts = [
        ("the integer model, mean", _number(error)),
        ("the integer model, worst text", _number(result.error_max)),
        ("rounding and clipping alone", _number(result.rounding)),
        ("integer weights and operators alone", _number(result.computing)),
    ]
    if result.rounding is not None and result.computing is not None:
        both = error - result.rounding - result.computing
        parts.append(("both together, beyond their sum", _number(both)))
    lines: list[str | Table] = [head, Table((), parts)]
    losses = [loss for loss in result.losses if loss.alone is not None]
    if losses:
        rows = [
            (
                loss.what,
                loss.where,
                str(loss.places),
                _number(loss.alone),
                _number(loss.alone_max),
                _gain(error, loss.without),
            )
            for loss in losses
        ]
        titles = ("what", "where", "places", "alone", "worst text", "gained without")
        lines += ["", Table(titles, rows)]
        rest = len(result.losses) - len(losses)
        if rest:
            lines.append(f"{rest} more kinds have too little noise to matter; --json has them")
    values = sorted(
        (value for value in result.values if value.alone is not None),
        key=lambda value: -(value.alone or 0.0),
    )
    if values:
        cells = [
            (
                f"{value.value} ({value.form})",
                _decibels(value.rounding_snr),
                _decibels(value.operator_snr),
                _decibels(value.snr),
                f"{value.clipped:.2%}",
                f"{value.constant:.0%}",
                _number(value.alone),
                _gain(error, value.without),
            )
            for value in values
        ]
        titles_of_values = (
            "value",
            "rounding dB",
            "operator dB",
            "all dB",
            "clipped",
            "constant",
            "alone",
            "gained without",
        )
        lines += ["", Table(titles_of_values, cells)]
    if result.worst:
        texts = [
            (
                _short(text.text),
                _number(text.error),
                f"{text.what}: {text.where} ({_number(text.alone)})",
                text.value,
                f"{text.clipped_value} {text.clipped:.2%}" if text.clipped_value else "-",
            )
            for text in result.worst
        ]
        titles_of_texts = ("worst texts", "error", "most of it", "value", "most clipped")
        lines += ["", Table(titles_of_texts, texts)]
    if result.suggestions:
        tried = [(_number(item.error), item.change) for item in result.suggestions]
        lines += ["", Table(("error", f"tried instead of {_number(error)}"), tried)]
    if not result.complete:
        lines += ["", "interrupted: not everything was measured"]
    return lines


def _number(error: float | None) -> str:
    return "-" if error is None else f"{error * _UNIT:.2f}"


def _gain(error: float, without: float | None) -> str:
    return "-" if without is None else f"{(error - without) * _UNIT:+.2f}"


def _decibels(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
