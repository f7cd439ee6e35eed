"""What a pooling multiplies tokens with, divides them by, and picks them by: decided by values.

All of it is made from the inputs, so it is compared in the probe runs (`inputs`) with what the
canonical poolings do. Rows without tokens may have any value: the canonical result is 0 there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...common.types import Array
from .inputs import Probes
from .mismatch import Mismatch
from .values import FromInputs

# What is added to padding, or put in its place, so that no token is below it.
_LOW = -1e3


def _last(mask: Array) -> NDArray[np.int64]:
    """Place of the last token of each row; the last place where there is none."""
    return mask.shape[1] - 1 - np.argmax(mask[:, ::-1] != 0, axis=1)


def _only_last(mask: Array) -> Array:
    return mask * (np.arange(mask.shape[1]) == _last(mask)[:, None])


WEIGHTS: dict[str, Callable[[Array], Array]] = {
    "mask": lambda mask: mask,
    "position": lambda mask: mask * np.arange(1, mask.shape[1] + 1),
    "last": _only_last,
}
"""Weights of tokens by what they are called here, from a mask [batch, seq_len] of 0 and 1."""

_DIVISORS: dict[tuple[str, str], Callable[[Array], Array]] = {
    ("mask", "mean_pool"): lambda total: total,
    ("mask", "sqrt_mean_pool"): np.sqrt,
    ("position", "weighted_mean_pool"): lambda total: total,
}
"""Canonical operators by the weights of a sum, and what it is divided by from their total."""


def as_token_weights(value: FromInputs, probes: Probes, shape: tuple[int, ...]) -> tuple[str, str]:
    """Tell what `value` multiplies tokens with when broadcast to [batch, seq_len, *].

    Parameters
    ----------
    value
        A factor of a hidden tensor.
    probes
        The probe runs.
    shape
        Shape of the hidden tensor, batch and sequence first.

    Returns
    -------
    input, weights : str
        The input that marks tokens, and a key of `WEIGHTS`.

    Raises
    ------
    Mismatch
        If it is anything else.
    """
    try:
        arrays = [np.broadcast_to(array, shape) for array in value.samples()]
    except ValueError as error:
        raise Mismatch(f"a factor of shape {value.shape} does not fit {shape}") from error
    for name in probes.names:
        for kind, weights in WEIGHTS.items():
            if all(
                np.array_equal(arrays[i], np.broadcast_to(expected[:, :, None], shape))
                for i in probes.binary(name)
                for expected in [weights(probes.runs[i][name])]
            ):
                return name, kind
    raise Mismatch("the factor is not the padding mask, 1 for tokens and 0 for padding")


def kept_by(condition: FromInputs, *, inverted: bool) -> FromInputs:
    """Return 1 where a condition keeps entries, and 0 elsewhere.

    Parameters
    ----------
    condition
        The condition.
    inverted
        Whether it holds where entries are replaced, not where they are kept.
    """

    def samples() -> list[Array]:
        return [(array == 0) == inverted for array in condition.samples()]

    return replace(condition, samples=samples, constant=None)


def as_filled(value: FromInputs, probes: Probes, shape: tuple[int, ...], *, inverted: bool) -> str:
    """Return the input whose padding a condition marks.

    Parameters
    ----------
    value
        A condition that selects the entries of a hidden tensor.
    probes, shape
        As for `as_token_weights`.
    inverted
        Whether it holds at padding, not at tokens.

    Raises
    ------
    Mismatch
        If it marks anything else.
    """
    name, kind = as_token_weights(kept_by(value, inverted=inverted), probes, shape)
    if kind != "mask":
        raise Mismatch("tokens are selected by something other than the padding mask")
    return name


def as_low_padding(value: FromInputs, probes: Probes, shape: tuple[int, ...]) -> str | None:
    """Return the input at whose padding `value` is very low while it is 0 at tokens; else None."""
    try:
        arrays = [np.broadcast_to(array, shape) for array in value.samples()]
    except ValueError:
        return None
    for name in probes.names:
        padding = {i: probes.runs[i][name][..., None] == 0 for i in probes.binary(name)}
        if all(
            np.all(np.where(where, arrays[i] <= _LOW, arrays[i] == 0))
            for i, where in padding.items()
        ):
            return name
    return None


def is_low(number: float | None) -> bool:
    """Tell whether padding that holds this number is no maximum."""
    return number is not None and number <= _LOW


def as_pooling(value: FromInputs, probes: Probes, name: str, weights: str) -> str:
    """Return the canonical operator that a sum of weighted tokens becomes by a division.

    Parameters
    ----------
    value
        The divisor, [batch, 1 or channels].
    probes
        The probe runs.
    name
        The input that marks tokens.
    weights
        A key of `WEIGHTS`.

    Raises
    ------
    Mismatch
        If it is no known one.
    """
    samples = value.samples()
    for index in probes.binary(name):
        array = samples[index]
        if array.ndim != 2 or array.shape[0] != probes.batch:
            raise Mismatch(f"the divisor has shape {value.shape}, not one number per row")
    for (kind, operator), divisor in _DIVISORS.items():
        if kind == weights and all(
            np.allclose(samples[i][rows], divisor(total[rows, None]), rtol=1e-6)
            and not np.any(samples[i] < 0)
            for i in probes.binary(name)
            for total in [WEIGHTS[kind](probes.runs[i][name]).sum(axis=1)]
            for rows in [total > 0]
        ):
            return operator
    raise Mismatch("the divisor is not the number of tokens in the row")


def as_last_place(value: FromInputs, probes: Probes) -> str:
    """Return the input whose last token `value` is the place of, one number per row.

    Parameters
    ----------
    value
        Indices [batch, ...] that are the same along all other axes.
    probes
        The probe runs.

    Raises
    ------
    Mismatch
        If it is another place for some mask.
    """
    samples = value.samples()
    if samples[0].ndim < 1 or samples[0].shape[0] != probes.batch:
        raise Mismatch("tokens are picked by indices that are not one per row")
    for name in probes.names:
        if all(
            np.array_equal(found, np.broadcast_to(_last(mask)[rows, None], found.shape))
            for i in probes.binary(name)
            for mask in [probes.runs[i][name]]
            for rows in [mask.any(axis=1)]
            for found in [samples[i].reshape(probes.batch, -1)[rows] % probes.seq_len]
        ):
            return name
    raise Mismatch(
        "tokens are picked by an index that is not the place of the last token for every mask, "
        "with padding in front or between too"
    )
