"""What row operations and the rest compile to for a GPU, read off their machine code."""

from __future__ import annotations

import functools

import pytest

from ibert_tvm.targets import get_target
from tests.arm.row_kernels import KERNELS
from tests.cuda.machine_code import MachineCode, machine_code


@functools.cache
def compiled(target: str) -> MachineCode:
    """All row kernels for one architecture."""
    description = get_target(target)
    return machine_code(
        target, {name: make(description, 128, 768).func for name, make in KERNELS.items()}
    )


@pytest.mark.slow
@pytest.mark.parametrize("target", ["t4", "a100", "h100"])
def test_machine_code_has_no_floating_point_and_keeps_numbers_in_registers(target: str) -> None:
    made = compiled(target)
    # Half the registers of a thread that still lets two thousand run in a multiprocessor.
    assert made.audits["layer_norm"].registers <= 64
    assert "ibert::store_packed<int8_t, " in made.source
    assert "ibert::copy_bytes<16>" in made.source


# Instructions of a thread for 8 channels (GELU, LayerNorm) of 768, as measured and a tenth more:
# what is spelled with one clamp, shift or division too many shows here.
MOST_INSTRUCTIONS = {"gelu": 211, "requantise": 106, "layer_norm": 343, "embedding": 97}


@pytest.mark.slow
def test_machine_code_takes_no_more_instructions_than_it_needs() -> None:
    audits = compiled("t4").audits
    found = {name: audits[name].instructions for name in MOST_INSTRUCTIONS}
    assert {name: found[name] for name in found if found[name] > MOST_INSTRUCTIONS[name]} == {}
