"""Whole programs compiled for every generation of GPUs: the audit passes, whatever their sizes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pytest

from ibert_tvm.schedules import schedule_module
from ibert_tvm.targets import get_target
from ibert_tvm.targets.build import GpuBuild, build_for_gpu
from tests.cuda.tools import cuda_toolchain
from tests.examples import examples
from tests.lowering import lowered
from tests.passes.models import encoder_program

TARGET = "cuda:sm_75+sm_80+sm_90"

RECORD = functools.partial(pytest.param, marks=pytest.mark.record)


def compiled(settings: Mapping[str, Any], shape: tuple[int, int], target: str) -> GpuBuild:
    """Compile an encoder; an audit that refuses is an exception."""
    description = get_target(target)
    made = lowered(encoder_program(**settings), description, [shape])
    return build_for_gpu(schedule_module(made.program.module, description), description)


def check(build: GpuBuild, matrix_kernels: int) -> None:
    """Look at what the audit let pass."""
    for architecture in ("sm_75", "sm_80", "sm_90"):
        audits = [a for a in build.device.audits if a.architecture == architecture]
        matrix = [a for a in audits if a.kind in ("linear", "attention")]
        assert len({a.kernel for a in matrix}) == matrix_kernels
        assert all(a.matrix and not a.local and not a.stack_bytes for a in matrix)
        assert all(not a.floating and not a.unknown and a.instructions for a in audits)
        assert all(a.kernel for a in audits), "a function that is no kernel was not inlined"
        assert {a.name for a in audits} == set(build.device.report["launches"])


# The encoder's projections, attention, its output, two feed-forward layers, the pooler.
MATRIX_KERNELS = 6


@pytest.mark.slow
def test_an_encoder_of_uneven_sizes() -> None:
    cuda_toolchain()
    settings = {"hidden": 36, "heads": 2, "feed_forward": 50}
    check(compiled(settings, (2, 19), TARGET), MATRIX_KERNELS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({"preset": "paper", "hidden": 64, "heads": 1, "feed_forward": 256}, (2, 64)),
        RECORD({"preset": "paper", "hidden": 36, "heads": 4, "roberta": True}, (1, 1)),
        RECORD({"hidden": 384, "heads": 12, "feed_forward": 1536, "masked": True}, (8, 64)),
        RECORD({"hidden": 768, "heads": 12, "feed_forward": 3072, "masked": True}, (32, 64)),
        RECORD({"hidden": 1024, "heads": 16, "feed_forward": 4096, "activation": "relu"}, (4, 64)),
        RECORD({"hidden": 256, "heads": 2, "masked": True}, (3, 53)),
    ],
    ids=str,
)
def test_encoders(settings: dict[str, Any], shape: tuple[int, int]) -> None:
    cuda_toolchain()
    check(compiled(settings, shape, TARGET), MATRIX_KERNELS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    examples(["cuda:sm_86+sm_89", "cuda:sm_100", "cuda:sm_120"], "cuda:sm_120", otherwise="record"),
)
def test_newer_gpus(target: str) -> None:
    cuda_toolchain()
    build = compiled({"hidden": 128, "heads": 2, "feed_forward": 512}, (1, 64), target)
    assert build.device.report["architectures"] == target.removeprefix("cuda:").split("+")
    assert all(not a.floating and not a.unknown for a in build.device.audits)
