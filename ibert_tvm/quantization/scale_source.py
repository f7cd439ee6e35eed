"""Where the scales of a model come from: chosen by calibration, or those that it came with.

`scale_source` decides once; callers ask the source that it returns.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ibert_tvm.relay_passes.spec.short_softmax import MOST_WIDE_KEYS

from ..common.errors import UsageError
from ..common.strict_json import JsonDict
from .batches import Batch, Calibration, batches_of
from .fidelity import DEFAULT_FIDELITY, check_fidelity
from .observe import counter, observe, observe_and_build
from .options import CalibrationOptions
from .table import TableBuilder, TableReport

if TYPE_CHECKING:
    from ibert_tvm.relay_passes.quantization_table import QuantizationTable

    from ..frontend import CanonicalModel
    from ..frontend.given import GivenQuantization
    from ..frontend.ibert_checkpoint.quantization import IbertQuantization
    from ..model.tokenization import Tokenizer
    from ..model.trained_scales import TrainedScales

_logger = logging.getLogger(__name__)

ACCURATE, RELEASED = "accurate", "released"

Progress = Callable[[int, int], None]
Chosen = tuple["QuantizationTable", JsonDict]
"""What lowering needs, and a JSON-able summary of how it was chosen."""


@dataclass(frozen=True)
class CalibrationData:
    """What a source may choose scales from; parameters as of `quantize`."""

    given: Calibration | None
    options: CalibrationOptions
    tokenizer: Tokenizer | None = None
    progress: Progress | None = None

    def batches(self, model: CanonicalModel) -> list[Batch]:
        """Checked batches for a model; none if there are no data. Errors as of `quantize`."""
        if self.given is None:
            return []
        return batches_of(model, self.given, self.options.observation, self.tokenizer)


@dataclass(frozen=True)
class ScaleSource(ABC):
    """Where the scales of one model come from.

    Attributes
    ----------
    model
        The float model.
    preset
        Numerics that it is lowered with.
    """

    model: CanonicalModel
    preset: str

    needs_data = False
    """Whether there are no scales without calibration data."""

    @property
    def fixed(self) -> str:
        """Why a fidelity cannot be chosen; empty where it can."""
        return "it came with its scales"

    def fidelity(self, asked: str | None) -> str | None:
        """Return the fidelity to calibrate with: None where there is nothing to choose.

        Raises
        ------
        UsageError
            If one is asked for in vain, or is unknown.
        """
        if not self.fixed:
            return DEFAULT_FIDELITY if asked is None else check_fidelity(asked)
        if asked is None:
            return None
        raise UsageError(
            f"the fidelity {asked!r} for a model whose arithmetic leaves no choice",
            why=self.fixed,
            todo=f"leave it out, or use the preset {ACCURATE}",
        )

    @abstractmethod
    def choose(self, data: CalibrationData) -> Chosen:
        """Return all scales and integer weights; errors as of `quantize`."""


def scale_source(
    model: CanonicalModel, preset: str | None = None, calibrated: bool = False
) -> ScaleSource:
    """Decide where the scales of a model come from.

    Parameters
    ----------
    model
        From `ibert_tvm.load`.
    preset
        Numerics that are asked for.
    calibrated
        Whether there is calibration data.

    Raises
    ------
    UsageError
        If the preset is that of a checkpoint that was trained with quantisation, and this is none.
    """
    trained, released = model.trained, model.released
    if trained is not None and not calibrated and preset in (None, trained.preset):
        return Trained(model, trained.preset, trained)
    if preset is None and released is not None and (released.trained or not calibrated):
        preset = RELEASED
    if preset == RELEASED:
        if released is None:
            raise UsageError(
                f"the preset {RELEASED} cannot quantise this model",
                why="its scales are those of a checkpoint of transformers' ibert; this is a "
                f"{model.info.architecture} model",
                todo="use the preset accurate or paper",
            )
        return Released(model, preset, released)
    if model.given is not None:
        return Given(model, preset or ACCURATE, model.given)
    return Calibrated(model, preset or ACCURATE)


class Calibrated(ScaleSource):
    """Scales that calibration chooses."""

    needs_data = True

    @property
    def fixed(self) -> str:
        if self.preset == ACCURATE:
            return ""
        return f"the preset {self.preset} is computed as it was published"

    def choose(self, data: CalibrationData) -> Chosen:
        from ibert_tvm.relay_passes.lower import requirements

        if data.given is None:
            raise UsageError(
                "there is no calibration data",
                why=f"with the preset {self.preset} scales are chosen by running texts through the "
                "model",
                todo="give a list of texts, or a list of batches",
            )
        needed, options = requirements(self.model.module, self.preset), data.options
        batches = data.batches(self.model)
        longest = self.model.info.max_sequence_length
        if longest is not None and longest > MOST_WIDE_KEYS:
            options = options.but(wide_values=False)
        builder = TableBuilder(needed, self.model.parameters, self.preset, options)
        table, report = observe_and_build(self.model, batches, builder, data.progress)
        return table, _summary(batches, options, report)


@dataclass(frozen=True)
class Given(ScaleSource):
    """Scales of a model that came quantised; calibration chooses those that are missing."""

    given: GivenQuantization

    def choose(self, data: CalibrationData) -> Chosen:
        from .complete import complete

        batches, options = data.batches(self.model), data.options
        table, source = complete(
            self.model, self.given, self.preset, options, batches, data.progress
        )
        summary: JsonDict = {}
        if source.report is not None:
            summary = _summary(batches, options, source.report)
        return table, {**summary, "source_scales": source.to_json(self.given)}


@dataclass(frozen=True)
class Released(ScaleSource):
    """Ranges of an I-BERT checkpoint; those that it lacks are taken from calibration data."""

    checkpoint: IbertQuantization

    def choose(self, data: CalibrationData) -> Chosen:
        checkpoint, missing = self.checkpoint, self.checkpoint.uncalibrated
        batches, seen = data.batches(self.model), data.options.observation
        summary: JsonDict = {
            "source": "the checkpoint's training",
            "ranges": len(checkpoint.ranges),
            "calibrated_here": list(missing),
            "force_dequant": checkpoint.config.force_dequant,
        }
        if not batches or not checkpoint.trained or not missing:
            return checkpoint.table(), summary
        _logger.warning(
            "%d of %d ranges of the checkpoint are missing and taken from the calibration data: %s",
            len(missing),
            len(checkpoint.ranges),
            ", ".join(missing),
        )
        advance = counter(data.progress, len(batches))
        statistics = observe(self.model, batches, checkpoint.to_observe, (), seen, advance)
        observed = {name: entry.magnitude for name, entry in statistics.items()}
        lengths = _lengths(batches)
        summary |= {"sequences": len(lengths), "tokens": sum(lengths)}
        return checkpoint.table(observed), summary


@dataclass(frozen=True)
class Trained(ScaleSource):
    """Scales that a model was trained with (`ibert_tvm.train`)."""

    scales: TrainedScales

    def choose(self, data: CalibrationData) -> Chosen:
        from ibert_tvm.relay_passes.lower import requirements

        needed = requirements(self.model.module, self.preset)
        table = self.scales.table(needed, self.model.parameters)
        return table, {"source": "the scales of its training"}


def _lengths(batches: Sequence[Batch]) -> list[int]:
    return [length for batch in batches for length in batch.lengths.tolist() if length]


def _summary(
    batches: Sequence[Batch], options: CalibrationOptions, report: TableReport
) -> JsonDict:
    """What was calibrated on, and what was chosen."""
    lengths = _lengths(batches)
    _logger.info("calibrated on %d sequences, %d tokens", len(lengths), sum(lengths))
    return {
        "sequences": len(lengths),
        "tokens": sum(lengths),
        "longest": max(lengths),
        "options": options.to_json(),
        "smoothing": report.alphas,
        "output_errors": report.errors,
        "row_scales": report.by_row,
        **({"coarser_queries": report.coarser} if report.coarser else {}),
    }
