"""Whole models through the product's own path on a GPU: bit for bit what the specification says.

Compiled with `ibert_tvm.compile`, exported, loaded and run, first kernel by kernel and then as one
graph. The kernels' CUDA source is executed by the stand-in GPU, with ``-m gpu`` by a real one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.arm.small_bert import small_bert
from tests.cuda.gpu_models import CAPABILITIES, as_model, build, check, random_inputs
from tests.cuda.stand_in_gpu import load
from tests.cuda.tools import needs
from tests.examples import examples
from tests.integration.convolution_model import MODELS as CONVOLVED
from tests.integration.convolution_model import TOKENS as CONVOLVED_TOKENS
from tests.integration.convolution_model import convolution_model
from tests.integration.convolution_model import inputs as convolved_inputs
from tests.integration.gated_model import MODELS as GATED
from tests.integration.gated_model import gated_model
from tests.integration.row_scale_models import row_scale_model, wide_model
from tests.integration.sentence_model import MODULES as SENTENCES
from tests.integration.sentence_model import sentence_model
from tests.integration.split_model import split_model
from tests.integration.token_model import MODELS as JOINING
from tests.integration.token_model import TOKENS, token_model
from tests.integration.token_model import inputs as token_inputs
from tests.integration.whole_models import minilm
from tests.passes.models import encoder_program

ORDERS = ("forward", "reverse", 11)
PROGRAMS: dict[str, dict[str, Any]] = {
    "whole": {"hidden": 64, "heads": 2, "feed_forward": 64},
    "odd": {"hidden": 36, "heads": 3, "feed_forward": 50},
    "paper": {"hidden": 32, "heads": 2, "feed_forward": 48, "preset": "paper"},
    "relu_roberta": {
        "hidden": 32,
        "heads": 4,
        "feed_forward": 40,
        "activation": "relu",
        "roberta": True,
    },
}


@pytest.fixture(autouse=True)
def _compiler():
    needs("g++")
    yield
    load().reset()


SLOW = pytest.mark.slow


def turns_of_kernels() -> dict[str, tuple[int, int]]:
    """Turns of the banks of shared memory in observed kernels, and the least there could be."""
    turns: dict[str, tuple[int, int]] = {}
    for count in load().banks():
        before = turns.get(count.kernel, (0, 0))
        turns[count.kernel] = (before[0] + count.turns, before[1] + count.least)
    return turns


@SLOW
@pytest.mark.parametrize(
    ("name", "target"),
    examples(
        [
            *(
                (name, target)
                for name in ("odd", "paper", "relu_roberta")
                for target in ("t4", "a100")
            ),
            *(("whole", "t4"), ("whole", "h100")),
        ],
        *(("odd", "a100"), ("paper", "t4"), ("relu_roberta", "a100"), ("whole", "t4")),
        otherwise="record",
        unpack=True,
    ),
)
def test_encoders(name: str, target: str, tmp_path: Path) -> None:
    model = as_model(encoder_program(**PROGRAMS[name], seed=3))
    shapes = [(1, 1), (3, 17)]
    library = build(model, target, shapes, tmp_path / "model.so")
    for shape, order in zip(shapes, ORDERS, strict=False):
        with load().order(order):
            check(library, model, random_inputs(model, *shape, seed=shape[1]))


@pytest.mark.parametrize(
    "target", ["t4", *(pytest.param(name, marks=SLOW) for name in ("a100", "h100"))]
)
@pytest.mark.slow
def test_bert(target: str, tmp_path: Path) -> None:
    model = small_bert()
    library = build(model, target, [(2, 24)], tmp_path / "model.so")
    for seed, order in enumerate(ORDERS):
        with load().order(order):
            check(library, model, random_inputs(model, 2, 24, seed))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["t4", "a100"])
@pytest.mark.parametrize("name", ["gated", "bert"])
def test_scales_of_rows(name: str, target: str, tmp_path: Path) -> None:
    model = row_scale_model(name)
    library = build(model, target, [(2, 13)], tmp_path / "model.so")
    check(library, model, random_inputs(model, 2, 13, 4))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), [("gated", "a100"), ("bert", "t4")])
def test_operands_of_16_bits(name: str, target: str, tmp_path: Path) -> None:
    model = wide_model(name)
    library = build(model, target, [(2, 13)], tmp_path / "model.so")
    check(library, model, random_inputs(model, 2, 13, 4))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "preset", "target"),
    examples(
        [
            (name, preset, target)
            for name in GATED
            for preset in ("accurate", "paper")
            for target in ("t4", "a100")
        ],
        ("silu", "accurate", "t4"),
        ("gelu", "paper", "a100"),
        unpack=True,
        otherwise="record",
    ),
)
def test_gated_layers(name: str, preset: str, target: str, tmp_path: Path) -> None:
    model = gated_model(name, preset)
    library = build(model, target, [(2, 13)], tmp_path / "model.so")
    check(library, model, random_inputs(model, 2, 13, 4))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["t4", "a100"])
def test_split_channels(target: str, tmp_path: Path) -> None:
    library = build(split_model(), target, [(2, 13)], tmp_path / "model.so")
    check(library, split_model(), random_inputs(split_model(), 2, 13, 4))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "preset", "target"),
    examples(
        [
            (name, preset, target)
            for name in SENTENCES
            for preset in ("accurate", "paper")
            for target in ("t4", "a100")
        ],
        ("every pooling", "accurate", "t4"),
        ("splade", "paper", "a100"),
        unpack=True,
        otherwise="record",
    ),
)
def test_sentence_encoders(name: str, preset: str, target: str, tmp_path: Path) -> None:
    model = sentence_model(name, preset)
    library = build(model, target, [(2, 13)], tmp_path / "model.so")
    check(library, model, random_inputs(model, 2, 13, 4))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target"),
    examples(
        [(name, target) for name in JOINING for target in ("t4", "a100")],
        ("registers", "t4"),
        ("seen", "t4"),
        ("neighbours", "a100"),
        unpack=True,
        otherwise="record",
    ),
)
def test_tokens_that_are_joined_and_shifted(name: str, target: str, tmp_path: Path) -> None:
    model = token_model(name)
    length = TOKENS.get(name, 13)
    library = build(model, target, [(2, length)], tmp_path / "model.so")
    check(library, model, token_inputs(model, name, 2, length, 4, 7))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["t4", "a100"])
@pytest.mark.parametrize("name", CONVOLVED)
def test_encoders_behind_convolutions(name: str, target: str, tmp_path: Path) -> None:
    model = convolution_model(name)
    library = build(model, target, [(2, CONVOLVED_TOKENS[name])], tmp_path / "model.so")
    check(library, model, convolved_inputs(model, name, 2, 4))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["t4", "a100"])
def test_bert_does_nothing_that_a_gpu_does_not_forgive(
    device: object, target: str, tmp_path: Path
) -> None:
    if device is not None:
        pytest.skip("only the stand-in checks accesses")
    model = small_bert()
    library = build(model, target, [(2, 24)], tmp_path / "model.so", observed=True)
    check(library, model, random_inputs(model, 2, 24, 5), runs=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "preset"),
    examples(
        [("t4", "accurate"), ("a100", "accurate"), ("h100", "accurate"), ("t4", "paper")],
        ("t4", "accurate"),
        unpack=True,
        otherwise="record",
    ),
)
def test_minilm(target: str, preset: str, tmp_path: Path) -> None:
    model = minilm(preset=preset)
    shapes = [(1, 128), (2, 48)]
    library = build(model, target, shapes, tmp_path / "model.so")
    for shape in shapes:
        check(library, model, random_inputs(model, *shape, seed=shape[1]))


@pytest.mark.slow
@pytest.mark.parametrize("target", examples(CAPABILITIES, "a100", otherwise="record"))
def test_layers_of_bert_base(target: str, tmp_path: Path) -> None:
    model = as_model(encoder_program(hidden=768, heads=12, feed_forward=3072, seed=2))
    shapes = [(1, 40), (2, 64)]  # as many positions as the program has
    library = build(model, target, shapes, tmp_path / "model.so")
    for shape in shapes:
        check(library, model, random_inputs(model, *shape, seed=shape[1]))


@pytest.mark.slow
@pytest.mark.parametrize("target", examples(CAPABILITIES, "t4", otherwise="record"))
def test_minilm_with_every_access_checked(device: object, target: str, tmp_path: Path) -> None:
    if device is not None:
        pytest.skip("only the stand-in checks accesses")
    model = minilm()
    library = build(model, target, [(1, 64)], tmp_path / "model.so", observed=True)
    load().banks()
    check(library, model, random_inputs(model, 1, 64, seed=4), runs=1)
    # Shared memory serves nearly every instruction without one bank waiting for another.
    for kernel, (turns, least) in turns_of_kernels().items():
        assert turns <= 1.2 * least, kernel
