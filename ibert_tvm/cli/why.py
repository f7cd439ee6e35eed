"""What `ibert eval --why` shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .tables import Table, table_of

if TYPE_CHECKING:
    from ..diagnosis import Diagnosis, Loss, ValueLoss, WorstText

TEXTS = 8
"""Texts that a diagnosis takes by default, spread over the file."""

MOST = 5
"""Causes of loss, or layers, that are shown unless all are asked for."""
_UNIT = 1e4
_LONGEST = 60


def shown(result: Diagnosis, every: bool = False) -> list[str | Table]:
    """Return the lines and tables of a diagnosis: of the largest losses, or of every one."""
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
        columns_of_losses: dict[str, Callable[[Loss], str]] = {
            "what": lambda loss: loss.what,
            "where": lambda loss: loss.where,
            "places": lambda loss: str(loss.places),
            "alone": lambda loss: _number(loss.alone),
            "worst text": lambda loss: _number(loss.alone_max),
            "gained without": lambda loss: _gain(error, loss.without),
        }
        kept = losses if every else losses[:MOST]
        lines += ["", table_of(kept, columns_of_losses)]
        if rest := len(result.losses) - len(kept):
            lines.append(f"{rest} more cost less: --all shows those that were measured, --json all")
    values = sorted(
        (value for value in result.values if value.alone is not None),
        key=lambda value: -(value.alone or 0.0),
    )
    if values:
        columns_of_values: dict[str, Callable[[ValueLoss], str]] = {
            "value": lambda value: f"{value.value} ({value.form})",
            "rounding dB": lambda value: _decibels(value.rounding_snr),
            "operator dB": lambda value: _decibels(value.operator_snr),
            "all dB": lambda value: _decibels(value.snr),
            "clipped": lambda value: f"{value.clipped:.2%}",
            "constant": lambda value: f"{value.constant:.0%}",
            "alone": lambda value: _number(value.alone),
            "gained without": lambda value: _gain(error, value.without),
        }
        lines += ["", table_of(values, columns_of_values)]
    if result.worst:
        columns_of_texts: dict[str, Callable[[WorstText], str]] = {
            "worst texts": lambda text: _short(text.text),
            "error": lambda text: _number(text.error),
            "most of it": lambda text: f"{text.what}: {text.where} ({_number(text.alone)})",
            "value": lambda text: text.value,
            "most clipped": lambda text: (
                f"{text.clipped_value} {text.clipped:.2%}" if text.clipped_value else "-"
            ),
        }
        lines += ["", table_of(result.worst, columns_of_texts)]
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
