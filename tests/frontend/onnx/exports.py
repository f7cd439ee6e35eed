"""Exports of small transformers models by torch's two exporters, kept per test session."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ibert_tvm.frontend.heads import ModelWithHead
from tests.frontend.architectures import make

LONGEST = 38
"""Positions that every architecture has."""


def inputs_of(architecture: str) -> list[str]:
    names = ["input_ids", "attention_mask"]
    return [*names, "token_type_ids"] if architecture in ("bert", "electra") else names


@cache
def exported(
    folder: Path,
    architecture: str,
    attention: str = "eager",
    dynamo: bool = False,
    opset: int = 17,
    head: str = "none",
    shape: tuple[int, int] | None = None,
) -> Path:
    """Export a model; with dynamic axes unless a shape is given."""
    model = make(architecture, head).eval()
    model.set_attn_implementation(attention)
    label = f"{architecture}-{attention}-{'dynamo' if dynamo else 'legacy'}-{opset}-{head}-{shape}"
    file = folder / f"{label.replace(' ', '')}.onnx"
    export(model, file, inputs_of(architecture), dynamo, opset, head, shape)
    return file


def export(
    model: Any,
    file: Path,
    names: Sequence[str],
    dynamo: bool,
    opset: int = 18,
    head: str = "none",
    shape: tuple[int, int] | None = None,
) -> None:
    """Write a model of transformers, or any module; with dynamic axes unless a shape is given."""
    example = {name: torch.ones(shape or (2, 13), dtype=torch.int64) for name in names}
    axes: dict[str, Any] = {}
    if shape is None and dynamo:
        sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=LONGEST)}
        axes["dynamic_shapes"] = {name: sizes for name in names}
    elif shape is None:
        axes["dynamic_axes"] = {name: {0: "batch", 1: "tokens"} for name in names}
    output = {"none": "last_hidden_state", "pooled": "pooler_output"}.get(head, "logits")
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            torch.onnx.export(
                ModelWithHead(model, head) if hasattr(model, "config") else model,
                (),
                str(file),
                kwargs=example,
                input_names=list(names),
                output_names=[output],
                opset_version=opset,
                dynamo=dynamo,
                **axes,
            )
        finally:
            logging.disable(logging.NOTSET)
