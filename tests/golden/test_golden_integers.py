"""Integers that no change of structure may change: compared with digests written down before it.

Equality of compiled code and specification does not show it if both change alike; these tests do.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.quantization import calibrate
from ibert_tvm.targets import register_target, unregister_target
from tests.arm.packages import link_package, run_package
from tests.arm.tools import board, needs, run_library
from tests.cuda import gpu_models
from tests.cuda.stand_in_gpu import load as load_gpu
from tests.examples import examples
from tests.golden import digests
from tests.golden.models import (
    MODELS,
    calibration,
    canonical,
    inputs,
    library,
    quantized,
    shape,
    stored_activations,
    tables,
)
from tests.pc import machine as pc
from tests.twins import tiles_in_plain_c

SLOW = pytest.mark.slow
pytestmark = pytest.mark.slow_cases(len(MODELS))
# The others have no kernel that none of these has.
COMPILED = ("bert", "bert-paper", "odd", "roberta", "distilbert", "electra", "deit", "ibert")
COMPILED += ("ibert-mean", "qdq", "qdq-widened", "minilm", "minilm-paper", "bert-base")
COMPILED += ("bert-default", "bert-best", "bert-words-4", "bert-4", "minilm-default")
# One for each source of models, preset and fidelity; the others are for the record.
KINDS = (
    "bert-default",
    "bert-best",
    "bert-words-4",
    "bert-4",
    "bert-paper",
    "odd",
    "deit",
    "ibert",
    "qdq",
)
KINDS += ("minilm-default",)
CLOSE = ("bert-default", "bert-best")
ON_TARGETS = (*CLOSE, "bert-words-4", "bert-4", "odd-paper", "ibert")
# `default` on each of a family, the others on one of them, and on all in the record.
BOARDS = ("aarch64-dotprod", "aarch64-i8mm", "armv7-neon", "rv64gc", "rv64gcv")
MICROCONTROLLERS = ("cortex-m0", "cortex-m4", "cortex-m55", "rv32imc")
# Of bert-base no calibration is stored. For ibert-accurate two strengths of smoothing come within
# 0.1% of each other, so that last bits decide between them.
NOT_CALIBRATED = ("bert-base", "ibert-accurate")
CALIBRATED = [
    name
    for name, golden in MODELS.items()
    if not (golden.scales or golden.scales_of or name in NOT_CALIBRATED)
]


def some_slow(names: Iterable[str], fast: Container[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in fast else SLOW) for name in names]


def on_targets(targets: Sequence[str], one: str) -> list[Any]:
    """Names and targets of a family, of which `one` has all names."""
    cases = [(name, target) for name in ON_TARGETS for target in targets]
    kept = [(name, target) for name, target in cases if target == one or name == CLOSE[0]]
    return examples(cases, *kept, unpack=True, otherwise="record")


def golden_outputs(name: str) -> digests.Section:
    return digests.stored()[name]["outputs"]


@pytest.mark.parametrize(
    "name", some_slow(MODELS, {name for name, golden in MODELS.items() if golden.fast})
)
def test_the_specification_gives_the_golden_integers(name: str) -> None:
    assert digests.differences(digests.stored()[name], digests.specification(name)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", examples(COMPILED, *KINDS, otherwise="record"))
def test_the_library_for_this_machine_gives_the_golden_outputs(name: str, tmp_path: Path) -> None:
    assert digests.of_arrays(library(name, tmp_path / "model.so")) == golden_outputs(name)


def test_every_model_has_digests_and_what_it_needs_in_the_table() -> None:
    assert list(digests.stored()) == list(MODELS)
    needed = {g.scales_of or name for name, g in MODELS.items() if not g.scales}
    assert needed <= tables().keys()


def test_one_bit_makes_another_digest() -> None:
    array = np.arange(6, dtype=np.int8).reshape(2, 3)
    changed = array.copy()
    changed[1, 2] ^= 1
    others = [changed, array.reshape(3, 2), array.astype(np.int16), array.view(np.uint8)]
    assert len({digests.of_array(one) for one in [array, *others]}) == 5
    assert digests.of_array(np.asfortranarray(array)) == digests.of_array(array)
    want = {"values": {"a": "0", "b": "1", "c": "2"}}
    got = {"values": {"a": "0", "b": "3", "d": "2"}}
    assert digests.differences(want, want) == []
    assert digests.differences(want, got) == ["values: 3 of 4 differ, first 'b'"]


# -- calibration: not the same bits on every processor -------------------------------------------


@SLOW
@pytest.mark.parametrize(
    "name",
    examples(CALIBRATED, *(name for name in CALIBRATED if name in KINDS), otherwise="record"),
)
def test_calibration_comes_to_the_scales_of_the_table(name: str) -> None:
    """The float model's last bits depend on the processor: scales differ by less than 1e-6."""
    golden = MODELS[name]
    table, _ = calibrate(canonical(golden.source), calibration(name), golden.preset, golden.options)
    got, want = stored_activations(table), tables()[name]
    assert got.keys() == want.keys()
    for section, entries in want.items():
        assert list(got[section]) == list(entries)
        if section == "offsets":  # of channels, which nothing is divided by
            for key, offset in entries.items():
                np.testing.assert_allclose(got[section][key], offset, atol=1e-4, err_msg=key)
            continue
        for key, (scale, low, high, zero_point, *more) in entries.items():
            ours = got[section][key]
            assert ours[1:4] == [low, high, zero_point], key
            assert ours[0] == pytest.approx(scale, rel=1e-4), key
            assert len(ours) == 4 + len(more), key
            if more:
                np.testing.assert_allclose(ours[4], more[0], rtol=0.02, err_msg=key)
            for kind, values in more[1].items() if len(more) > 1 else ():
                np.testing.assert_allclose(ours[5][kind], values, atol=1, err_msg=key)


# -- other targets -------------------------------------------------------------------------------


@SLOW
@pytest.mark.qemu
@pytest.mark.parametrize(("name", "target"), on_targets(BOARDS, "armv7-neon"))
def test_boards_give_the_golden_outputs(name: str, target: str, tmp_path: Path) -> None:
    description = board(target)
    compiled = ibert.compile(quantized(name), target, shapes=[shape(name)], runtime="none")
    path = compiled.export(tmp_path / "model.so")
    outputs = run_library(path, description, inputs(name))
    assert digests.of_arrays(outputs) == golden_outputs(name)


@SLOW
@pytest.mark.parametrize("name", ON_TARGETS)
def test_avx512_vnni_gives_the_golden_outputs(name: str, tmp_path: Path) -> None:
    needs(pc.EMULATOR)
    target = "x86-avx512-vnni"
    compiled = ibert.compile(quantized(name), target, shapes=[shape(name)], runtime="none")
    outputs = pc.run_library(compiled.export(tmp_path / "model.so"), inputs(name))
    assert digests.of_arrays(outputs) == golden_outputs(name)


@SLOW
@pytest.mark.parametrize("name", examples(ON_TARGETS, CLOSE[0], "odd-paper", otherwise="record"))
def test_tiles_in_plain_c_give_the_golden_outputs(name: str, tmp_path: Path) -> None:
    target = tiles_in_plain_c()
    register_target(target)

    def build(model: Any, shapes: list[tuple[int, int]], path: Path) -> Any:
        runtime = "none" if name == "odd-paper" else "tvm"
        ibert.compile(model, target.name, shapes=shapes, runtime=runtime).export(path)
        return ibert.load_library(path, num_threads=1)

    try:
        outputs = library(name, tmp_path / "model.so", build)
    finally:
        unregister_target(target.name)
    assert digests.of_arrays(outputs) == golden_outputs(name)


@SLOW
@pytest.mark.qemu
@pytest.mark.parametrize(("name", "target"), on_targets(MICROCONTROLLERS, "cortex-m4"))
def test_microcontrollers_give_the_golden_outputs(name: str, target: str, tmp_path: Path) -> None:
    board(target)
    model = quantized(name)
    package = ibert.compile(model, target, shapes=[shape(name)]).export(tmp_path / "package")
    elf = link_package(package, tmp_path)
    run = run_package(package, elf, inputs(name), tmp_path)
    names = [output.name for output in model.info.outputs]
    outputs = dict(zip(names, run.outputs, strict=True))
    assert digests.of_arrays(outputs) == golden_outputs(name)


@SLOW
@pytest.mark.parametrize("name", ON_TARGETS)
def test_gpus_give_the_golden_outputs(name: str, gpu_target: str, tmp_path: Path) -> None:
    needs("g++")

    def build(model: Any, shapes: list[tuple[int, int]], path: Path) -> Any:
        return gpu_models.build(model, gpu_target, shapes, path)

    try:
        outputs = library(name, tmp_path / "model.so", build)
        assert digests.of_arrays(outputs) == golden_outputs(name)
    finally:
        load_gpu().reset()
