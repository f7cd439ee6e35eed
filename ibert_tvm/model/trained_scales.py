"""The scales of a model in training: what stays while its weights change, and its file.

Integer weights follow from float weights and these scales by rounding to the nearest, here and
nowhere else: in every step of a training, and when `ibert quantize` reads what was trained. So both
have the same integers. This module needs neither torch nor what it trains with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.relay_passes.spec import nibbles

from ..common import strict_json
from ..common.errors import DocumentError, ModelError
from ..common.schema import FLAG, INTEGER, SCALE, STRING, check, integer, one_of
from ..common.strict_json import JsonDict, shown
from ..common.types import Doubles, Floats, Longs, Weights

if TYPE_CHECKING:
    from ibert_tvm.relay_passes.lower import Requirement
    from ibert_tvm.relay_passes.quantization_table import (
        ActivationQuant,
        QuantizationTable,
        WeightQuant,
    )

# How float weights become integers of known scales: to the nearest, clamped.
#
# Calibration, training and the reading of what was trained round by these functions and no others,
# so that the same weights and scales give the same integers.

LEVELS = 127
FINE_LEVELS = 2**13 - 1


def nearest(weight: Floats, scale: Doubles) -> NDArray[np.int8]:
    """Round every weight to its nearest integer; int8 [N, K] in -127..127."""
    return nearest_steps(weight, scale).astype(np.int8)


def nearest_steps(weight: NDArray[np.float32], scale: NDArray[np.float64]) -> NDArray[np.float32]:
    """The integers of `nearest` as float32."""
    steps = np.asarray(weight / scale[:, None].astype(np.float32), np.float32)
    np.rint(steps, out=steps)
    return np.clip(steps, -LEVELS, LEVELS, out=steps)


def nearest_in_groups(weight: Floats, scale: Doubles, groups: Longs) -> NDArray[np.int8]:
    """Round to half bytes by groups of the depth, each times the scale of its group.

    Parameters
    ----------
    weight
        [N, K].
    scale
        Of the rows, [N].
    groups
        Scales 1..16 of the groups, [N, ceil(K / 32)].

    Returns
    -------
    numpy.ndarray
        int8 [N, K] in -127..127: what `ibert_tvm.relay_passes.spec.nibbles` has exactly.
    """
    steps = np.repeat(groups, nibbles.GROUP, axis=1)[:, : weight.shape[1]].astype(np.float32)
    entries = np.asarray(weight / scale[:, None].astype(np.float32), np.float32)
    entries /= steps
    np.rint(entries, out=entries)
    # -8 times 16 would be -128, which some products take longer with.
    least = np.where(steps == nibbles.LARGEST_SCALE, nibbles.LEAST + 1, nibbles.LEAST)
    np.clip(entries, least, nibbles.MOST, out=entries)
    entries *= steps
    return entries.astype(np.int8)


def nearest_fine(table: Floats, scale: Doubles) -> NDArray[np.int16]:
    """Round rows of a table to 14 bits; int16 [V, C]."""
    return np.clip(np.rint(table / scale[:, None]), -FINE_LEVELS, FINE_LEVELS).astype(np.int16)


FILE = "ibert_scales.json"
"""In the folder of a trained model, beside its configuration."""
SCHEMA_VERSION = 1
MAX_BYTES = 256 * 2**20
_MAX_DEPTH = 8
_NUMBERS = (
    lambda value: isinstance(value, list) and all(type(x) in (int, float) for x in value),
    "a list of numbers",
)
_INTEGERS = (
    lambda value: isinstance(value, list) and all(type(x) is int for x in value),
    "a list of integers",
)
_ACTIVATION = {
    "scale": SCALE,
    "low": INTEGER,
    "high": INTEGER,
    "zero_point": INTEGER,
    "channel_divisor?": _NUMBERS,
    "splits?": _INTEGERS,
    "by_row?": FLAG,
    "channel_zero_point?": _INTEGERS,
    "phase?": _NUMBERS,
}
_SCHEMA = {
    "schema_version": INTEGER,
    "preset": STRING,
    "head": STRING,
    "centred": FLAG,
    "matmul": {"*": _ACTIVATION},
    "stream": {"*": _ACTIVATION},
    "grids": {"*": _ACTIVATION},
    "weights": {"*": _NUMBERS},
    "embeddings": {"*": {"bits": one_of(8, 16), "scale": _NUMBERS}},
    "norm_shifts": {"*": integer(0, 31)},
    "offsets?": {"*": _NUMBERS},
    "groups?": {"*": _INTEGERS},
}
_SECTIONS = ("matmul", "stream", "grids")
_BY_CHANNEL = ("channel_divisor", "splits", "channel_zero_point", "phase")


@dataclass(frozen=True, eq=False)
class TrainedScales:
    """A quantisation table without its integers.

    Attributes
    ----------
    activations
        Everything but weights and embeddings.
    weights
        Scale per row, float64 [N], by canonical name of the linear layer.
    embeddings
        Bits of the integers, 8 or 16, and scale per row, by canonical name of the embedding.
    head
        The head that it was trained with, one of `ibert_tvm.model.heads.HEADS`.
    groups
        Of matrices in 4 bits: scales 1..16 of the groups of each row, int64 [N, G], by canonical
        name of the linear layer.
    """

    activations: QuantizationTable
    weights: Mapping[str, Doubles]
    embeddings: Mapping[str, tuple[int, Doubles]]
    head: str
    groups: Mapping[str, Longs] = field(default_factory=dict)

    @property
    def preset(self) -> str:
        """Numerics that it was trained with."""
        return self.activations.preset

    @classmethod
    def of_table(cls, table: QuantizationTable, head: str) -> TrainedScales:
        """Keep the scales of a table and drop its integers."""
        return cls(
            replace(table, weights={}, embeddings={}),
            {name: rows.scale for name, rows in table.weights.items()},
            {
                name: (8 * rows.values.dtype.itemsize, rows.scale)
                for name, rows in table.embeddings.items()
            },
            head,
        )

    def with_scales(self, scales: Mapping[str, float]) -> TrainedScales:
        """Return the same with other scales of matrix operands, by canonical name."""
        table = self.activations
        matmul = {
            name: replace(quant, scale=scales.get(name, quant.scale))
            for name, quant in table.matmul.items()
        }
        return replace(self, activations=replace(table, matmul=matmul))

    def table(
        self,
        needed: Mapping[str, Requirement],
        parameters: Weights,
        known: Callable[[str, Callable[[], WeightQuant]], WeightQuant] | None = None,
    ) -> QuantizationTable:
        """Round float weights to a whole table.

        Parameters
        ----------
        needed
            Of the model and the preset, from `ibert_tvm.relay_passes.lower.requirements`.
        parameters
            Float weights by canonical parameter name.
        known
            ``known(name, make)`` returns the integers of a layer, made by ``make()`` where
            they are not known yet.

        Raises
        ------
        ModelError
            If the model has other layers than those of these scales, or a weight is no number.
        """
        make = known or (lambda _name, made: made())
        reads = {layer: value.name for value in needed.values() for layer in value.layers}
        wanted = {
            section: {name for name, value in needed.items() if value.section == section}
            for section in ("weights", "embeddings")
        }
        for section, layers in wanted.items():
            _check_layers(layers, set(getattr(self, section)), section)
        for name, quant in self.activations.matmul.items():
            if name in needed:
                _check_channels(name, quant, needed[name].channels)
        weights, embeddings = {}, {}
        for name, scale in self.weights.items():
            matrix = parameters[needed[name].weight]
            _check_rows(name, matrix, scale)
            taken = self.activations.offsets.get(name)
            if taken is not None and taken.size != len(matrix):
                raise _other_model(f"{name} has {len(matrix)} rows, and {taken.size} offsets")
            operand = self.activations.matmul.get(reads[name])
            if operand is None:
                raise _other_model(f"no scale of {reads[name]}, which {name} reads")
            groups = self.groups.get(name)
            if groups is not None:
                _check_groups(name, matrix, groups, operand)
            weights[name] = make(name, partial(_linear, matrix, scale, operand, groups))
        for name, (bits, scale) in self.embeddings.items():
            matrix = parameters[needed[name].weight]
            _check_rows(name, matrix, scale)
            embeddings[name] = make(name, partial(_embedding, matrix, scale, bits))
        return replace(self.activations, weights=weights, embeddings=embeddings)

    def to_json(self) -> JsonDict:
        """Return the document of the file."""
        table = self.activations
        sections = {
            section: {name: quant.to_json() for name, quant in getattr(table, section).items()}
            for section in _SECTIONS
        }
        groups = {name: scales.ravel().tolist() for name, scales in self.groups.items()}
        return {
            "schema_version": SCHEMA_VERSION,
            "preset": table.preset,
            "head": self.head,
            "centred": table.centred,
            "norm_shifts": dict(table.norm_shifts),
            **sections,
            "offsets": {name: taken.tolist() for name, taken in table.offsets.items()},
            "weights": {name: scale.tolist() for name, scale in self.weights.items()},
            **({"groups": groups} if groups else {}),
            "embeddings": {
                name: {"bits": bits, "scale": scale.tolist()}
                for name, (bits, scale) in self.embeddings.items()
            },
        }

    def save(self, folder: Path) -> None:
        """Write the file into a folder that is being made."""
        text = json.dumps(self.to_json(), separators=(",", ":"), sort_keys=True)
        (folder / FILE).write_text(text, encoding="utf-8")


def read_scales(file: Path) -> TrainedScales:
    """Read and check the file of a trained model.

    Parameters
    ----------
    file : pathlib.Path
        `FILE` of its folder.

    Raises
    ------
    ModelError
        If it cannot be read, or something in it has a wrong type or value.
    """
    from ibert_tvm.relay_passes.quantization_table import (
        ActivationQuant,
        QuantizationTable,
        QuantizationTableError,
    )

    try:
        document = strict_json.read_json(file, MAX_BYTES, _MAX_DEPTH)
        check(document, _SCHEMA)
        if document["schema_version"] != SCHEMA_VERSION:
            raise DocumentError(
                f"it has schema version {shown(document['schema_version'])}",
                why=f"this version of ibert_tvm reads {SCHEMA_VERSION}",
            )
        sections: JsonDict = {
            section: {n: ActivationQuant.from_json(entry) for n, entry in document[section].items()}
            for section in _SECTIONS
        }
        return TrainedScales(
            QuantizationTable(
                document["preset"],
                **sections,
                norm_shifts=document["norm_shifts"],
                centred=document["centred"],
                offsets=_vectors(document.get("offsets", {})),
                calibrated=True,
            ),
            _vectors(document["weights"]),
            {
                name: (entry["bits"], np.array(entry["scale"], np.float64))
                for name, entry in document["embeddings"].items()
            },
            document["head"],
            {
                name: _groups(name, scales, document["weights"])
                for name, scales in document.get("groups", {}).items()
            },
        )
    except (DocumentError, QuantizationTableError, OverflowError) as error:
        what = getattr(error, "what", str(error))
        why = "; ".join(filter(None, (what, getattr(error, "why", ""))))
        raise ModelError(
            f"cannot read {file}",
            where=getattr(error, "where", ""),
            why=why,
            todo="copy the folder of the trained model again, or remove the file to calibrate anew",
        ) from error


def _vectors(lists: Mapping[str, list[float]]) -> dict[str, Doubles]:
    return {name: np.array(numbers, np.float64) for name, numbers in lists.items()}


def _groups(name: str, scales: list[int], rows: Mapping[str, list[float]]) -> Longs:
    """Scales of groups as they are listed, row by row."""
    count = len(rows.get(name, ()))
    if not count or not scales or len(scales) % count:
        raise DocumentError(
            f"there are {len(scales)} scales of groups",
            where=f"groups, {name}",
            why=f"the matrix has {count} rows, and as many groups in each",
        )
    if not (min(scales) >= 1 and max(scales) <= nibbles.LARGEST_SCALE):
        raise DocumentError(
            "a scale of a group is out of range",
            where=f"groups, {name}",
            why=f"it lies from 1 to {nibbles.LARGEST_SCALE}",
        )
    return np.array(scales, np.int64).reshape(count, -1)


def _check_groups(name: str, matrix: Floats, groups: Longs, operand: ActivationQuant) -> None:
    wanted = len(matrix), -(-matrix.shape[1] // nibbles.GROUP)
    if groups.shape != wanted:
        raise _other_model(f"{name} has {wanted[1]} groups in a row, and scales of {groups.shape}")
    if operand.splits is not None:
        raise _other_model(f"{name} has groups, and reads channels that are split")


def _check_channels(name: str, quant: ActivationQuant, channels: int) -> None:
    for array in (getattr(quant, name) for name in _BY_CHANNEL):
        if array is not None and array.size != channels:
            raise _other_model(f"{name} has {channels} channels, and {array.size} of its scales")


def _linear(
    matrix: Floats, scale: Doubles, quant: ActivationQuant, groups: Longs | None = None
) -> WeightQuant:
    """Integers of a linear layer: the divisor of its input moves into them."""
    from ibert_tvm.relay_passes.quantization_table import WeightQuant

    if quant.channel_divisor is not None:
        matrix = matrix * quant.channel_divisor.astype(np.float32)
    if groups is not None:
        return WeightQuant(nearest_in_groups(matrix, scale, groups), scale, trained=True)
    rounded = nearest(matrix, scale)
    return WeightQuant(rounded if quant.splits is None else rounded[:, quant.columns], scale)


def _embedding(matrix: Floats, scale: Doubles, bits: int) -> WeightQuant:
    from ibert_tvm.relay_passes.quantization_table import WeightQuant

    return WeightQuant(nearest(matrix, scale) if bits == 8 else nearest_fine(matrix, scale), scale)


def _check_layers(wanted: set[str], found: set[str], section: str) -> None:
    if wanted != found:
        other = sorted(wanted ^ found)[0]
        lacks = "lack" if other in wanted else "have"
        raise _other_model(f"the scales {lacks} {other}, one of its {section}")


def _check_rows(name: str, matrix: Floats, scale: Doubles) -> None:
    if not np.isfinite(matrix).all():
        raise ModelError(
            "a weight is infinite or not a number",
            where=name,
            why="it has no nearest integer",
            todo="train with a smaller learning rate, or check the checkpoint",
        )
    if scale.shape != matrix.shape[:1]:
        raise _other_model(f"{name} has {len(matrix)} rows, and {scale.size} scales")


def _other_model(why: str) -> ModelError:
    return ModelError(
        "the scales of a training do not belong to this model",
        where=FILE,
        why=why,
        todo="load the model with the head that it was trained with, or remove the file and "
        "calibrate anew",
    )
