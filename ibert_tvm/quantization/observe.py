"""Run the float model over calibration batches and collect statistics of its values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..common.errors import ModelError
from .batches import Batch, packed
from .in_order import in_order
from .observers import Statistics

if TYPE_CHECKING:
    from ibert_tvm.relay_passes.quantization_table import QuantizationTable

    from ..frontend import CanonicalModel
    from .options import Observation
    from .table import TableBuilder, TableReport


def sampled_positions(batches: Sequence[Batch], count: int, seed: int) -> list[NDArray[np.bool_]]:
    """Choose the tokens whose whole rows are kept.

    Every sequence counts alike: a token of a sequence of n tokens is drawn with a weight of 1/n.
    Otherwise the special tokens, whose activations differ most and which dominate short texts,
    would hardly be among them.

    Parameters
    ----------
    batches
        All batches.
    count
        Tokens to keep, at most.
    seed
        Of the choice.

    Returns
    -------
    list of numpy.ndarray
        Per batch, bool [batch, seq_len].
    """
    rng = np.random.default_rng(seed)
    # The smallest of exponential variables with rates 1/n are a weighted draw without repetition.
    keys = [
        np.where(
            batch.mask, rng.exponential(size=batch.mask.shape) * batch.lengths[:, None], np.inf
        )
        for batch in batches
    ]
    flat = np.sort(np.concatenate([key.ravel() for key in keys]))
    limit = flat[min(count, flat.size) - 1]
    return [(key <= limit) & np.isfinite(key) for key in keys]


def observe(
    model: CanonicalModel,
    batches: Sequence[Batch],
    names: Iterable[str],
    sampled: Iterable[str],
    options: Observation,
    advance: Callable[[], None],
) -> dict[str, Statistics]:
    """Collect statistics of named values; padding takes no part.

    Parameters
    ----------
    model
        The float model.
    batches
        Calibration data.
    names
        Canonical names of the values.
    sampled
        Those of them of which whole rows are kept.
    options
        Sample size and seed, see `sampled_positions`.
    advance
        Called as many times as there are batches.

    Raises
    ------
    ModelError
        If a value is infinite or not a number.
    """
    from ibert_tvm.relay_passes.canonical import FloatModel

    statistics = {name: Statistics() for name in names}
    with_rows = set(sampled)
    float_model = FloatModel(model.module, model.parameters, list(statistics))
    chosen = sampled_positions(batches, options.sample_tokens, options.seed)

    def see(part: tuple[Batch, NDArray[np.bool_]]) -> dict[str, Statistics]:
        batch, positions = part
        whole = bool(batch.mask.all())
        inputs = {name: batch.inputs[name] for name in float_model.input_names}
        seen = {name: Statistics() for name in statistics}
        for name, value in float_model.captured(inputs):
            mask, chosen_here = batch.mask, positions
            if value.ndim == 3:
                mask, chosen_here = (_as_long(part, value.shape[1]) for part in (mask, positions))
            if value.ndim == 3:
                kept = value[chosen_here] if name in with_rows else value[:0, 0]
                real = value.reshape(-1, value.shape[2]) if whole else value[mask]
                seen[name].update(real, kept, value[:, 0][mask[:, 0]])
            else:  # one vector per sequence: few enough to keep all
                seen[name].update(value, value.copy())
            _check_finite(name, seen[name])
        return seen

    parts = list(packed(batches, chosen))
    told = 0
    for done, seen in enumerate(in_order(see, parts), 1):
        for name, entry in statistics.items():
            entry.merge(seen[name])
        while told * len(parts) < done * len(batches):
            told += 1
            advance()
    return statistics


def _as_long(tokens: NDArray[np.bool_], length: int) -> NDArray[np.bool_]:
    """Return what is known of tokens for a value with more or fewer of them.

    Only images and features have such, without padding: patches are fewer before the first token
    was prepended, and frames are more before a convolution left some out.
    """
    return np.tile(tokens, (1, -(-length // tokens.shape[1])))[:, -length:]


def _check_finite(name: str, seen: Statistics) -> None:
    if np.isfinite(seen.channel_magnitude).all():  # minima and maxima keep what is no number
        return
    raise ModelError(
        "the float model computes values that are infinite or not a number",
        where=name,
        why="on real tokens of the calibration data",
        todo="check the checkpoint: run the source model on the same texts",
    )


def observe_and_build(
    model: CanonicalModel,
    batches: Sequence[Batch],
    builder: TableBuilder,
    progress: Callable[[int, int], None] | None,
) -> tuple[QuantizationTable, TableReport]:
    """Run the batches through the model and let a builder choose the scales.

    Parameters
    ----------
    model
        Float model.
    batches
        Calibration data.
    builder
        Says what is to be observed, and chooses.
    progress
        Called with the steps done and the number of steps.

    Returns
    -------
    table : QuantizationTable
    report : TableReport
    """
    advance = counter(progress, len(batches) + len(builder.operands))
    seen = builder.options.observation
    statistics = observe(model, batches, builder.observed, builder.sampled, seen, advance)
    return builder.build(statistics, advance)


def counter(progress: Callable[[int, int], None] | None, steps: int) -> Callable[[], None]:
    """Return what is called after each of so many steps, and tells `progress`, if there is one."""
    done = itertools.count(1)

    def advance() -> None:
        if progress is not None:
            progress(next(done), steps)

    return advance
