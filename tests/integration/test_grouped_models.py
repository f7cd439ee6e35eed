"""Shared keys, norms of heads, capped scores: from torch to libraries, every integer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tvm import tirx

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.relay_passes.emit import KernelLayout
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.integer.unbounded import check_unbounded
from ibert_tvm.relay_passes.passes import (
    IntegerProgram,
    TargetKind,
    lower_to_kernels,
    phases_of,
)
from ibert_tvm.relay_passes.passes.pipeline import Lowered
from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.schedules.cuda import CUDA_RULES
from ibert_tvm.schedules.cuda.fallback import FallbackRule
from ibert_tvm.targets import get_target
from tests.arm.whole_models import check_on_board, check_on_microcontroller
from tests.cache import quantised_once
from tests.cuda.gpu_models import build, check
from tests.examples import examples
from tests.frontend.grouped_modules import VOCABULARY, Grouped, grouped
from tests.integration.gated_model import inputs
from tests.integration.whole_models import assert_bit_exact, build_library
from tests.passes.small import kernels

LENGTH = 13
# Both norms, weights of all heads and of each, and one head of keys.
MODELS = {
    "rms": ("gqa", 2, "rms"),
    "own": ("expand", 1, "own layer norm"),
    "plain": ("gqa", 2, ""),
    "capped": ("capped", 2, ""),
}
PRESETS = ("accurate", "paper")
CASES = examples(
    [(name, preset) for name in MODELS for preset in PRESETS], ("rms", "accurate"), unpack=True
)
EVERYWHERE = [(name, preset) for name in ("rms", "own", "capped") for preset in PRESETS]


def source(name: str) -> Grouped:
    return grouped(*MODELS[name])


@quantised_once
def grouped_model(name: str, preset: str = "accurate") -> QuantizedModel:
    canonical = ibert.load(source(name), verify=False)
    batches = [inputs(8, 24, seed) for seed in range(6)]
    return ibert.quantize(canonical, calibration=batches, preset=preset)


def test_the_vocabulary_is_that_of_the_inputs() -> None:
    assert inputs(8, 24, 0)["input_ids"].max() < VOCABULARY


@pytest.mark.slow
@pytest.mark.parametrize(("name", "preset"), CASES)
def test_the_library_is_bit_exact(name: str, preset: str, tmp_path: Path) -> None:
    model = grouped_model(name, preset)
    library = build_library(model, [(2, LENGTH)], tmp_path)
    for tokens in (LENGTH, 5, 1):
        assert_bit_exact(library, model, inputs(2, LENGTH, tokens, tokens))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "preset"), CASES)
def test_a_library_without_runtime_is_bit_exact(name: str, preset: str, tmp_path: Path) -> None:
    model = grouped_model(name, preset)
    compiled = ibert.compile(model, target="host", shapes=[(2, LENGTH)], runtime="none")
    library = ibert.load_library(compiled.export(tmp_path / "model.so"))
    assert_bit_exact(library, model, inputs(2, LENGTH, 3, 5))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "preset"), CASES)
def test_no_intermediate_leaves_its_interval(name: str, preset: str) -> None:
    model = grouped_model(name, preset)
    report = analyse_ranges(model.module, model.parameters, max_seq_len=24)
    arrays = {k: v.astype("int64") for k, v in inputs(2, 9, 3, 4).items()}
    assert check_unbounded(model.module, arrays, model.parameters, report.details) == []


@pytest.mark.parametrize(("name", "preset"), CASES)
def test_the_integers_stand_for_the_float_model(name: str, preset: str) -> None:
    model, arrays = grouped_model(name, preset), inputs(4, 24, 99, 11)
    (found,) = evaluate(model.module, arrays, model.parameters)
    found = found * model.quantization["outputs"][0]["scale"]
    with torch.no_grad():
        wanted = source(name)(*(torch.tensor(a).long() for a in arrays.values())).numpy()
    real = arrays["attention_mask"] != 0
    error = found[real] - wanted[real]
    ratio = (wanted[real] ** 2).sum() / (error**2).sum()
    assert 10 * np.log10(ratio) > (40 if preset == "accurate" else 36)


def lowered(name: str, target: str) -> Lowered:
    description, model = get_target(target), grouped_model(name)
    layout = KernelLayout.of(description.dot, description.vector_lanes, description.functions)
    program = IntegerProgram(model.module, model.parameters)
    phases = phases_of(TargetKind.of(description))
    return lower_to_kernels(program, layout, [(2, LENGTH)], phases=phases)


def test_kernels_of_norms_end_in_what_attention_reads() -> None:
    found = [
        [op for op, _ in k] for k in kernels(lowered("rms", "x86-64-v3").fused.module).values()
    ]
    assert found.count(["rms_norm_short", "requantise_short"]) == 2
    assert found.count(["attention"]) == 1


@pytest.mark.slow
def test_unequal_projections_are_one_product() -> None:
    """Of queries and keys; values of 16 bits are another kind of result."""
    found = kernels(lowered("plain", "x86-64-v3").fused.module)
    assert [op for op, _ in found["attention"]] == [*["channel_run"] * 2, "attention"]


@pytest.mark.parametrize("name", examples(["rms", "own"], "rms"))
def test_no_kernel_of_a_gpu_needs_a_grid_per_stage(name: str) -> None:
    rules = [rule for rule in CUDA_RULES if not isinstance(rule, FallbackRule)]
    written = [
        schedule_kernel(var.name_hint, func, get_target("t4"), rules)
        for var, func in lowered(name, "t4").program.module.functions_items()
        if isinstance(func, tirx.PrimFunc) and "ibert.kernel" in func.attrs
    ]
    assert len(written) >= 8


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("target", "name", "preset"),
    examples(
        [(target, *case) for target in ("rpi4", "armv7-neon") for case in EVERYWHERE],
        ("rpi4", "rms", "accurate"),
        ("armv7-neon", "own", "accurate"),
        unpack=True,
        otherwise="record",
    ),
)
def test_on_boards(target: str, name: str, preset: str, tmp_path: Path) -> None:
    arrays = inputs(1, LENGTH, 1, LENGTH - 4)
    check_on_board(grouped_model(name, preset), target, (1, LENGTH), arrays, tmp_path)


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("target", "name", "preset"),
    examples(
        [(target, *case) for target in ("cortex-m4", "cortex-m55") for case in EVERYWHERE],
        ("cortex-m4", "rms", "accurate"),
        unpack=True,
        otherwise="record",
    ),
)
def test_on_microcontrollers(target: str, name: str, preset: str, tmp_path: Path) -> None:
    arrays = inputs(1, LENGTH, 1, LENGTH - 4)
    check_on_microcontroller(grouped_model(name, preset), target, LENGTH, arrays, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "preset", "target"),
    examples(
        [(*case, target) for case in EVERYWHERE for target in ("t4", "a100")],
        ("rms", "accurate", "t4"),
        unpack=True,
        otherwise="record",
    ),
)
def test_on_a_gpu(name: str, preset: str, target: str, tmp_path: Path) -> None:
    model = grouped_model(name, preset)
    library = build(model, target, [(2, LENGTH)], tmp_path / "model.so")
    check(library, model, inputs(2, LENGTH, 3, 5))
