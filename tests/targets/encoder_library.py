"""A small encoder compiled for a target, to be exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tvm import relax

from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.schedules import schedule_module
from ibert_tvm.targets import TargetDescription, get_target
from ibert_tvm.targets.build import build_executable
from ibert_tvm.targets.export import export_library
from tests.lowering import lowered
from tests.passes.models import encoder_program

METADATA = {"format": 1, "note": "größer als ASCII", "functions": [{"name": "main_b1_s5"}]}


@dataclass(frozen=True)
class Build:
    """What `export_library` takes, besides the path."""

    executable: relax.VMExecutable
    parameters: Mapping[str, np.ndarray]
    target: TargetDescription

    def export(self, path: Path, **changes: Any) -> Path:
        """Export it, with some arguments changed."""
        arguments = {
            "parameters": self.parameters,
            "metadata": METADATA,
            "description": self.target,
            **changes,
        }
        export_library(self.executable, path=path, **arguments)
        return path


SHAPES = ((1, 5),)


def build_encoder(
    target_name: str, shapes: Sequence[tuple[int, int]] = SHAPES, **settings: Any
) -> Build:
    """Compile an encoder layer for a target; nothing is run, so any target will do."""
    return build_program(encoder_program(**settings), target_name, shapes)


def build_program(
    integers: IntegerProgram, target_name: str, shapes: Sequence[tuple[int, int]] = SHAPES
) -> Build:
    """Compile any program for a target."""
    target = get_target(target_name)
    program = lowered(integers, target, shapes).program
    executable = build_executable(schedule_module(program.module, target), target)
    return Build(executable, program.parameters, target)
