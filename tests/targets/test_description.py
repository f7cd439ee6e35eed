"""Target descriptions are data, and wrong data is refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from itertools import combinations

import pytest

from ibert_tvm.targets import DotInstruction
from ibert_tvm.targets.host import _candidates
from ibert_tvm.targets.processors.x86 import VNNI_512, X86_64
from tests.snapshots import Messages


@pytest.mark.parametrize("label", ["lanes", "depth", "tile_rows", "tile_vectors"])
@pytest.mark.parametrize("value", [0, -4])
def test_sizes_of_an_instruction_are_at_least_1(label: str, value: int, messages: Messages) -> None:
    with messages.raises(ValueError):
        replace(VNNI_512, **{label: value})


@pytest.mark.parametrize(
    ("label", "value"),
    [("lhs_dtype", "float32"), ("lhs_dtype", "int64"), ("rhs_dtype", "int32"), ("rhs_dtype", "")],
)
def test_operands_of_an_instruction_are_bytes_or_widened_bytes(
    label: str, value: str, messages: Messages
) -> None:
    with messages.raises(ValueError):
        replace(VNNI_512, **{label: value})


def test_descriptions_are_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        VNNI_512.lanes = 8  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        X86_64.name = "other"  # type: ignore[misc]


def test_equal_instructions_are_one_key() -> None:
    assert replace(VNNI_512) == VNNI_512
    assert hash(replace(VNNI_512)) == hash(VNNI_512)
    assert DotInstruction("a", "int8", "int8", 4, 4, 1, 1) != VNNI_512


@pytest.mark.parametrize("target", _candidates("x86_64"), ids=lambda target: target.name)
def test_x86_descriptions_are_consistent(target) -> None:
    assert target.elf_machine == "EM_X86_64"
    assert target.tvm_target["kind"] == "llvm"
    registers = 32 if "avx512f" in target.required_features else 16
    # The tile's accumulators, unless a microkernel keeps them, one vector of weights per column of
    # it, and one broadcast operand.
    tile = target.dot.tile_rows * target.dot.tile_vectors
    assert target.microkernels or tile + target.dot.tile_vectors + 1 <= registers
    # A register of 32-bit numbers, or of 16-bit ones.
    assert target.vector_lanes in (target.dot.lanes, 2 * target.dot.lanes)
    assert len(set(target.required_features)) == len(target.required_features)


def test_detection_tries_the_most_demanding_description_first() -> None:
    sets = [frozenset(target.required_features) for target in _candidates("x86_64")]
    # What a description needs, an earlier one needs too, or something else.
    assert not any(earlier <= later for earlier, later in combinations(sets, 2))
    assert sets[-1] == frozenset()
