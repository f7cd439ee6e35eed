"""The entry point of post-training quantisation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeGuard

from ibert_tvm.relay_passes.spec.short_softmax import MOST_WIDE_KEYS

from ..common.errors import UsageError
from ..model.artefact import QuantizedModel
from ..model.tokenization import Tokenizer
from .batches import Batch, batches_of_arrays, batches_of_texts
from .fidelity import FIDELITIES, options_of
from .observe import observe_and_build
from .options import CalibrationOptions
from .pieces import Text, short_pieces
from .released import released_table
from .table import TableBuilder, TableReport

if TYPE_CHECKING:
    from ibert_tvm.relay_passes.quantization_table import QuantizationTable

    from ..frontend import CanonicalModel
    from ..frontend.given import GivenQuantization

__all__ = ["assemble", "calibrate", "quantize"]

_logger = logging.getLogger(__name__)

DEFAULT_PRESET = "accurate"
DEFAULT_FIDELITY = "default"
PLAIN_FIDELITY = "fast"
RELEASED = "released"

Calibration = Sequence[str] | Sequence[tuple[str, str]] | Sequence[Mapping[str, Any]]
Progress = Callable[[int, int], None]


def quantize(
    model: CanonicalModel,
    calibration: Calibration | None = None,
    preset: str | None = None,
    *,
    seq_len: int = 128,
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
    model : CanonicalModel
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
    seq_len : int
        Texts are truncated to this many tokens.
    fidelity : {"fast", "default", "best"}, optional
        Of a float model and the preset "accurate": how close the integers are to come to it, and at
        what cost (`ibert_tvm.quantization.fidelity`). "default" by default.
    observer : {"mse", "minmax", "percentile"}, optional
        How the range of an 8-bit activation is chosen; by default as the fidelity says, and "mse"
        where there is none.
    widen : bool
        Of a model that came quantised: keep the residual stream in 16 bits where the model rounds
        it to 8.
    options : CalibrationOptions, optional
        All settings; given, `seq_len`, `fidelity`, `observer` and `widen` are not looked at.
    tokenizer : Tokenizer, optional
        For texts; by default the model's own.
    progress : callable, optional
        Called with the steps done and the steps there are.

    Returns
    -------
    QuantizedModel

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
    if options is None:
        changes: dict[str, Any] = {"seq_len": seq_len, "widen": widen}
        if observer is not None:
            changes["observer"] = observer
        fidelity = _fidelity(model, preset, fidelity, _takes_trained(model, calibration, preset))
        options = options_of(fidelity or PLAIN_FIDELITY, **changes)
    else:
        fidelity = None
    table, summary = calibrate(
        model, calibration, preset, options, tokenizer=tokenizer, progress=progress
    )
    if fidelity is not None:
        summary = {"fidelity": fidelity, **summary}
    return assemble(model, table, summary)


def assemble(
    model: CanonicalModel, table: QuantizationTable, summary: Mapping[str, Any]
) -> QuantizedModel:
    """Lower a model with the scales of a table, and prove that every integer fits.

    Parameters
    ----------
    model : CanonicalModel
        The float model.
    table : QuantizationTable
        All its scales.
    summary : mapping
        How they were chosen, for the record; from `calibrate`.

    Returns
    -------
    QuantizedModel

    Raises
    ------
    LoweringError, RangeError
        See `quantize`.
    """
    from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
    from ibert_tvm.relay_passes.integer.relax_ops import read_program
    from ibert_tvm.relay_passes.lower import lower_to_integer

    lowered = lower_to_integer(model.module, model.parameters, table)
    # Compilation proves this again; a model that cannot be compiled is better refused here.
    program = read_program(lowered.module)
    analyse_ranges(program, lowered.parameters)
    return QuantizedModel(
        program=program,
        parameters=lowered.parameters,
        info=model.info,
        quantization={
            "preset": table.preset,
            **lowered.scales,
            "calibration": {k: v for k, v in summary.items() if k != "source_scales"},
            **{k: v for k, v in summary.items() if k == "source_scales"},
        },
        tokenizer=model.tokenizer,
    )


def _fidelity(
    model: CanonicalModel, preset: str | None, asked: str | None, takes_trained: bool
) -> str | None:
    """The fidelity of a model; none, and refused, where nothing can be chosen."""
    own = model.released is not None and (preset == RELEASED or preset is None)
    own = own or takes_trained
    if preset in (None, DEFAULT_PRESET) and not own and model.given is None:
        if asked is not None and asked not in FIDELITIES:
            raise UsageError(
                f"unknown fidelity {asked!r}",
                why="it says how close the integers are to come to the float model",
                todo=f"use one of: {', '.join(FIDELITIES)}",
            )
        return asked or DEFAULT_FIDELITY
    if asked is not None:
        raise UsageError(
            f"the fidelity {asked!r} for a model whose arithmetic leaves no choice",
            why="it came with its scales"
            if own or model.given is not None
            else f"the preset {preset} is computed as it was published",
            todo=f"leave it out, or use the preset {DEFAULT_PRESET}",
        )
    return None


def calibrate(
    model: CanonicalModel,
    calibration: Calibration | None,
    preset: str | None,
    options: CalibrationOptions,
    *,
    tokenizer: Tokenizer | None = None,
    progress: Progress | None = None,
) -> tuple[QuantizationTable, dict[str, Any]]:
    """Choose all scales and integer weights of a model.

    Parameters
    ----------
    model, calibration, preset, tokenizer, progress
        See `quantize`.
    options : CalibrationOptions
        Settings.

    Returns
    -------
    table : QuantizationTable
        What lowering needs.
    summary : dict
        JSON-able: what was calibrated on and which smoothing was chosen. ``source_scales`` for a
        model that came quantised, see `ibert_tvm.quantization.complete.SourceScales.to_json`.

    Raises
    ------
    UsageError, ModelError
        See `quantize`.
    """
    from ibert_tvm.relay_passes.lower import requirements

    trained = model.trained
    if trained is not None and _takes_trained(model, calibration, preset):
        needed = requirements(model.module, trained.preset)
        return trained.table(needed, model.parameters), {"source": "the scales of its training"}
    own = model.released
    if preset == RELEASED or (
        preset is None and own is not None and (own.trained or calibration is None)
    ):
        return _own_ranges(model, calibration, options, tokenizer, progress)
    preset = preset or DEFAULT_PRESET
    if model.given is not None:
        return _complete(model, model.given, calibration, preset, options, tokenizer, progress)
    if calibration is None:
        raise UsageError(
            "there is no calibration data",
            why=f"with the preset {preset} scales are chosen by running texts through the model",
            todo="give a list of texts, or a list of batches",
        )
    needed = requirements(model.module, preset)
    longest = model.info.max_sequence_length
    if longest is not None and longest > MOST_WIDE_KEYS:
        options = replace(options, wide_values=False)
    batches = _batches(model, calibration, options, tokenizer)
    builder = TableBuilder(needed, model.parameters, preset, options)
    table, report = observe_and_build(model, batches, builder, options, progress)
    return table, _summary(batches, options, report)


def _takes_trained(
    model: CanonicalModel, calibration: Calibration | None, preset: str | None
) -> bool:
    """Whether the scales of a training are taken: unless it is calibrated anew."""
    trained = model.trained
    return trained is not None and calibration is None and preset in (None, trained.preset)


def _complete(
    model: CanonicalModel,
    given: GivenQuantization,
    calibration: Calibration | None,
    preset: str,
    options: CalibrationOptions,
    tokenizer: Tokenizer | None,
    progress: Progress | None,
) -> tuple[QuantizationTable, dict[str, Any]]:
    """Choose the scales that a model lacks which came quantised."""
    from .complete import complete

    batches = None if calibration is None else _batches(model, calibration, options, tokenizer)
    table, source = complete(model, given, preset, options, batches, progress)
    summary: dict[str, Any] = {}
    if batches is not None and source.report is not None:
        summary = _summary(batches, options, source.report)
    return table, {**summary, "source_scales": source.to_json(given)}


def _summary(
    batches: Sequence[Batch], options: CalibrationOptions, report: TableReport
) -> dict[str, Any]:
    """What was calibrated on, and what was chosen."""
    lengths = [length for batch in batches for length in batch.lengths.tolist() if length]
    _logger.info("calibrated on %d sequences, %d tokens", len(lengths), sum(lengths))
    return {
        "sequences": len(lengths),
        "tokens": sum(lengths),
        "longest": max(lengths),
        "options": {
            **asdict(options),
            "alphas": list(options.alphas),
            "balance": list(options.balance),
        },
        "smoothing": report.alphas,
        "output_errors": report.errors,
        "row_scales": report.by_row,
    }


def _own_ranges(
    model: CanonicalModel,
    calibration: Calibration | None,
    options: CalibrationOptions,
    tokenizer: Tokenizer | None,
    progress: Progress | None,
) -> tuple[QuantizationTable, dict[str, Any]]:
    """Take the ranges of a checkpoint that was trained with quantisation."""
    if model.released is None:
        raise UsageError(
            f"the preset {RELEASED} cannot quantise this model",
            why="its scales are those of a checkpoint of transformers' ibert; this is a "
            f"{model.info.architecture} model",
            todo="use the preset accurate or paper",
        )
    batches = None
    if calibration is not None:
        batches = _batches(model, calibration, options, tokenizer)
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, len(batches or ()))

    return released_table(model, model.released, batches, options, advance)


def _batches(
    model: CanonicalModel,
    calibration: Calibration,
    options: CalibrationOptions,
    tokenizer: Tokenizer | None,
) -> list[Batch]:
    if isinstance(calibration, (str, bytes, Mapping)):
        raise UsageError(
            "the calibration data is a single item",
            why=f"it is a {type(calibration).__name__}",
            todo="give a list of texts, or a list of batches",
        )
    items = list(calibration)
    texts: list[Text] = [item for item in items if _is_text(item)]
    arrays = [item for item in items if isinstance(item, Mapping)]
    if len(texts) + len(arrays) != len(items) or (texts and arrays):
        kinds = sorted({type(item).__name__ for item in items})
        raise UsageError(
            "the calibration data is neither texts nor batches",
            why=f"its items are {', '.join(kinds)}",
            todo="give a list of str, of pairs (str, str), or of dicts of integer arrays",
        )
    if arrays:
        return batches_of_arrays(arrays, model.info)
    real = model.info.real_input
    if real is not None:
        name, size = model.info.inputs[0], ", ".join(map(str, model.info.image_size or ()))
        raise UsageError(
            f"a model of {real.what} cannot be calibrated with texts",
            why=f"it takes {name} [batch, {size}]",
            todo=f"give batches of {real.what}, as the model's {real.maker} makes them: "
            f"--calibration FILE.npz with an array {name}",
        )
    if tokenizer is None:
        if not model.tokenizer:
            raise UsageError(
                "texts cannot be tokenised",
                why="the model came without tokenizer files",
                todo="give batches of token ids, or a tokenizer",
            )
        tokenizer = Tokenizer(model.tokenizer)
    if options.short_pieces:
        texts += short_pieces(texts, options.seed)
    return batches_of_texts(texts, tokenizer, model.info, options.seq_len)


def _is_text(item: Any) -> TypeGuard[Text]:
    """Whether an item of calibration is a text, or a pair of texts."""
    pair = isinstance(item, tuple) and len(item) == 2
    return isinstance(item, str) or (pair and all(isinstance(part, str) for part in item))
