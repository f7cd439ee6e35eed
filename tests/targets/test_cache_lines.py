"""Loops of products with AVX2 start in cache lines of their own, whatever code lies in front."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.processes import run_captured
from tests.targets.encoder_library import build_encoder

LINE = 64  # bytes of a cache line
INSTRUCTION = re.compile(r"^\s+([0-9a-f]+):\s+(\S+)(?:\s+([0-9a-f]+)\b)?", re.M)


@pytest.mark.slow
def test_loops_of_products_start_in_cache_lines_of_their_own(tmp_path: Path) -> None:
    build = build_encoder("x86-64-v3", hidden=64, heads=2, feed_forward=96)
    listing = run_captured(
        ["objdump", "-d", "--no-show-raw-insn", str(build.export(tmp_path / "model.so"))],
        check=True,
    ).stdout
    code = [(int(at, 16), name, goal) for at, name, goal in INSTRUCTION.findall(listing)]
    products = [at for at, name, _ in code if name == "vpmaddwd"]
    # Conditional ones: others call functions of other sections.
    jumps = [(int(goal, 16), at) for at, name, goal in code if re.match("j(?!mp)", name) and goal]
    loops = [
        start
        for start, end in jumps
        if start < end and any(start <= product <= end for product in products)
    ]
    assert len(loops) > 10
    assert {start % LINE for start in loops} == {0}
