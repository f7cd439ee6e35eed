"""Quantise an I-BERT checkpoint with the ranges of its own training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .batches import Batch
from .observe import observe
from .options import CalibrationOptions

if TYPE_CHECKING:
    from ibert_tvm.relay_passes.quantization_table import QuantizationTable

    from ..frontend.ibert_checkpoint.quantization import IbertQuantization
    from ..frontend.model import CanonicalModel

__all__ = ["released_table"]

_logger = logging.getLogger(__name__)


def released_table(
    model: CanonicalModel,
    checkpoint: IbertQuantization,
    batches: Sequence[Batch] | None,
    options: CalibrationOptions,
    advance: Callable[[], None],
) -> tuple[QuantizationTable, dict[str, Any]]:
    """Make the table of the preset ``released``.

    Parameters
    ----------
    model : CanonicalModel
        The float model, run only where ranges are missing.
    checkpoint : IbertQuantization
        Its ranges.
    batches : sequence of Batch or None
        Calibration data for ranges that the checkpoint lacks; the others stay as they are.
    options : CalibrationOptions
        Of the calibration.
    advance : callable
        Called after every batch that is run.

    Returns
    -------
    table : QuantizationTable
        What lowering needs.
    summary : dict
        JSON-able: where the ranges come from.

    Raises
    ------
    ModelError
        If the checkpoint was not trained with quantisation, or ranges are missing and there is no
        calibration data.
    """
    missing = checkpoint.uncalibrated
    summary: dict[str, Any] = {
        "source": "the checkpoint's training",
        "ranges": len(checkpoint.ranges),
        "calibrated_here": list(missing),
        "force_dequant": checkpoint.config.force_dequant,
    }
    if batches is None or not checkpoint.trained or not missing:
        return checkpoint.table(), summary
    _logger.warning(
        "%d of %d ranges of the checkpoint are missing and taken from the calibration data: %s",
        len(missing),
        len(checkpoint.ranges),
        ", ".join(missing),
    )
    names = checkpoint.to_observe
    statistics = observe(model, batches, names, (), options.sample_tokens, options.seed, advance)
    observed = {name: entry.magnitude for name, entry in statistics.items()}
    lengths = [length for batch in batches for length in batch.lengths.tolist() if length]
    summary |= {"sequences": len(lengths), "tokens": sum(lengths)}
    return checkpoint.table(observed), summary
