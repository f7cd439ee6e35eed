"""`IntegerModel`: a torch module that computes the deployed integers, and can be trained.

It wraps a transformers model of any architecture that can be imported. What is quantised, and how,
is decided by the same canonical module, quantisation table and lowering as for `ibert quantize`:
when a weight has changed, the model is lowered again, and the forward pass runs the integer program
that results. Nothing of the arithmetic is written here a second time.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import ModelOutput

from ibert_tvm.relay_passes.canonical.evaluate import FloatModel
from ibert_tvm.relay_passes.canonical.operators.norms import Norm
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from ibert_tvm.relay_passes.lower import lower_to_integer, requirements
from ibert_tvm.relay_passes.lower.required_scales import live_calls
from ibert_tvm.relay_passes.lower.rule import MATMUL
from ibert_tvm.relay_passes.quantization_table import QuantizationTable, WeightQuant

from ..common.errors import UsageError
from ..common.files import OutputKind, write_folder
from ..common.integrity import lists_all, write_manifest
from ..common.strict_json import JsonDict, JsonObject
from ..common.types import Floats, Longs
from ..frontend import CanonicalModel
from ..frontend.hf_folder import HfFolder
from ..frontend.ibert_checkpoint.quantization import IbertQuantization
from ..model.artefact import QuantizedModel, with_steps
from ..model.trained_scales import FILE, TrainedScales
from ..quantization import quantize
from ..quantization.word_table import WORDS, narrow_words
from .group_scales import GroupScales, word_rows
from .integers import IntegerProgram
from .losses import loss_of
from .sources import WeightSource, weight_sources
from .straight_through import FloatTwin, Reading, readings, replaced

_logger = logging.getLogger(__name__)


class IntegerModel(torch.nn.Module):
    """A transformers model whose forward pass is the integer program.

    Made by `ibert_tvm.train.prepare`. Its parameters are those of the model that it wraps, under
    their own names (`model`), and where scales are learned their logarithms (`log_scales`).

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Holds the float weights, which are trained.
    canonical
        The same model in canonical form.
    scales
        What stays fixed while weights change.
    learn_scales
        Whether scales of matrix operands are trained (LSQ).
    folder
        Where the model was read: files besides the weights are saved again.
    word_table_bits
        8, or 4 as `ibert quantize --word-table-bits 4` has them; the table is then not trained.

    Attributes
    ----------
    frozen : tuple of str
        Canonical weights that were computed of others in the import, and are not trained.
    """

    def __init__(
        self,
        model: Any,
        canonical: CanonicalModel,
        scales: TrainedScales | IbertQuantization,
        learn_scales: bool = False,
        folder: Path | None = None,
        word_table_bits: int = 8,
    ) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        self.info = canonical.info
        self._canonical = canonical
        self._scales = scales
        self._folder = folder
        self._sources: dict[str, WeightSource] = weight_sources(model, canonical.parameters)
        self._fixed = {
            name: torch.from_numpy(np.array(array))
            for name, array in canonical.parameters.items()
            if name not in self._sources
        }
        self.frozen = tuple(sorted(self._fixed))
        module, preset = canonical.module, self.preset
        self._needed = requirements(module, preset)
        live = {str(call.attrs["name"]) for _, call in live_calls(module)}
        floats = FloatModel(module, canonical.parameters)
        self._steps = [step for step in floats.steps if step.operator.name in live]
        self._variables = _variables(self._steps)
        names = self._learnable() if learn_scales else {}
        self._first_scales = names
        self._scale_names = {name.replace(".", "|"): name for name in names}
        self.log_scales = torch.nn.ParameterDict(
            {key: torch.nn.Parameter(torch.zeros(())) for key in self._scale_names}
        )
        groups = scales.groups if isinstance(scales, TrainedScales) else {}
        self.group_scales = GroupScales(groups)
        self._rows: dict[str, tuple[Any, WeightQuant]] = {}
        self._words: dict[str, torch.Tensor] = {}
        if word_table_bits == 4:
            self._freeze_words()
        self._lowered: _Lowered | None = None

    # -- what is trained --------------------------------------------------------------------------

    @property
    def preset(self) -> str:
        """Numerics, "accurate", "paper" or "released"."""
        return self._scales.preset if isinstance(self._scales, TrainedScales) else "released"

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _learnable(self) -> dict[str, float]:
        if not isinstance(self._scales, TrainedScales):
            raise UsageError(
                "the scales of the preset released cannot be learned",
                why="they are the ranges of its checkpoint",
                todo="leave learn_scales out, or use the preset accurate or paper",
            )
        return {
            name: quant.scale
            for name, quant in self._scales.activations.matmul.items()
            if name in self._needed and not quant.by_row and self._is_requantised(name)
        }

    def _is_requantised(self, name: str) -> bool:
        """Whether the 8-bit form of a value is made by a requantisation of its own."""
        need = self._needed[name].need
        return not need.given and MATMUL not in need.result

    def weights(self) -> dict[str, torch.Tensor]:
        """Float weights by canonical parameter name; gradients flow to the model's parameters."""
        own = dict(self.model.named_parameters())
        weights = {name: source.read(own) for name, source in self._sources.items()}
        return {**weights, **{name: array.to(self._device) for name, array in self._fixed.items()}}

    def weights_of(self, layer: str) -> dict[str, str]:
        """Canonical names of the weight of a linear layer and, where it has one, of the bias."""
        step = next(step for step in self._steps if step.operator.name == layer)
        names = {label: str(variable.name) for label, variable in step.operands.items()}
        return {label: names[label] for label in ("weight", "bias") if label in names}

    @property
    def hidden(self) -> tuple[str, ...]:
        """Canonical names of the values between the parts of layers: outputs of norms."""
        return tuple(s.operator.name for s in self._steps if isinstance(s.operator, Norm))

    def set_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Change canonical weights; those that were computed of others stay as they are."""
        own = dict(self.model.named_parameters())
        for name in weights.keys() & self._sources.keys():
            self._sources[name].write(own, weights[name].float().to(self._device))

    def set_groups(self, groups: Mapping[str, Longs]) -> None:
        """Train these layers in 4 bits, with scales 1..16 [N, G] of their groups to begin with."""
        assert isinstance(self._scales, TrainedScales)
        self._scales = replace(self._scales, groups=groups)
        self.group_scales = GroupScales(groups)
        self._rows.clear()
        self._lowered = None

    def _freeze_words(self) -> None:
        """Keep the tables that ids look up, in 4 bits."""
        own = dict(self.model.named_parameters())
        table = self.table()
        for step in self._steps:
            name = step.operator.name
            ids = step.operands.get("ids")
            if name in table.embeddings and ids is not None and str(ids.name) == WORDS:
                weight = self._needed[name].weight
                self._words[weight] = word_rows(table.embeddings[name]).to(self._device)
                for parameter in (
                    self._sources[weight].parameters if weight in self._sources else ()
                ):
                    own[parameter].requires_grad_(False)

    def _numbers(self) -> dict[str, Floats]:
        return {
            name: np.ascontiguousarray(tensor.detach().cpu().numpy())
            for name, tensor in self.weights().items()
        }

    def scales(self) -> TrainedScales:
        """Scales as they are now; what `save` writes."""
        if isinstance(self._scales, TrainedScales):
            scales = self._scales.with_scales(self._learned())
            return replace(scales, groups=self.group_scales.integers())
        return TrainedScales.of_table(self.table(), self.info.head)

    def _learned(self) -> dict[str, float]:
        """Learned scales, as numbers that float32 has, so that the file has them exactly."""
        return {
            name: float(np.float32(self._first_scales[name] * np.exp(self.log_scales[key].item())))
            for key, name in self._scale_names.items()
        }

    def table(self) -> QuantizationTable:
        """The quantisation table of the present weights and scales."""
        numbers = self._numbers()
        if isinstance(self._scales, TrainedScales):
            return self.scales().table(self._needed, numbers, self._known)
        return replace(self._scales, weights=numbers).table()

    def _known(self, name: str, make: Callable[[], WeightQuant]) -> WeightQuant:
        """Integers of a layer that were made before, if its weights are still the same."""
        source = self._sources.get(self._needed[name].weight)
        own = dict(self.model.named_parameters())
        tensors = [own[parameter] for parameter in source.parameters] if source else []
        if name in self.group_scales:
            tensors.append(self.group_scales.parameter(name))
        state = tuple(map(_version, tensors)) if source else None
        if name not in self._rows or self._rows[name][0] != state:
            self._rows[name] = state, make()
        return self._rows[name][1]

    def rounded_start(self, table: QuantizationTable) -> dict[str, Floats]:
        """Weights that round to the integers of a table, by name of the model's parameter.

        Of matrices that one layer reads as they are, if each channel has one column of weights.
        """
        layers: dict[str, list[str]] = {}
        for name in table.weights:
            source = self._sources.get(self._needed[name].weight)
            if source is not None:
                layers.setdefault(source.parameter, []).append(name)
        numbers, result = self._numbers(), {}
        scales = TrainedScales.of_table(table, self.info.head)
        for parameter, (name, *others) in layers.items():
            source = self._sources[self._needed[name].weight]
            if others or not source.is_whole:
                continue
            rows, quant = table.weights[name], table.matmul[self.reads(name)]
            channels = numbers[self._needed[name].weight].shape[1]
            real = rows.values[:, :channels] * rows.scale[:, None]
            if quant.channel_divisor is not None:
                real = real / quant.channel_divisor
            kept = real.astype(np.float32)
            numbers[self._needed[name].weight] = kept
            result[parameter] = kept.T if source.transposed else kept
        again = scales.table(self._needed, numbers)
        same = {
            self._sources[self._needed[name].weight].parameter
            for name in table.weights
            if self._needed[name].weight in self._sources
            and np.array_equal(again.weights[name].values, table.weights[name].values)
        }
        return {name: array for name, array in result.items() if name in same}

    def reads(self, layer: str) -> str:
        """Name of the value that a layer multiplies by its weights."""
        return next(value.name for value in self._needed.values() if layer in value.layers)

    # -- integers ---------------------------------------------------------------------------------

    def _state(self) -> tuple[tuple[int, int], ...]:
        return tuple(_version(parameter) for parameter in self.parameters())

    def lowered(self) -> _Lowered:
        """The integer program of the present weights."""
        state = self._state()
        if self._lowered is None or self._lowered.state != state:
            table, numbers = self.table(), self._numbers()
            lowered = lower_to_integer(self._canonical.module, numbers, table)
            read, arrays = read_program(lowered.module), dict(lowered.parameters)
            if self._words:
                read, arrays = with_steps(read, narrow_words(read.steps, arrays), arrays)
            program = IntegerProgram(read, arrays, self._device)
            forms = readings(lowered.scales["values"], self._needed, table, self._device)
            self._lowered = _Lowered(state, table, lowered.scales, program, forms)
        return self._lowered

    def integers(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Every integer of the program, int64, by the name of its step.

        Parameters
        ----------
        **inputs
            As for `forward`, without labels.
        """
        lowered = self.lowered()
        return lowered.program.run(self._integer_inputs(lowered, self._inputs(inputs)))

    def quantized(self) -> QuantizedModel:
        """The model as `ibert quantize` makes it of what `save` writes."""
        trained = self.scales() if isinstance(self._scales, TrainedScales) else None
        released = self._canonical.released
        if released is not None:
            released = replace(released, weights=self._numbers())
        model = replace(
            self._canonical, parameters=self._numbers(), trained=trained, released=released
        )
        return quantize(model, preset=self.preset)

    # -- forward ----------------------------------------------------------------------------------

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
    ) -> ModelOutput:
        """Compute the outputs: the numbers that the integers stand for.

        Parameters
        ----------
        input_ids, attention_mask, token_type_ids
            [batch, seq_len] int64. A mask that is missing is all ones, types are all 0; types are
            not looked at where the model has one.
        labels, start_positions, end_positions
            What a loss is computed of, see `ibert_tvm.train.losses.loss_of`.
        pixel_values, input_features
            Images or features, float32.

        Returns
        -------
        transformers.utils.ModelOutput
            The outputs by name, and where there are labels `loss` before them.

        Raises
        ------
        UsageError
            If an input is missing, or one that the model does not take.
        """
        tokens = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "pixel_values": pixel_values,
            "input_features": input_features,
        }
        answers = {
            "labels": labels,
            "start_positions": start_positions,
            "end_positions": end_positions,
        }
        inputs = {name: tensor for name, tensor in tokens.items() if tensor is not None}
        given = self._inputs(inputs)
        lowered = self.lowered()
        integers = lowered.program.run(self._integer_inputs(lowered, given))
        result = ModelOutput()
        twin: Mapping[str, torch.Tensor] | None = None
        if torch.is_grad_enabled():
            values = self._variables_of(self._rounded_weights(lowered.table), given)
            with torch.autocast(lowered.program.device.type, enabled=False):
                twin = self._twin(lowered).run(values, integers)
        for output, info in zip(lowered.scales["outputs"], self.info.outputs, strict=True):
            real = (integers[output["value"]].double() * output["scale"]).float()
            if twin is not None:
                value = twin[output["name"]]
                if real.ndim == 3 and "attention_mask" in given:
                    value = value * given["attention_mask"].unsqueeze(-1)
                real = replaced(value, real)
            result[info.name] = real
        wanted = {name: tensor for name, tensor in answers.items() if tensor is not None}
        return loss_of(result, self.info.outputs[0], self.config, wanted)

    def _inputs(self, inputs: JsonObject) -> dict[str, torch.Tensor]:
        names = self.info.inputs
        first = inputs.get(names[0])
        unknown = sorted(set(inputs) - {*names, "attention_mask", "token_type_ids"})
        if first is None or unknown:
            raise UsageError(
                f"got inputs {', '.join(sorted(inputs)) or 'none'}",
                where="IntegerModel.forward",
                why=f"the model takes {', '.join(names)}",
                todo="pass these, and labels",
            )
        defaults = {"attention_mask": torch.ones_like, "token_type_ids": torch.zeros_like}
        return {
            name: (inputs[name] if name in inputs else defaults[name](first)).to(self._device)
            for name in names
        }

    def _integer_inputs(
        self, lowered: _Lowered, given: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Ids and masks as they are, and pixels divided by their scale, as the runtime does it."""
        result = dict(given)
        if lowered.scales.get("inputs"):
            from ..runtime.pixels import image_record, quantize_images

            record = image_record(lowered.scales["inputs"])
            assert record is not None and self.info.image_size is not None
            pixels = given[record.name].detach().cpu().numpy()
            steps = quantize_images(record, pixels, self.info.image_size)
            result[record.name] = torch.from_numpy(np.asarray(steps))
        return result

    def float_values(
        self,
        inputs: Mapping[str, torch.Tensor],
        weights: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Compute all values with activations in float, by canonical name.

        Parameters
        ----------
        inputs
            As of `forward`.
        weights
            By canonical parameter name; by default those that the present integers stand for.
        """
        if weights is None:
            weights = self._rounded_weights(self.table())
        given = self._variables_of(weights, self._inputs(inputs))
        with torch.autocast(self._device.type, enabled=False):
            return FloatTwin(self._steps, {}, {}).run(given, {})

    def _variables_of(
        self, weights: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]
    ) -> dict[Any, torch.Tensor]:
        values = {**weights, **given}
        return {variable: values[name] for name, variable in self._variables.items()}

    def _rounded_weights(self, table: QuantizationTable) -> dict[str, torch.Tensor]:
        """Weights by name; matrices have the numbers of their integers."""
        weights = self.weights()
        for name, value in self._needed.items():
            if value.section == "weights":
                weights[value.weight] = self._rounded(name, value.weight, weights, table)
        return {**weights, **self._words}

    def _rounded(
        self, layer: str, name: str, weights: Mapping[str, torch.Tensor], table: QuantizationTable
    ) -> torch.Tensor:
        weight, rows = weights[name], table.weights[layer]
        divisor = table.matmul[self.reads(layer)].channel_divisor
        if layer in self.group_scales:
            if divisor is None:
                return self.group_scales.rounded(layer, weight, rows)
            factor = torch.from_numpy(divisor.astype(np.float32)).to(weight.device)
            return self.group_scales.rounded(layer, weight * factor, rows) / factor
        values = torch.from_numpy(rows.values[:, : weight.shape[1]]).to(weight.device)
        scale = torch.from_numpy(rows.scale.astype(np.float32)).to(weight.device)
        real = values.float() * scale[:, None]
        if divisor is not None:
            real = real / torch.from_numpy(divisor.astype(np.float32)).to(weight.device)
        return replaced(weight, real)

    def _twin(self, lowered: _Lowered) -> FloatTwin:
        scales = {}
        for key, name in self._scale_names.items():
            # The value is what lowering took; the gradient is that of the logarithm.
            now = lowered.table.matmul[name].scale
            exponent = self.log_scales[key]
            scales[name] = now * torch.exp(exponent - exponent.detach())
        return FloatTwin(self._steps, lowered.forms, scales)

    # -- files ------------------------------------------------------------------------------------

    def save(self, output: str | Path) -> Path:
        """Write a folder that ``from_pretrained`` and `ibert quantize` read.

        Parameters
        ----------
        output
            The folder; one that holds a trained model is replaced.

        Returns
        -------
        pathlib.Path
        """
        target = Path(output).expanduser()
        with write_folder(target, TRAINED) as fresh:
            self._write(fresh)
            write_manifest(fresh)
        return target

    def _write(self, fresh: Path) -> None:
        inner = fresh
        if self._folder is not None:
            read = HfFolder.read(self._folder)
            inner = fresh / read.model.relative_to(read.path)
            _copy_beside(read.path, fresh)
        self.model.save_pretrained(inner)
        if isinstance(self._scales, TrainedScales):
            self.scales().save(fresh)


TRAINED = OutputKind(
    "a trained model, with nothing added",
    lambda folder: (folder / FILE).is_file() and lists_all(folder),
    folder=True,
)


@dataclass(eq=False)
class _Lowered:
    """An integer program, and what it was made of."""

    state: tuple[tuple[int, int], ...]
    table: QuantizationTable
    scales: JsonObject
    program: IntegerProgram
    forms: Mapping[tuple[str, str], Reading]


def _version(parameter: torch.Tensor) -> tuple[int, int]:
    """What changes whenever a tensor is written to or replaced."""
    return parameter.data_ptr(), parameter._version


def _variables(steps: Sequence[Any]) -> JsonDict:
    """Inputs and weights that the steps read, by name."""
    results = {step.result for step in steps}
    return {
        str(variable.name): variable
        for step in steps
        for variable in step.operands.values()
        if variable not in results
    }


def _copy_beside(source: Path, fresh: Path) -> None:
    """Copy the files of a model folder that are no weights of its transformer."""
    weights = (".safetensors", ".bin", ".h5", ".msgpack", ".onnx", ".ot")
    for entry in sorted(source.rglob("*")):
        place = fresh / entry.relative_to(source)
        if entry.is_dir():
            place.mkdir(exist_ok=True)
        elif not (entry.parent == source and entry.suffix in weights) and entry.name != FILE:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(entry, place)
