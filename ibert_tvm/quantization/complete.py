"""Quantise a model that came with scales: use them, and calibrate only what they leave open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from ibert_tvm.relay_passes.canonical import canonical_calls, operands_of, value_name
from ibert_tvm.relay_passes.lower import Requirement, requirements
from ibert_tvm.relay_passes.quantization_table import (
    ActivationQuant,
    QuantizationTable,
    WeightQuant,
)

from ..common.strict_json import JsonDict
from ..frontend.given import GivenQuantization
from .batches import Batch
from .given import GivenScales, fill_scales, missing_scales
from .given_weights import WeightUse, embedding_rows, linear_rows
from .observe import observe_and_build
from .options import CalibrationOptions
from .table import TableBuilder, TableReport

if TYPE_CHECKING:
    from ..frontend import CanonicalModel


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


def complete(
    model: CanonicalModel,
    given: GivenQuantization,
    preset: str,
    options: CalibrationOptions,
    batches: Sequence[Batch],
    progress: Callable[[int, int], None] | None,
) -> tuple[QuantizationTable, SourceScales]:
    """Build the table of a model that came quantised.

    Parameters
    ----------
    model
        The model.
    given
        Its scales and integers.
    preset
        "accurate" or "paper".
    options
        How missing scales are estimated.
    batches
        Calibration data; none if there are no such data.
    progress
        Called with the steps done and the steps there are.

    Returns
    -------
    table : QuantizationTable
    source : SourceScales

    Raises
    ------
    UsageError
        If scales are missing and there is no calibration data; lists them.
    """
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
    weights, embeddings, uses = _weights(model, given, scales, needed, matmul, estimated)
    table = QuantizationTable(
        preset, matmul, {**estimated.stream, **scales.stream}, weights, embeddings, scales.grids
    )
    calibrated = {
        section: [item.value for item in scales.missing if item.section == section]
        for section in ("matmul", "stream")
    }
    return table, SourceScales(scales, uses, calibrated, report, options.forms.widen)


def _weights(
    model: CanonicalModel,
    given: GivenQuantization,
    scales: GivenScales,
    needed: Mapping[str, Requirement],
    matmul: Mapping[str, ActivationQuant],
    estimated: QuantizationTable,
) -> tuple[dict[str, WeightQuant], dict[str, WeightQuant], dict[str, WeightUse]]:
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
                uses[name] = WeightUse("", rows, 0, "floats in the source, rounded in calibration")
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
