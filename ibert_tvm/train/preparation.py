"""`prepare`: a float model to one that is trained with the integers that will run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ibert_tvm.relay_passes.quantization_table import QuantizationTable

from ..common.errors import UsageError
from ..frontend import load
from ..frontend.hf_folder import HfFolder, check_head
from ..frontend.transformers_import import load_folder
from ..model.trained_scales import TrainedScales
from ..quantization import calibrate, options_of
from ..quantization.batches import Calibration
from ..quantization.fidelity import PLAIN_FIDELITY
from ..quantization.scale_source import Progress
from .module import IntegerModel


def prepare(
    model: str | Path | torch.nn.Module,
    preset: str | None = None,
    calibration: Calibration | None = None,
    *,
    head: str | None = None,
    seq_len: int | None = None,
    fidelity: str = "default",
    learn_scales: bool = False,
    progress: Progress | None = None,
    word_table_bits: int = 8,
    split_channels: bool = True,
) -> IntegerModel:
    """Wrap a transformers model for training with integers.

    Parameters
    ----------
    model : path or transformers.PreTrainedModel
        A Hugging Face folder, or a model in memory, which becomes part of the result: its
        parameters are trained.
    preset : {"accurate", "paper", "released"}, optional
        Forms of the non-linear functions; "released" for checkpoints of I-BERT. By default that of
        an earlier training, and otherwise as for `ibert_tvm.quantize`.
    calibration : sequence of str, or of mappings, optional
        Texts or batches that scales are chosen from, as for `ibert_tvm.quantize`; needed unless the
        model has scales of an earlier training.
    head
        One of `ibert_tvm.model.heads.HEADS`.
    seq_len
        Calibration texts are truncated to this many tokens, as for `ibert_tvm.quantize`.
    fidelity : {"fast", "quick", "default", "best"}
        How scales are chosen, preset "accurate".
    learn_scales
        Train the scales of matrix operands too (LSQ). Otherwise they stay as calibrated.
    progress
        Called with the steps of the calibration done and those there are.
    word_table_bits
        8, or 4 as `ibert quantize --word-table-bits 4` has them; the table is then not trained.
    split_channels
        Split channels with outliers as the fidelity has it. Matrices of 4 bits read none: copies in
        a group have no scale that fits each of them.

    Raises
    ------
    UsageError
        If the model is of another kind, or calibration data is missing.
    """
    folder = None
    if isinstance(model, (str, Path)):
        read = HfFolder.read(model)
        canonical = load(model, head)
        head = canonical.info.head
        check_head(head, "none")
        source, _ = load_folder(read, head)
        folder = read.path
    elif hasattr(model, "config") and hasattr(model, "base_model"):
        source, canonical = model.eval(), load(model, head)
    else:
        raise UsageError(
            f"a {type(model).__name__} cannot be trained",
            where="prepare",
            why="what was trained is saved as transformers saves it",
            todo="give a Hugging Face folder, or a transformers model",
        )
    own = canonical.trained
    if own is not None and preset in (None, own.preset) and calibration is None:
        return IntegerModel(source, canonical, own, learn_scales, folder, word_table_bits)
    if canonical.released is not None and preset in (None, "released"):
        canonical.released.refuse_without_calibration()
        return IntegerModel(source, canonical, canonical.released, learn_scales, folder)
    chosen = preset or "accurate"
    level = fidelity if chosen == "accurate" else PLAIN_FIDELITY
    forms = {} if split_channels else {"split_share": 0.0}
    recipe = options_of(level, seq_len=canonical.info.length(seq_len), **forms)
    table, _ = calibrate(canonical, calibration, chosen, recipe, progress=progress)
    scales = TrainedScales.of_table(table, canonical.info.head)
    result = IntegerModel(source, canonical, scales, learn_scales, folder, word_table_bits)
    _take_rounded(result, table)
    return result


def _take_rounded(model: IntegerModel, table: QuantizationTable) -> None:
    """Start from the weights that calibration rounded so that outputs change little.

    Rounding to the nearest then gives back its integers. A matrix that several layers read with
    other scales, or whose columns differ where a channel was split, stays as it was.
    """
    start: Mapping[str, Any] = model.rounded_start(table)
    own = dict(model.model.named_parameters())
    with torch.no_grad():
        for parameter, array in start.items():
            own[parameter].copy_(torch.from_numpy(np.ascontiguousarray(array)))
