"""The entry point of post-training quantisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..common.strict_json import JsonDict, JsonObject
from ..common.version import __version__
from ..model.artefact import QuantizedModel
from ..model.tokenization import Tokenizer
from ..model.tokenizer_behaviour import behaviour
from ..texts import packaged_texts
from .batches import Calibration
from .fidelity import FIRST_FIDELITY, PLAIN_FIDELITY, options_of
from .options import CalibrationOptions
from .scale_source import CalibrationData, Progress, scale_source

if TYPE_CHECKING:
    from ibert_tvm.relay_passes.quantization_table import QuantizationTable

    from ..frontend import CanonicalModel


def quantize(
    model: CanonicalModel,
    calibration: Calibration | None = None,
    preset: str | None = None,
    *,
    seq_len: int | None = None,
    fidelity: str | None = None,
    observer: str | None = None,
    widen: bool = False,
    options: CalibrationOptions | None = None,
    tokenizer: Tokenizer | None = None,
    progress: Progress | None = None,
) -> QuantizedModel:
    """Quantise a float model to an integer-only one.

    Parameters
    ----------
    model
        From `ibert_tvm.load`.
    calibration : sequence of str, of (str, str), or of mappings, optional
        Texts; pairs of texts, for a model of pairs as rerankers are; or batches of token ids:
        integer arrays [batch, seq_len] by input name. Some dozens of sequences that resemble later
        use. A checkpoint that was trained with quantisation needs none, and uses them only for
        ranges that it lacks; so does a model that came quantised (ONNX QDQ). A model that
        `ibert_tvm.train` tuned needs none, and is calibrated anew if there are some.
    preset : {"accurate", "paper", "released"}, optional
        Forms of the non-linear functions, and what calibration may do (docs/numerics.md). By
        default "released" for a checkpoint that was trained with quantisation, the only kind that
        it serves, and "accurate" for every other model.
    seq_len
        Texts are truncated to this many tokens; by default 128, or all that the model has
        positions for where these are fewer.
    fidelity : {"fast", "quick", "default", "best"}, optional
        Of a float model and the preset "accurate": how close the integers are to come to it, and at
        what cost (`ibert_tvm.quantization.fidelity`). "default" by default.
    observer : {"mse", "minmax", "percentile"}, optional
        How the range of an 8-bit activation is chosen; by default as the fidelity says, and "mse"
        where there is none.
    widen
        Of a model that came quantised: keep the residual stream in 16 bits where the model rounds
        it to 8.
    options
        All settings; given, `seq_len`, `fidelity`, `observer` and `widen` are not looked at.
    tokenizer
        For texts; by default the model's own.
    progress
        Called with the steps done and the steps there are.

    Raises
    ------
    UsageError
        If the calibration data is missing, empty or does not fit the model, or a setting is out of
        range.
    ModelError
        If a checkpoint's own ranges are asked for and it does not have them.
    PresetError
        If the preset is unknown.
    LoweringError, RangeError
        If the model cannot be lowered or an integer would not fit; names the layer.
    """
    source = scale_source(model, preset, calibration is not None)
    level = None
    if options is None:
        level = source.fidelity(fidelity)
        changes = {} if observer is None else {"observer": observer}
        length = model.info.length(seq_len)
        options = options_of(level or PLAIN_FIDELITY, seq_len=length, widen=widen, **changes)
    table, summary = source.choose(CalibrationData(calibration, options, tokenizer, progress))
    if level is not None:
        summary = {"fidelity": level, **summary}
    return assemble(model, table, summary)


def assemble(
    model: CanonicalModel, table: QuantizationTable, summary: JsonObject
) -> QuantizedModel:
    """Lower a model with the scales of a table, and prove that every integer fits.

    Parameters
    ----------
    model
        The float model.
    table
        All its scales.
    summary : mapping
        How they were chosen, for the record; from `calibrate`.

    Raises
    ------
    LoweringError, RangeError
        See `quantize`.
    """
    from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
    from ibert_tvm.relay_passes.integer.relax_ops import read_program
    from ibert_tvm.relay_passes.lower import lower_to_integer

    info = model.info
    if model.tokenizer:
        tokenizer = Tokenizer(model.tokenizer)
        tokenizer.check_ids(info.vocab_size)
        info = replace(info, tokenizer_behaviour=behaviour(tokenizer))
    lowered = lower_to_integer(model.module, model.parameters, table)
    # Compilation proves this again; a model that cannot be compiled is better refused here.
    program = read_program(lowered.module)
    analyse_ranges(program, lowered.parameters)
    return QuantizedModel(
        program=program,
        parameters=lowered.parameters,
        info=replace(info, notes=(*info.notes, *_costs(lowered.scales, summary))),
        quantization={
            "versions": {"ibert_tvm": __version__, "numpy": np.__version__},
            "preset": table.preset,
            **lowered.scales,
            "calibration": {k: v for k, v in summary.items() if k != "source_scales"},
            **{k: v for k, v in summary.items() if k == "source_scales"},
        },
        tokenizer=model.tokenizer,
    )


def _costs(scales: JsonObject, summary: JsonObject) -> list[str]:
    """What scales cost that the approximations do not serve: a sentence for each kind."""
    notes = []
    nearest: Mapping[str, Mapping[str, float]] = scales.get("nearest", {})
    if nearest:
        name, worst = max(nearest.items(), key=lambda item: item[1]["error"])
        notes.append(
            f"{len(nearest)} functions have operands whose scale their approximation does not "
            f"serve, and take the constants of another; {name} errs most, by up to "
            f"{worst['error']:.3g}, where a step of its operand is {worst['scale']:.3g}"
        )
    coarser = summary.get("coarser_queries", {})
    if coarser:
        name, share = max(coarser.items(), key=lambda item: item[1])
        notes.append(
            f"scores of {len(coarser)} attentions are nearly equal, and their queries have coarser "
            f"steps than 8 bits give, {share:.3g} times in {name}"
        )
    return notes


def calibrate(
    model: CanonicalModel,
    calibration: Calibration | None,
    preset: str | None,
    options: CalibrationOptions,
    *,
    tokenizer: Tokenizer | None = None,
    progress: Progress | None = None,
) -> tuple[QuantizationTable, JsonDict]:
    """Choose all scales and integer weights of a model.

    Parameters
    ----------
    model, calibration, preset, tokenizer, progress
        See `quantize`.
    options
        Settings.

    Returns
    -------
    table : QuantizationTable
        What lowering needs.
    summary : dict
        JSON-able: what was calibrated on and which smoothing was chosen. ``source_scales`` for a
        model that came quantised, see `ibert_tvm.quantization.scale_source.SourceScales.to_json`.

    Raises
    ------
    UsageError, ModelError
        See `quantize`.
    """
    source = scale_source(model, preset, calibration is not None)
    return source.choose(CalibrationData(calibration, options, tokenizer, progress))


def default_texts(source: CanonicalModel) -> list[str] | None:
    """Texts that a model is calibrated on by default; None if it came with its scales."""
    return packaged_texts("calibration.txt") if scale_source(source).needs_data else None


def quantize_by_default(
    source: CanonicalModel, progress: Progress | None = None, first: bool = False
) -> QuantizedModel:
    """Quantise a model as `ibert quantize` does by default.

    With the scales of the source where it has them, else those of English texts of many kinds.

    Parameters
    ----------
    source, progress
        See `quantize`; errors, too.
    first
        Of `FIRST_FIDELITY`, where there is a choice.
    """
    fidelity = FIRST_FIDELITY if first and not scale_source(source).fixed else None
    return quantize(source, default_texts(source), fidelity=fidelity, progress=progress)
