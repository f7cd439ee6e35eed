"""Loading an `ibert` folder: float model, ranges, report."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.strict_json import JsonObject
from ...common.types import Floats
from ...model.heads import HEADS, PooledTokens
from ..errors import ModelSourceError, more_than_encoder
from ..hf_folder import HfFolder
from ..post_processing import check_scores, class_names
from ..report import Folding, ImportReport
from ..verify import Source
from .canonical import build_canonical
from .config import IbertConfig
from .quantization import IbertQuantization, layer_norms, range_shapes, ranges_of
from .weights import CheckpointArrays

if TYPE_CHECKING:
    from ..model import CanonicalModel


# transformers' `ibert` in its float mode, as the reference of an imported float model.


def float_folder(folder: HfFolder, head: str) -> Source:
    """Load the source model with ``quant_mode`` off.

    Its quantised forward pass hands every layer the scale of the embeddings, so that it is no
    reference for anything.

    Parameters
    ----------
    folder
        The source.
    head
        Its head.

    Returns
    -------
    callable
        Runs the model on arrays by input name.
    """
    from .. import transformers_import as hf

    model, _ = hf.load_folder(folder, head, quant_mode=False)
    return _source(model, head, folder.pooling if _pools(head) else "mean")


def float_module(module: Any, head: str) -> Source:
    """Copy a model in memory with ``quant_mode`` off.

    Parameters
    ----------
    module : transformers.IBertPreTrainedModel
        The source.
    head
        The head to be compared.

    Returns
    -------
    callable
        See `float_folder`.
    """
    settings = copy.deepcopy(module.config)
    settings.quant_mode = False
    twin = type(module)(settings)
    twin.load_state_dict(module.state_dict())
    return _source(twin.float(), head, "mean")


def _pools(head: str) -> bool:
    return isinstance(HEADS[head].finish, PooledTokens)


def _source(model: Any, head: str, pooling: str) -> Source:
    from .. import transformers_import as hf
    from ..sentence_head import pooling_head
    from ..torch_import import as_source

    after = pooling_head(pooling) if _pools(head) else None
    return as_source(hf.wrap(model, head, after).eval())


MODEL_TYPE = "ibert"

_FLOAT_FUNCTIONS = {
    "gelu": "GELU",
    "softmax": "softmax",
    "layernorm": "LayerNorm",
    "nonlinear": "GELU, softmax and LayerNorm",
}


def load_ibert(folder: HfFolder, head: str | None, verify: bool) -> CanonicalModel:
    """Load a checkpoint of transformers' `ibert`.

    Parameters
    ----------
    folder
        The checked folder.
    head
        One of `ibert_tvm.model.heads.HEADS`; None for the one that its files ask for.
    verify
        Compare the float model with transformers', in its float mode.

    Returns
    -------
    CanonicalModel
        With ``released`` set: `ibert_tvm.quantize` takes scales from there.

    Raises
    ------
    MissingExtraError
        If torch or transformers is needed and not installed.
    ModelSourceError
        If the configuration or the weights cannot be used, or do not have the head.
    UnsupportedModelError
        If the float model differs from transformers'.
    """
    from ..finish import described

    asked, head = head, head or folder.default_head
    encoder = folder.declared in ("", "IBertModel", "IBertForMaskedLM")
    if asked is None and head == "none" and folder.modules is None and not encoder:
        raise more_than_encoder(folder.declared, str(folder.model / "config.json"))
    config = IbertConfig.read(folder.config, str(folder.model / "config.json"))
    model = _assemble(
        config,
        CheckpointArrays.of_files(folder.weights),
        head,
        _pooling_of(folder, head),
        str(folder.path),
        folder.config,
        float_folder(folder, head) if verify else None,
    )
    model = described(model, **folder.provenance(head))
    if verify:
        check_scores(model.info, folder.config, folder.settings)
    return model


def _pooling_of(folder: HfFolder, head: str) -> str:
    """The pooling of a sentence embedding, which the published arithmetic must have."""
    if HEADS[head].checkpoint is None:
        raise ModelSourceError(
            f"a model of type {MODEL_TYPE} has no head {head}",
            where=str(folder.path / "modules.json"),
            why="the published arithmetic has poolings by the mean and by the first token only",
            todo="choose head='sentence_embedding' or head='none'",
        )
    pooling = folder.pooling if isinstance(HEADS[head].finish, PooledTokens) else "mean"
    if pooling not in ("mean", "cls"):
        raise ModelSourceError(
            f"the sentence embedding pools by {pooling}",
            where=str(folder.path / "modules.json"),
            why="the published arithmetic has poolings by the mean and by the first token only",
            todo="choose head='none' and pool outside of the compiled model",
        )
    return pooling


def load_ibert_module(module: Any, head: str, verify: bool) -> CanonicalModel:
    """Load a transformers `ibert` model in memory: its weights and ranges, not its forward pass.

    Parameters
    ----------
    module : transformers.IBertPreTrainedModel
        The model.
    head
        One of `ibert_tvm.model.heads.HEADS`.
    verify
        Compare the float model with a copy of the module in its float mode.

    Returns
    -------
    CanonicalModel
        See `load_ibert`.

    Raises
    ------
    ModelSourceError, UnsupportedModelError
        See `load_ibert`.
    """
    from ..finish import described

    where = f"{type(module).__module__}.{type(module).__qualname__}"
    document = module.config.to_dict()
    model = _assemble(
        IbertConfig.read(document, where),
        CheckpointArrays.of_state(module.state_dict(), where),
        head,
        "mean",
        where,
        document,
        float_module(module, head) if verify else None,
    )
    return described(model, source=where, description=f"{MODEL_TYPE} module in memory, head {head}")


def _assemble(
    config: IbertConfig,
    arrays: CheckpointArrays,
    head: str,
    pooling: str,
    where: str,
    document: JsonObject,
    source: Source | None,
) -> CanonicalModel:
    """Build the float model, compare it with `source`, and keep the ranges beside it."""
    from ..finish import finish

    labels = _labels(arrays, head)
    steps = HEADS[head].checkpoint or ()
    weights = arrays.require({**config.shapes(), **config.head_shapes(steps, labels)})
    layers = config.num_hidden_layers
    buffers = _buffers(arrays, config)
    canonical = build_canonical(config, weights, head, pooling)
    quantization = IbertQuantization(
        config=config,
        head=head,
        output=canonical.outputs[0][0],
        weights=canonical.parameters,
        ranges=ranges_of(layers, buffers),
        norm_shifts={name: _shift(name, buffers[f"{name}.shift"]) for name in layer_norms(layers)},
        where=where,
    )
    _complete(canonical.report, config)
    model = finish(
        canonical,
        source,
        architecture=MODEL_TYPE,
        head=head,
        outputs=[HEADS[head].public],
        pad_token_id=config.pad_token_id,
        id2label=_id2label(document, labels),
    )
    info = replace(model.info, notes=_notes(quantization))
    return replace(model, info=info, released=quantization)


def _buffers(arrays: CheckpointArrays, config: IbertConfig) -> dict[str, Floats]:
    """Ranges and shifts; 0 for those that a float model need not have."""
    shapes_of_all = range_shapes(config.num_hidden_layers)
    if config.quant_mode:
        return arrays.require(shapes_of_all)
    present = {name: shape for name, shape in shapes_of_all.items() if name in arrays}
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes_of_all.items()}
    return {**zeros, **arrays.require(present)}


def _labels(arrays: CheckpointArrays, head: str) -> int:
    steps = HEADS[head].checkpoint or ()
    name = next((f"{step.name}.weight" for step in steps if step.rows == "labels"), None)
    if name is None:
        return 0
    if name not in arrays:
        raise ModelSourceError(
            f"the checkpoint has no head {head}",
            where=arrays.where,
            why=f"it lacks {name}",
            todo="choose the head that it was trained with, or head='none'",
        )
    return arrays.shape(name)[0]


def _shift(name: str, buffer: Any) -> int:
    value = float(buffer[0])
    if value != int(value) or not 0 <= value <= 31:
        raise ModelSourceError(
            f"the shift of a LayerNorm is {value:g}",
            where=name,
            why="it is the number of bits by which deviations are shifted, 0 to 31",
            todo="check the checkpoint",
        )
    return int(value)


def _id2label(document: JsonObject, labels: int) -> dict[int, str]:
    named = class_names(document)
    return named if len(named) == labels else {i: f"LABEL_{i}" for i in range(labels)}


def _notes(quantization: IbertQuantization) -> tuple[str, ...]:
    """What a user must know who takes the scales of the checkpoint."""
    config, notes = quantization.config, []
    if not config.quant_mode:
        return (
            "quant_mode is false: float weights only, to be quantised with calibration like those "
            "of any float model",
        )
    if config.force_dequant != "none":
        notes.append(
            f"trained with force_dequant={config.force_dequant!r}: "
            f"{_FLOAT_FUNCTIONS[config.force_dequant]} ran in float there and is compiled in its "
            "integer form, whose approximation training has not seen"
        )
    if config.dequantised("softmax"):
        notes.append(
            "the exponentials of softmax have no trained range; the largest possible value is used"
        )
    if any(step.op == "linear" for step in HEADS[quantization.head].checkpoint or ()):
        notes.append(
            "the head was trained in float; its weights are rounded to 8 bits, its scales follow "
            "from bounds"
        )
    missing = quantization.uncalibrated
    if missing:
        notes.append(
            f"{len(missing)} of {len(quantization.ranges)} ranges were never calibrated: "
            f"{', '.join(missing)}"
        )
    return tuple(notes)


def _complete(report: ImportReport, config: IbertConfig) -> None:
    """Add to the report what the source is, and what was left out."""
    mode = "trained with quantisation" if config.quant_mode else "float"
    report.source = f"transformers ibert checkpoint, {mode}, force_dequant {config.force_dequant}"
    report.foldings += [
        Folding(name, "left out: the released forward pass does not use it")
        for name in ("embeddings.embeddings_act2", "activation of every LayerNorm")
    ]
