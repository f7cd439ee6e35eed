"""Matrix operands of 16 bits from torch to the loaded library: integers, kernels, intervals."""

from __future__ import annotations

import pytest

from ibert_tvm.relay_passes.passes import TargetKind, phases_of
from tests.integration.row_scale_models import wide_model
from tests.lowering import lowered
from tests.passes.small import kernels


def found_kernels(target: str) -> list[list[str]]:
    """Operators of each kernel that a target gets."""
    made = lowered(wide_model("bert"), target, [(2, 13)], phases_of(TargetKind.PROCESSOR))
    return [[op for op, _ in kernel] for kernel in kernels(made.fused.module).values()]


@pytest.mark.slow
def test_avx2_multiplies_them_as_they_are() -> None:
    found = found_kernels("x86-64-v3")
    assert not any("operand_part" in kernel or "join_parts" in kernel for kernel in found)
    assert len([kernel for kernel in found if "linear" in kernel]) == 10  # five of a layer
    assert ["linear", "requantise_short", "gelu", "requantise"] in found


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize("target", ["x86-avx512-vnni", "aarch64-dotprod", "t4", "cortex-m55"])
def test_dot_products_of_bytes_take_both_parts(target: str) -> None:
    """Parts are made where the value is, and products joined in the epilogue of the second.

    Attention's kernel takes no epilogue.
    """
    found = found_kernels(target)
    makes = [kernel for kernel in found if "operand_part" in kernel]
    alone = [kernel for kernel in makes if kernel == ["operand_part"]]
    assert len(alone) == 4  # of the context of two layers
    assert len(makes) == len(alone) + 6
    assert all(kernel.count("operand_part") == 2 for kernel in makes if kernel not in alone)
    products = [kernel for kernel in found if "linear" in kernel]
    first = [kernel for kernel in products if kernel == ["linear"]]
    second = [kernel for kernel in products if kernel[:2] == ["linear", "join_parts"]]
    assert len(first) == len(second) == 12  # six of a layer
    assert len(products) == 24
