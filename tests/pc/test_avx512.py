"""AVX-512 VNNI on any machine: the bits of the specification, on an emulated processor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from tests.arm.small_bert import expected, inputs, small_bert
from tests.arm.tools import needs

from .machine import EMULATOR, SKYLAKE, MachineError, call_library, run_library

pytestmark = pytest.mark.slow

# Rows that no register tile divides, and padding.
SHAPES = [(1, 13), (2, 6)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs(EMULATOR, "gcc", "as", "ld")
    compiled = ibert.compile(small_bert(), "x86-avx512-vnni", SHAPES, runtime="none")
    return compiled.export(tmp_path_factory.mktemp("avx512") / "model.so")


def arrays(shape: tuple[int, int], tokens: int | None) -> dict[str, np.ndarray]:
    every = inputs(*shape, seed=sum(shape), tokens=tokens)
    return {name: every[name] for name in small_bert().input_names}


@pytest.mark.slow_cases(1)
@pytest.mark.parametrize(("shape", "tokens"), [((1, 13), None), ((1, 13), 7), ((2, 6), 4)])
def test_every_output_is_bit_exact(
    library: Path, shape: tuple[int, int], tokens: int | None
) -> None:
    given = arrays(shape, tokens)
    outputs = run_library(library, given)
    wanted = expected(small_bert(), given)
    assert len(outputs) == len(wanted) > 0
    for (name, got), want in zip(outputs.items(), wanted, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want, err_msg=name)


def test_a_processor_without_vnni_is_noticed(library: Path) -> None:
    """The emulated processor has what the target needs because it was chosen, not by chance."""
    with pytest.raises(MachineError, match="ended by an illegal instruction"):
        run_library(library, arrays((1, 13), None), SKYLAKE)


def test_an_error_of_the_interface_is_passed_on(library: Path) -> None:
    given = list(arrays((1, 13), None).values())
    with pytest.raises(MachineError, match="error 15 of the library's interface"):
        call_library(library, "ibert", (1, 13), [given[0][:, :2], *given[1:]], [1])
