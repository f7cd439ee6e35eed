"""Where the scales of a model come from: chosen by calibration, or those that it came with.

`scale_source` decides once; callers ask the source that it returns.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.relay_passes.canonical import canonical_calls, operands_of, value_name
from ibert_tvm.relay_passes.lower import Requirement, requirements
from ibert_tvm.relay_passes.quantization_table import (
    ActivationQuant,
    QuantizationTable,
    WeightQuant,
)
from ibert_tvm.relay_passes.spec.short_softmax import MOST_WIDE_KEYS

from ..common.errors import UsageError
from ..common.strict_json import JsonDict
from ..common.types import Doubles, Flags, Floats, Ints
from ..frontend.model import GivenMatrix, GivenQuantization, GivenScale
from .batches import Batch, Calibration, batches_of
from .fidelity import DEFAULT_FIDELITY, check_fidelity
from .given import GivenScales, fill_scales, missing_scales
from .observe import counter, observe, observe_and_build
from .options import CalibrationOptions
from .table import TableBuilder, TableReport
from .weights import nearest, row_scales

if TYPE_CHECKING:
    from ..frontend import CanonicalModel
    from ..frontend.ibert_checkpoint.quantization import IbertQuantization
    from ..model.tokenization import Tokenizer
    from ..model.trained_scales import TrainedScales

# Quantise a model that came with scales: use them, and calibrate only what they leave open.

# Integer weights of a model that came quantised: the source's own wherever int8 rows hold them.
#
# A row of the canonical matrix keeps the source's integers, counted from their zero point, when
# they fit int8. The others are rounded again, row by row: integers with a zero point far from the
# middle (saturated at the same scale, or with a coarser scale, whichever is nearer to the source's
# weights), matrices that the source leaves in float, scales that change within a row, more than 8
# bits.

# Half of int32: the other half is for the products.
_BIAS_LIMIT = 2.0**30


@dataclass(frozen=True)
class WeightUse:
    """How the integers of one matrix came about.

    Attributes
    ----------
    tensor
        The source's quantised tensor; empty where the source has floats.
    rows
        Rows of the matrix.
    exact
        Rows that hold the source's integers.
    why
        Why the other rows were rounded again; empty if there are none.
    """

    tensor: str
    rows: int
    exact: int
    why: str = ""


def linear_rows(
    matrix: Floats,
    given: GivenMatrix | None,
    bias: Floats,
    operand_scale: float,
    divisor: Doubles | None,
) -> tuple[WeightQuant, WeightUse]:
    """Int8 rows of a linear layer.

    Parameters
    ----------
    matrix
        float32 [N, K].
    given
        The source's integers.
    bias
        float32 [N]; a row whose bias would leave int32 gets a coarser scale.
    operand_scale
        Scale of the activation that it multiplies.
    divisor
        float64 [K]: the activation's channel divisor, which moves into the weights.

    Returns
    -------
    rows : WeightQuant
    use : WeightUse
    """
    if divisor is not None:
        moved = matrix * divisor.astype(np.float32)
        scale = row_scales(moved)
        use = WeightUse(
            given.tensor if given is not None else "",
            len(matrix),
            0,
            "the activation has a scale per channel, which moves into the weights",
        )
        return WeightQuant(nearest(moved, scale), scale), use
    values, scale, exact, why = _rows(matrix, given)
    smallest = np.abs(bias.astype(np.float64)) / _BIAS_LIMIT / operand_scale
    coarse = scale < smallest
    if coarse.any():
        scale = np.where(coarse, smallest, scale)
        values[coarse] = nearest(matrix[coarse], scale[coarse])
        exact &= ~coarse
        why = "; ".join(filter(None, (why, "the bias would leave int32")))
    tensor = given.tensor if given is not None else ""
    return WeightQuant(values, scale), WeightUse(tensor, len(matrix), int(exact.sum()), why)


def embedding_rows(
    table: Floats, given: GivenMatrix | None, rounded: GivenScale | None
) -> tuple[WeightQuant, WeightUse]:
    """Int8 rows of an embedding.

    Parameters
    ----------
    table
        float32 [V, C].
    given
        The source's integers.
    rounded
        The grid that the source rounds looked up rows to; of one scale.

    Returns
    -------
    rows : WeightQuant
    use : WeightUse
    """
    if rounded is not None and rounded.bits <= 8:
        scale, zero = float(rounded.scale), int(rounded.zero_point)
        steps = np.rint(table / np.float32(scale)).astype(np.int32)
        steps = np.clip(steps, rounded.low - zero, rounded.high - zero)
        same = (
            given is not None and (steps == given.integers).all() and (given.scale == scale).all()
        )
        tensor = given.tensor if given is not None and same else rounded.tensor
        whole = np.full(len(table), scale)
        given = GivenMatrix(steps, whole, np.ones(len(table), np.bool_), tensor)
        table = (steps * scale).astype(np.float32)
    values, scales, exact, why = _rows(table, given)
    tensor = given.tensor if given is not None else ""
    return WeightQuant(values, scales), WeightUse(tensor, len(table), int(exact.sum()), why)


def _rows(
    matrix: Floats, given: GivenMatrix | None
) -> tuple[NDArray[np.int8], Doubles, Flags, str]:
    """Integers and scales per row, which rows are the source's, and why others are not."""
    count = len(matrix)
    if given is None:
        scale = row_scales(matrix)
        return nearest(matrix, scale), scale, np.zeros(count, np.bool_), "floats in the source"
    values = np.zeros(matrix.shape, np.int8)
    scale = np.ones(count)
    usable = given.found & np.isfinite(given.scale) & (given.scale > 0)
    fits = (given.integers.min(axis=1) >= -128) & (given.integers.max(axis=1) <= 127)
    exact = usable & fits
    values[exact] = given.integers[exact].astype(np.int8)
    scale[exact] = given.scale[exact]
    reasons = []
    lost = usable & ~fits
    if lost.any():
        values[lost], scale[lost] = _squeezed(given.integers[lost], given.scale[lost])
        reasons.append("integers beyond int8, counted from their zero point")
    rest = ~usable
    if rest.any():
        scale[rest] = row_scales(matrix[rest])
        values[rest] = nearest(matrix[rest], scale[rest])
        reasons.append("no single scale for the row in the source")
    return values, scale, exact, "; ".join(reasons)


def _squeezed(integers: Ints, scale: Doubles) -> tuple[NDArray[np.int8], Doubles]:
    """Rows beyond int8: saturated or coarser, whichever has the smaller squared error per row."""
    integers = integers.astype(np.int64)
    clipped = np.clip(integers, -128, 127)
    factor = np.abs(integers).max(axis=1) / 127.0
    coarse = np.rint(integers / factor[:, None])
    clip_error = ((clipped - integers) ** 2).sum(axis=1)
    coarse_error = ((coarse * factor[:, None] - integers) ** 2).sum(axis=1)
    better = clip_error <= coarse_error
    values = np.where(better[:, None], clipped, coarse).astype(np.int8)
    return values, np.where(better, scale, scale * factor)


@dataclass(frozen=True)
class SourceScales:
    """Where the scales and integers of a table come from.

    Attributes
    ----------
    scales
        What the source gave, and what was done with it.
    weights
        By canonical name of the linear or embedding op.
    calibrated
        Canonical names whose scales were estimated, by section of the table.
    report
        Of the calibration, if there was one.
    widened
        Whether roundings to 8 bits were left out where no matrix product reads them.
    """

    scales: GivenScales
    weights: Mapping[str, WeightUse]
    calibrated: Mapping[str, Sequence[str]]
    report: TableReport | None
    widened: bool = False

    def to_json(self, given: GivenQuantization) -> JsonDict:
        """Return the record of the artefact.

        Parameters
        ----------
        given
            What the source came with.

        Returns
        -------
        dict
            ``file``: the source's tensor by section and value; ``calibrated``: values by section;
            ``notes``: scales that are not used as they are; ``weights``: per layer the rows, how
            many of them are the source's integers, and why others are not; ``ignored``: roundings
            of the source that belong to no value; ``centred_keys``; ``widened``.
        """
        sections: dict[str, dict[str, str]] = {"matmul": {}, "stream": {}, "grids": {}}
        for key, tensor in self.scales.tensors.items():
            section, _, value = key.partition(" ")
            sections[section][value] = tensor
        return {
            "file": {
                **sections,
                "embeddings": {k: v.tensor for k, v in self.scales.tables.items()},
            },
            "widened": self.widened,
            "calibrated": {section: list(names) for section, names in self.calibrated.items()},
            "notes": [asdict(note) for note in self.scales.notes],
            "weights": {name: asdict(use) for name, use in self.weights.items()},
            "ignored": [asdict(edge) for edge in given.edges if edge.use != "value"],
            "centred_keys": list(given.centred_keys),
        }


_logger = logging.getLogger(__name__)

ACCURATE, RELEASED = "accurate", "released"

Progress = Callable[[int, int], None]
Chosen = tuple[QuantizationTable, JsonDict]
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
        batches, options = data.batches(self.model), data.options
        table, source = self._complete(options, batches, data.progress)
        summary: JsonDict = {}
        if source.report is not None:
            summary = _summary(batches, options, source.report)
        return table, {**summary, "source_scales": source.to_json(self.given)}

    def _complete(
        self, options: CalibrationOptions, batches: Sequence[Batch], progress: Progress | None
    ) -> tuple[QuantizationTable, SourceScales]:
        """Build the table: the model's scales, and those that it lacks by calibration.

        Raises
        ------
        UsageError
            If scales are missing and there is no calibration data; lists them.
        """
        model, given, preset = self.model, self.given, self.preset
        needed = requirements(model.module, preset)
        scales = fill_scales(given, needed, options.forms.widen)
        estimated = QuantizationTable(preset)
        report: TableReport | None = None
        if scales.missing:
            if not batches:
                raise missing_scales(scales, given)
            still_open = {
                name: replace(
                    value,
                    matmul=value.matmul and name not in scales.matmul,
                    stream=value.stream and name not in scales.stream,
                )
                for name, value in needed.items()
            }
            # Integers that came with the model are of numbers that nothing is taken off.
            options = options.but(value_offsets=False)
            builder = TableBuilder(still_open, model.parameters, preset, options, given.matrices)
            estimated, report = observe_and_build(model, batches, builder, progress)
        matmul = {**estimated.matmul, **scales.matmul}
        weights, embeddings, uses = self._weights(scales, needed, matmul, estimated)
        table = QuantizationTable(
            preset, matmul, {**estimated.stream, **scales.stream}, weights, embeddings, scales.grids
        )
        calibrated = {
            section: [item.value for item in scales.missing if item.section == section]
            for section in ("matmul", "stream")
        }
        return table, SourceScales(scales, uses, calibrated, report, options.forms.widen)

    def _weights(
        self,
        scales: GivenScales,
        needed: Mapping[str, Requirement],
        matmul: Mapping[str, ActivationQuant],
        estimated: QuantizationTable,
    ) -> tuple[dict[str, WeightQuant], dict[str, WeightQuant], dict[str, WeightUse]]:
        model, given = self.model, self.given
        operand = {layer: value.name for value in needed.values() for layer in value.layers}
        weights: dict[str, WeightQuant] = {}
        embeddings: dict[str, WeightQuant] = {}
        uses: dict[str, WeightUse] = {}
        for _, call in canonical_calls(model.module):
            name = value_name(call)
            if name not in needed:
                continue
            value = needed[name]
            if value.section == "embeddings":
                table = model.parameters[value.weight]
                embeddings[name], uses[name] = embedding_rows(
                    table, given.matrices.get(name), scales.tables.get(name)
                )
            elif value.section == "weights":
                if name in estimated.weights and name not in given.matrices:
                    weights[name] = estimated.weights[name]
                    rows = len(weights[name].values)
                    uses[name] = WeightUse(
                        "", rows, 0, "floats in the source, rounded in calibration"
                    )
                    continue
                quant = matmul[operand[name]]
                weights[name], uses[name] = linear_rows(
                    model.parameters[value.weight],
                    given.matrices.get(name),
                    model.parameters[operands_of(call)["bias"].name],
                    quant.scale,
                    quant.channel_divisor,
                )
        return weights, embeddings, uses


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
