"""How close an integer model is to come to its float original, and at what cost."""

from __future__ import annotations

from typing import Any

from ..common.errors import check_choice
from .options import CalibrationOptions

_FAST: dict[str, Any] = {}
_DEFAULT: dict[str, Any] = {
    # Texts of later use go further than those of calibration, and what is clipped there is lost:
    # that costs single texts more than all others gain by a finer scale.
    "observer": "minmax",
    "channel_zero_points": True,
    "centre": True,
    "fine_tables": True,
    # Divisors that smoothing's strengths cannot reach, and what costs nothing on top.
    "balance": (0.1, 0.3, 1.0),
    "value_offsets": True,
    # All tokens attend to the first one, which hardly depends on the text.
    "first_tokens": True,
    # Nothing averages out what rounding does to the values of a short text. Their products are
    # few beside those of the layers.
    "wide_values": True,
    # Special tokens of short texts, and single texts, go further than sentences.
    "short_pieces": True,
    "margin": 1.2,
    # In columns by which kernels pad the inner dimension, or a few more.
    "split_share": 1 / 48,
    "sample_tokens": 4096,
}
_BEST: dict[str, Any] = {
    **_DEFAULT,
    # Nothing of what matrices read is rounded to speak of, so the weights are: smoothing leaves
    # them as they are best.
    "wide_operands": True,
}
_QUICK: dict[str, Any] = {
    **_DEFAULT,
    # The form of `default`, one pass over some of the texts, and no search.
    "most_texts": 120,
    "sample_tokens": 512,
    "alphas": (0.6,),
    "balance": (),
    "compensate": False,
}
_LEVELS = {"fast": _FAST, "quick": _QUICK, "default": _DEFAULT, "best": _BEST}

FIDELITIES = tuple(_LEVELS)
"""From the least effort at run time to the most."""

DEFAULT_FIDELITY = "default"
FIRST_FIDELITY = "quick"
"""Of a model that is refined later."""
PLAIN_FIDELITY = "fast"
"""Of presets and sources that leave no choice."""


def check_fidelity(name: str) -> str:
    """Return the name of a fidelity; refuse others with a `UsageError`."""
    why = "it says how close the integers are to come to the float model"
    check_choice("fidelity", name, FIDELITIES, why)
    return name


def options_of(fidelity: str, **changes: Any) -> CalibrationOptions:
    """Return the settings of a fidelity.

    Parameters
    ----------
    fidelity
        One of `FIDELITIES`. ``fast``: a scale per value, chosen for the smallest mean error.
        ``quick``: the forms of ``default``, quantised in half of the time.
        ``default``: zero points per channel, which leave the first tokens of texts as they are,
        biases that make up for rounding, ranges that clip nothing of what calibration saw, split
        channels, tables of positions in 16 bits. ``best``: the same, but for what linear layers
        read, which has up to 15 bits: twice as many products where the target multiplies bytes.
    changes
        Fields of `CalibrationOptions` that are to be others.
    """
    return CalibrationOptions(**{**_LEVELS[fidelity], **changes})
