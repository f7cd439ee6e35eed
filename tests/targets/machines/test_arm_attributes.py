"""The mark of objects that fit projects with and without a floating-point unit."""

from __future__ import annotations

import pytest

from ibert_tvm.targets.machines.thumb import with_either_convention


def _section(entries: bytes) -> bytes:
    inner = b"\x01" + (5 + len(entries)).to_bytes(4, "little") + entries
    outer = b"aeabi\0" + inner
    return b"A" + (4 + len(outer)).to_bytes(4, "little") + outer


CPU = b"\x05cortex-m4\0"
ARCHITECTURE = b"\x06\x0d"
LARGE = b"\x2e\x80\x01"  # a tag of text numbers does not take: 46 is even, its value has two bytes
CONFORMANCE = b"C2.09\0"


def test_the_mark_is_added_behind_the_others() -> None:
    before = _section(CONFORMANCE + CPU + ARCHITECTURE + LARGE)
    after = _section(CONFORMANCE + CPU + ARCHITECTURE + LARGE + b"\x1c\x03")
    assert with_either_convention(before) == after


def test_another_value_is_replaced_and_a_second_time_changes_nothing() -> None:
    before = _section(CPU + b"\x1c\x01" + ARCHITECTURE)
    after = _section(CPU + ARCHITECTURE + b"\x1c\x03")
    assert with_either_convention(before) == after
    assert with_either_convention(after) == after


@pytest.mark.parametrize("data", [b"", b"B" + _section(CPU)[1:], _section(CPU) + b"\0"])
def test_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="attributes of an unknown form"):
        with_either_convention(data)
