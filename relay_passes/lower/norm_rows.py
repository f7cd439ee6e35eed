"""What norms ask of their operand where their rows are heads of a token."""

from __future__ import annotations

from dataclasses import replace

from tvm import relax

from ..quantization_table import ActivationQuant
from ..spec.presets import Preset
from ..spec.short_layer_norm import INPUT_LIMIT
from .forms import Form
from .rule import Need

# What calibration saw next to nothing of still gets a range, in which epsilon has less than 40
# bits.
_SMALLEST = 2.0**-6


def short_rows(largest: float) -> ActivationQuant:
    """Quantise rows in 15 bits, which the norm takes without products of 64 bits."""
    return ActivationQuant(max(largest, _SMALLEST) / INPUT_LIMIT, -INPUT_LIMIT, INPUT_LIMIT)


def fits_short(source: Form, rows: ActivationQuant | None) -> bool:
    """Tell whether a norm of 15 bits, which clamps its operand, loses nothing of it.

    Parameters
    ----------
    source : Form
        The operand.
    rows : ActivationQuant, optional
        What the table has for it, if its rows are heads: a requantisation may leave the clamp to
        its reader.

    Returns
    -------
    bool
    """
    magnitude = source.magnitude
    if rows is not None and rows.scale == source.scale[0]:
        magnitude = min(magnitude, max(-rows.low, rows.high))
    return magnitude <= INPUT_LIMIT


def need_of_rows(need: Need, call: relax.Call, preset: Preset) -> Need:
    """Return what a norm needs: of heads, which matrix products yield, rows of 15 bits.

    Rows that are tokens are sums, as a rule, and come as such.

    Parameters
    ----------
    need : Need
        Of a norm of tokens.
    call : relax.Call
        The norm; its second operand is gamma.
    preset : Preset
        Whether there is a form of 15 bits.

    Returns
    -------
    Need
    """
    by_head = len(call.args[1].ty.shape.values) > 1
    return replace(need, stream_for=short_rows) if by_head and preset.short else need
