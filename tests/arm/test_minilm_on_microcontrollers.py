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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "seq_len", "tokens"),
    [pytest.param("cortex-m4", 128, 100, marks=pytest.mark.record), ("cortex-m55", 128, None)],
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
