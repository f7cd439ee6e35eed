"""MiniLM with its real weights on microcontrollers, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

import ibert_tvm as ibert
from ibert_tvm.targets import get_target
from tests.integration.whole_models import minilm

from .packages import assert_bit_exact, document, inputs_for, link_package, run_package
from .tools import board

VOCABULARY = 30522


@pytest.mark.record
@pytest.mark.parametrize(
    ("target", "seq_len", "tokens"), [("cortex-m4", 128, 100), ("cortex-m55", 128, None)]
)
def test_minilm_is_bit_exact(target: str, seq_len: int, tokens: int | None, tmp_path: Path) -> None:
    """22 MB of weights beside the code: in all memories of the board that have room for one."""
    board(target)
    model = minilm()
    compiled = ibert.compile(model, target=target, shapes=[(1, seq_len)])
    package = compiled.export(tmp_path / "package")
    assert get_target(target).system == "bare-metal"
    flash = document(package)["memory"]["flash"]
    assert flash["code"] + flash["constants"] < 64 * 1024
    elf = link_package(package, tmp_path)
    inputs = inputs_for(model.input_names, seq_len, 1, VOCABULARY, tokens)
    run = run_package(package, elf, inputs, tmp_path)
    assert_bit_exact(model, inputs, run.outputs)


@pytest.mark.slow
def test_minilm_fits_the_memory_of_a_microcontroller() -> None:
    """The feed-forward layer's result lies over what it has read."""
    board("cortex-m4")
    compiled = ibert.compile(minilm(), target="cortex-m4", shapes=[(1, 32), (1, 128)])
    assert compiled.bare is not None
    arenas = compiled.bare.arena_bytes
    assert arenas[1, 32] <= 112 * 1024
    assert arenas[1, 128] <= 400 * 1024
    for function in compiled.bare.functions:
        assert function.arena_bytes == function.lower_bound
    in_place = [kernel.layer for kernel in compiled.bare.kernels if kernel.in_place]
    assert in_place and all(layer.endswith("output.dense") for layer in in_place)
