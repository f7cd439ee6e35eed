"""Whole models through the product's own path on a GPU: bit for bit what the specification says.

Compiled with `ibert_tvm.compile`, exported, loaded and run, first kernel by kernel and then as one
graph. The kernels' CUDA source is executed by the stand-in GPU, with ``-m gpu`` by a real one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ibert_tvm.quantization.narrow_weights import with_narrow_weights
from tests.arm.small_bert import small_bert
from tests.arm.tools import needs
from tests.cuda.gpu_models import CAPABILITIES, as_model, build, check, random_inputs
from tests.cuda.stand_in_gpu import load
from tests.examples import examples
from tests.integration.families import EVERY, Model
from tests.integration.whole_models import minilm
from tests.passes.models import ENCODERS, encoder_program

CONVOLVED = [case for case in EVERY if case[0] == "convolutions" and "accurate" in case]
ORDERS = ("forward", "reverse", 11)


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


@pytest.mark.slow_cases(1)
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
    model = as_model(encoder_program(**ENCODERS[name], seed=3))
    shapes = [(1, 1), (3, 17)]
    library = build(model, target, shapes, tmp_path / "model.so")
    for shape, order in zip(shapes, ORDERS, strict=False):
        with load().order(order):
            check(library, model, random_inputs(model, *shape, seed=shape[1]))


@pytest.mark.slow
@pytest.mark.parametrize(("target", "bits"), [("t4", 8), ("h100", 8), ("a100", 4)])
def test_bert(target: str, bits: int, tmp_path: Path) -> None:
    model = small_bert(layers=2)
    if bits == 4:
        model = with_narrow_weights(model, [])
    library = build(model, target, [(2, 24)], tmp_path / "model.so")
    for seed, order in enumerate(ORDERS):
        with load().order(order):
            check(library, model, random_inputs(model, 2, 24, seed))


FAMILIES = [
    *((*case, ("t4", "a100")[place % 2]) for place, case in enumerate(CONVOLVED)),
    ("distances", "mpnet", "accurate", "t4"),
    ("distances", "window", "accurate", "t4"),
    ("distances", "buckets", "accurate", "t4"),
    ("gates", "silu", "accurate", "t4"),
    ("gates", "gelu", "paper", "a100"),
    ("groups", "rms", "accurate", "t4"),
    ("rotations", "modernbert", "accurate", "t4"),
    ("rotations", "roformer", "accurate", "t4"),
    ("row scales", "gated", "t4"),
    ("row scales", "bert", "a100"),
    ("sentences", "every pooling", "accurate", "t4"),
    ("sentences", "splade", "paper", "a100"),
    ("split channels", "a100"),
    ("tokens", "registers", "accurate", "t4"),
    ("tokens", "seen", "accurate", "t4"),
    ("tokens", "neighbours", "accurate", "a100"),
    ("wide operands", "gated", "a100"),
    ("wide operands", "bert", "t4"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    examples(
        [(*case, target) for case in EVERY for target in ("t4", "a100")],
        *FAMILIES,
        otherwise="record",
    ),
    ids="-".join,
)
def test_models_of_every_family(case: tuple[str, ...], tmp_path: Path) -> None:
    *names, target = case
    model = Model(*names)
    batch, length = model.family.shape
    batch, length = max(batch, 2), model.length(max(length, 13))
    library = build(model.quantised, target, [(batch, length)], tmp_path / "model.so")
    check(library, model.quantised, model.inputs(batch, length, 4, 7))


@pytest.mark.slow_cases(1)
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


# In the slow set MiniLM runs with every access checked, below.
@pytest.mark.record
@pytest.mark.parametrize(
    ("target", "preset"),
    [("t4", "accurate"), ("a100", "accurate"), ("h100", "accurate"), ("t4", "paper")],
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
