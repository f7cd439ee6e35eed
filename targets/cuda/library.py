"""The device code of a finished library, looked at again: what the driver will load."""

from __future__ import annotations

import re
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ibert_tvm.common.errors import TargetError
from ibert_tvm.common.strict_json import JsonObject

from ..aot.library import DEVICE_CODE
from ..elf import opened
from .audit import KernelAudit, KernelRole, disassemble, read_kernels
from .packing import image_of
from .toolchain import CudaToolchain, find_cuda_toolchain

# Taking an image of several architectures apart.
#
# An image, as fatbinary writes and the CUDA driver reads it, is a header (magic number, version,
# its own size, size of all that follows) and entries, each with a header (kind, version, its own
# size, size of what follows, and at byte 28 the number of the architecture) and a cubin or PTX.

_MAGIC = 0xBA55ED50
_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ12xI")
_FLAGS = struct.Struct("<40xQ")
_PTX, _ELF = 1, 2
# LZ4 and Zstandard.
_COMPRESSED = 0x2000 | 0x8000


class Entry(NamedTuple):
    """Code for one architecture.

    Attributes
    ----------
    is_ptx
        Whether a driver compiles it; otherwise it is machine code.
    number
        75 of ``sm_75``.
    content
        A cubin, or the text of PTX.
    """

    is_ptx: bool
    number: int
    content: bytes


def entries(image: bytes) -> list[Entry]:
    """Read the entries of an image.

    Parameters
    ----------
    image
        It may be anything.

    Returns
    -------
    list of Entry
        All of them, in their order.

    Raises
    ------
    ValueError
        If it is no such image, an entry is compressed, of an unknown kind or cut off, or something
        lies behind the last.
    """
    try:
        magic, _, place, size = _HEADER.unpack_from(image)
        if magic != _MAGIC:
            raise ValueError("it does not begin as an image of CUDA does")
        if place < _HEADER.size or place + size != len(image):
            raise ValueError(f"it says {place + size} bytes and has {len(image)}")
        found = []
        while place < len(image):
            kind, _, header, size, number = _ENTRY.unpack_from(image, place)
            (flags,) = _FLAGS.unpack_from(image, place)
            start = place + header
            place = start + size
            if kind not in (_PTX, _ELF) or header < _FLAGS.size or place > len(image):
                raise ValueError("an entry is of an unknown kind or cut off")
            if flags & _COMPRESSED:
                raise ValueError("an entry is compressed")
            found.append(Entry(kind == _PTX, number, image[start:place]))
        return found
    except struct.error:
        raise ValueError("it is cut off") from None


_MODULES = "__tvm_ffi__library_bin"
# Types of floating-point numbers, and what a driver compiles to instructions of floating point.
_PTX_FLOAT = re.compile(
    r"\.(?:b?f(?:16|32|64)(?:x2)?|tf32|e\d+m\d+\w*)\b|^(?:@!?%\w+\s+)?(?:div|rem|sqrt|rcp)\.\w"
)


@dataclass(frozen=True)
class DeviceAudit:
    """What was found in a library's code for GPUs.

    Attributes
    ----------
    kernels
        Of the program.
    instructions
        How many were looked at, by architecture.
    findings
        What computes with floating-point numbers or is not known, with kernel, layer, offset and
        text; and code that is not what the library says of it.
    outside
        What cannot be looked at.
    """

    kernels: int
    instructions: Mapping[str, int]
    findings: tuple[str, ...]
    outside: tuple[str, ...] = ()


def audit_device_code(path: Path, report: JsonObject, target: str) -> DeviceAudit:
    """Disassemble the machine code of every architecture, by the rules of the compiler's own audit.

    Parameters
    ----------
    path
        A library, which is not loaded.
    report
        What its metadata say of its device code: ``architectures``, ``ptx``, ``kernels``,
        ``launches``.
    target
        Name of the target, for errors.

    Returns
    -------
    DeviceAudit
        Device code that cannot be taken apart is a finding.

    Raises
    ------
    TargetError
        If the disassembler is missing.
    """
    toolchain = find_cuda_toolchain(target)
    roles = {
        str(kernel["kernel"]): KernelRole(str(kernel["kind"]), str(kernel["layer"]))
        for kernel in report.get("kernels", ())
        if kernel["kernel"]
    }
    architectures = [str(name) for name in report["architectures"]]
    try:
        standalone = _content(path, DEVICE_CODE)
        modules = _content(path, _MODULES)
        if standalone is None and modules is None:
            raise ValueError(f"the library has neither {DEVICE_CODE} nor {_MODULES}")
        found = entries(image_of(modules or b"") if standalone is None else standalone)
        machine = [entry for entry in found if not entry.is_ptx]
        portable = [entry for entry in found if entry.is_ptx]
        _check_entries(machine, portable, architectures, bool(report.get("ptx")))
    except ValueError as error:
        return DeviceAudit(len(roles), {}, (f"the device code cannot be read: {error}",))
    findings, counts = [], {}
    for architecture, entry in zip(architectures, machine, strict=True):
        try:
            audits = _disassembled(entry, architecture, roles, toolchain)
        except TargetError as error:
            findings.append(f"{architecture}: {error.what}: {error.why}")
            continue
        counts[architecture] = sum(audit.instructions for audit in audits)
        findings += [line for audit in audits for line in _findings(audit)]
        there = {audit.name for audit in audits}
        missing = sorted({str(name) for name in report.get("launches", ())} - there)
        findings += [f"{architecture}: no code of kernel {name}" for name in missing]
    outside = [] if standalone is None else ["libcuda.so.1, the driver, which it opens"]
    for entry in portable:
        findings += _portable_findings(entry)
        outside.append(
            f"what a driver will make of the portable code for compute_{entry.number}; its text "
            "was looked at"
        )
    return DeviceAudit(len(roles), counts, tuple(findings), tuple(outside))


def _content(path: Path, symbol: str) -> bytes | None:
    """What lies under a symbol of a library; None if it has none of that name."""
    with opened(path) as elf:
        found = elf.get_section_by_name(".dynsym").get_symbol_by_name(symbol)
        if not found or found[0]["st_shndx"] == "SHN_UNDEF":
            return None
        section = elf.get_section(found[0]["st_shndx"])
        start = found[0]["st_value"] - section["sh_addr"]
        return section.data()[start : start + found[0]["st_size"]]


def _check_entries(
    machine: list[Entry], portable: list[Entry], architectures: list[str], ptx: bool
) -> None:
    named = [int(re.sub(r"\D", "", name)) for name in architectures]
    if [entry.number for entry in machine] != named or bool(portable) != ptx:
        kinds = (("compute" if e.is_ptx else "sm", e.number) for e in (*machine, *portable))
        there = ", ".join(f"{kind}_{number}" for kind, number in kinds)
        raise ValueError(f"it is for {there}; the library says {', '.join(architectures)}")


def _disassembled(
    entry: Entry, architecture: str, roles: Mapping[str, KernelRole], toolchain: CudaToolchain
) -> list[KernelAudit]:
    with tempfile.TemporaryDirectory(prefix="ibert-verify-") as folder:
        cubin = Path(folder) / f"{architecture}.cubin"
        cubin.write_bytes(entry.content)
        text = disassemble(cubin, toolchain)
    audits = read_kernels(text, entry.content, architecture, roles)
    if not audits:
        raise TargetError("there is no code", why="the disassembler found no function")
    return audits


def _findings(audit: KernelAudit) -> list[str]:
    where = f"{audit.architecture}: {audit.name}"
    if audit.layer:
        where += f" of layer {audit.layer}"
    return [
        *(f"{where} at {text}" for text in audit.floating),
        *(f"{where} at {text}: no rule knows it" for text in audit.unknown),
    ]


def _portable_findings(entry: Entry) -> list[str]:
    function, findings = "?", []
    for number, line in enumerate(entry.content.decode("utf-8", "replace").splitlines(), 1):
        text = line.strip()
        if opened := re.search(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?(\w+)", text):
            function = opened[1]
        if _PTX_FLOAT.search(text.partition("//")[0]):
            findings.append(f"compute_{entry.number}: {function} in line {number}: {text}")
    return findings
