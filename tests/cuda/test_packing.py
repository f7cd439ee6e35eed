"""Machine code in the place of the source that TVM puts into a library."""

from __future__ import annotations

import struct
from pathlib import Path

from ibert_tvm.targets.cuda.compile import DeviceCode
from ibert_tvm.targets.cuda.packing import with_image, write_modules
from tests.snapshots import Messages

SOURCE = "extern __global__ void f();"
DEVICE = DeviceCode(b"\x50\xed\x55\xba image", SOURCE)
KERNELS = b"table of kernels"


def number(value: int) -> bytes:
    return struct.pack("<Q", value)


def packed(content: bytes) -> bytes:
    return number(len(content)) + content


TREE = number(4) + b"".join(map(number, (0, 1, 2, 2))) + number(2) + number(1) + number(2)


def modules(cuda: bytes, *others: bytes) -> bytes:
    content = TREE + packed(b"relax.VMExecutable") + packed(b"program") + packed(b"_lib")
    return packed(content + packed(b"cuda") + packed(cuda) + b"".join(others))


def test_the_image_takes_the_place_of_the_source() -> None:
    before = modules(packed(b"cuda") + KERNELS + packed(SOURCE.encode()))
    after = modules(packed(b"fatbin") + KERNELS + packed(DEVICE.image))
    assert with_image(before, DEVICE) == after


def test_other_modules_are_refused(messages: Messages) -> None:
    good = modules(packed(b"cuda") + KERNELS + packed(SOURCE.encode()))
    with messages.raises(ValueError):
        with_image(number(5) + b"1234", DEVICE)
    with messages.raises(ValueError):
        with_image(packed(number(2) + number(0) + number(0) + number(0) + packed(b"_lib")), DEVICE)
    for cuda in (
        packed(b"ptx") + KERNELS + packed(SOURCE.encode()),
        packed(b"cuda") + KERNELS + packed(b"other source"),
    ):
        with messages.raises(ValueError):
            with_image(modules(cuda), DEVICE)
    with messages.raises(ValueError):
        with_image(packed(good[8:] + packed(b"_lib")), DEVICE)


def test_the_assembly_names_the_symbol(tmp_path: Path) -> None:
    before = modules(packed(b"cuda") + KERNELS + packed(SOURCE.encode()))
    path = write_modules(before, DEVICE, "__tvm_ffi__library_bin", tmp_path)
    assert (tmp_path / "__tvm_ffi__library_bin.bin").read_bytes() == with_image(before, DEVICE)
    assert "    .globl __tvm_ffi__library_bin\n" in path.read_text(encoding="utf-8")
