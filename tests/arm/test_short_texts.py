"""What a text costs on a microcontroller that has fewer tokens than the package holds."""

from __future__ import annotations

from pathlib import Path

import pytest

import ibert_tvm as ibert
from benchmarks.arm.counting import Counting
from ibert_tvm.targets import get_target

from .packages import (
    VOCABULARY,
    assert_bit_exact,
    inputs_for,
    link_package,
    run_package,
    small_bert,
)
from .tools import board

LENGTH = 32
TARGETS = ["cortex-m0", "cortex-m3", "cortex-m4", "cortex-m55", "rv32imc"]


@pytest.mark.slow_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_a_short_text_takes_the_instructions_of_its_tokens(name: str, tmp_path: Path) -> None:
    board(name)
    model = small_bert()
    compiled = ibert.compile(model, target=name, shapes=[(1, LENGTH)])
    package = compiled.export(tmp_path / "package")
    elf = link_package(package, tmp_path)

    def instructions(tokens: int) -> int:
        inputs = inputs_for(model.input_names, LENGTH, 1, VOCABULARY, tokens)
        with Counting(elf, get_target(name), [], within="ibert_run") as counting:
            run = run_package(package, elf, inputs, tmp_path, plugin=counting.argument)
            assert_bit_exact(model, inputs, run.outputs)
            return counting.counts().instructions

    counts = {tokens: instructions(tokens) for tokens in (1, 6, 16, 17, LENGTH)}
    # A tile of rows that is begun, at most five, is computed whole; weights are widened once.
    for tokens, count in counts.items():
        assert count <= (tokens + 5) / LENGTH * counts[LENGTH], counts


@pytest.mark.slow
def test_more_tokens_never_take_less_memory() -> None:
    board("cortex-m4")
    arenas = []
    for tokens in (1, 7, 8, 17, 24):
        compiled = ibert.compile(small_bert(), target="cortex-m4", shapes=[(1, tokens)])
        assert compiled.bare is not None
        arenas.append(compiled.bare.functions[0].arena_bytes)
    assert arenas == sorted(arenas)
