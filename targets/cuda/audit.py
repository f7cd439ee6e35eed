"""Proof, from the machine code of every architecture, that kernels compute with integers only.

`ibert_tvm.targets.cuda.sass` says which instructions compute with floating-point numbers. An opcode
that is in no list is refused as well, so that a new compiler cannot bring in what the rules have
not heard of. Matrix kernels must use tensor cores and keep everything in registers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ibert_tvm.common.errors import TargetError

from ..description import Gpu
from ..programs import output_of
from .sass import (
    INTEGER_OPCODES,
    LOCAL_OPCODES,
    MATRIX_OPCODES,
    Instruction,
    functions,
    is_floating_point,
    resources,
)
from .toolchain import CudaToolchain

if TYPE_CHECKING:
    from .launches import Launch

_SHOWN = 3
# From 9.0 on headers count 1 KB that the system takes of every block, and limits do not.
_RESERVING, _RESERVED_BYTES = 90, 1024
_REPORT = "this is a defect of ibert_tvm or of the CUDA compiler: report it with both versions"


@dataclass(frozen=True)
class KernelRole:
    """What a kernel of the lowered program is.

    Attributes
    ----------
    kind
        What it is built around: ``linear``, ``attention``, ``layer_norm`` ...
    layer
        Canonical name of its first layer.
    macs
        Multiply-accumulates of its matrix products.
    """

    kind: str
    layer: str
    macs: int = 0

    @property
    def is_matrix(self) -> bool:
        """Whether tensor cores must do its work."""
        return self.macs > 0


@dataclass(frozen=True)
class KernelAudit:
    """What one device kernel is made of, on one architecture.

    Attributes
    ----------
    name
        Of the device kernel.
    kernel, kind, layer
        The kernel of the program that it is part of; empty for a function that is none's.
    architecture
        For example ``"sm_75"``.
    instructions, matrix, local
        Number of instructions; of those on tensor cores; of accesses of local memory.
    registers, shared_bytes, stack_bytes
        As in `ibert_tvm.targets.cuda.sass.Resources`, without what the system takes of shared
        memory.
    floating, unknown
        Instructions that compute with floating-point numbers, and those that no rule knows: a few,
        as ``"+0x0120 I2F.RP R5, R4"``.
    """

    name: str
    kernel: str
    kind: str
    layer: str
    architecture: str
    instructions: int
    matrix: int
    local: int
    registers: int
    shared_bytes: int
    stack_bytes: int
    floating: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def spills(self) -> bool:
        """Whether it keeps anything of a thread outside of registers."""
        return bool(self.local or self.stack_bytes)

    def to_json(self) -> dict[str, object]:
        """Return what the library's metadata holds of a kernel that passed."""
        document = asdict(self)
        del document["floating"], document["unknown"]
        return document


def disassemble(path: Path, toolchain: CudaToolchain) -> str:
    """Disassemble an image.

    Parameters
    ----------
    path
        A cubin.
    toolchain
        The programs.

    Returns
    -------
    str
        Its code, as `ibert_tvm.targets.cuda.sass.functions` reads it.

    Raises
    ------
    TargetError
        With the disassembler's words, if it fails.
    """
    return output_of(
        [toolchain.nvdisasm, "-c", str(path)],
        what="cannot disassemble the compiled kernels",
        where=f"{toolchain.nvdisasm} -c {path.name}",
        todo="install an nvdisasm of the compiler's version, or a newer one",
    )


def read_kernels(
    disassembly: str, image: bytes, architecture: str, roles: Mapping[str, KernelRole]
) -> list[KernelAudit]:
    """Look at every function of an image, without judging it.

    Parameters
    ----------
    disassembly, image
        What `disassemble` returned, and the cubin itself.
    architecture
        What it was compiled for.
    roles
        Kernels of the program by name.

    Returns
    -------
    list of KernelAudit
        In the order of the image.
    """
    used = resources(image)
    reserves = int(architecture.removeprefix("sm_")) >= _RESERVING
    audits = []
    for name, instructions in functions(disassembly):
        kernel = program_kernel(name, roles)
        role = roles.get(kernel, KernelRole("", ""))
        has = used.get(name)
        audits.append(
            KernelAudit(
                name=name,
                kernel=kernel,
                kind=role.kind,
                layer=role.layer,
                architecture=architecture,
                instructions=len(instructions),
                matrix=sum(i.opcode in MATRIX_OPCODES for i in instructions),
                local=sum(i.opcode in LOCAL_OPCODES for i in instructions),
                registers=has.registers if has else 0,
                shared_bytes=max(has.shared_bytes - reserves * _RESERVED_BYTES, 0) if has else 0,
                stack_bytes=has.stack_bytes if has else 0,
                floating=_texts(i for i in instructions if _is_float(i)),
                unknown=_texts(
                    i for i in instructions if i.opcode not in INTEGER_OPCODES and not _is_float(i)
                ),
            )
        )
    return audits


def program_kernel(name: str, roles: Mapping[str, KernelRole]) -> str:
    """Name of the program's kernel that a device kernel belongs to.

    TVM calls the device kernels of a function ``f`` ``f_kernel``, ``f_kernel_1`` ...

    Returns
    -------
    str
        Empty if there is none.
    """
    match = re.fullmatch(r"(.+)_kernel(?:_\d+)?", name)
    return match[1] if match is not None and match[1] in roles else ""


def check_kernels(
    audits: Iterable[KernelAudit], roles: Mapping[str, KernelRole], target: str
) -> None:
    """Refuse kernels that are not what was promised.

    Parameters
    ----------
    audits
        Of every device kernel and architecture.
    roles
        Kernels of the program by name.
    target
        Name of the target, for errors.

    Raises
    ------
    TargetError
        If a function computes with floating-point numbers or holds an unknown instruction; if a
        matrix kernel accesses local memory or does without tensor cores; or if a kernel of the
        program is in no image.
    """
    audits = list(audits)
    for audit in audits:
        _check_instructions(audit, target)
    for architecture in dict.fromkeys(audit.architecture for audit in audits):
        for name, role in roles.items():
            parts = [a for a in audits if a.kernel == name and a.architecture == architecture]
            _check_kernel(name, role, parts, architecture, target)


def spilling_kernels(
    audits: Iterable[KernelAudit], roles: Mapping[str, KernelRole]
) -> frozenset[str]:
    """Device kernels of matrix products that access local memory, on any architecture.

    Parameters
    ----------
    audits
        Of every device kernel and architecture.
    roles
        Kernels of the program by name.
    """
    return frozenset(
        audit.name
        for audit in audits
        if audit.spills and audit.kernel in roles and roles[audit.kernel].is_matrix
    )


def check_memory(
    audits: Iterable[KernelAudit], launches: Mapping[str, Launch], gpu: Gpu, target: str
) -> None:
    """Refuse kernels that need more shared memory than a block may have.

    Parameters
    ----------
    audits
        Of every device kernel and architecture.
    launches
        How device kernels are launched, by name.
    gpu
        What it is compiled for.
    target
        Name of the target, for errors.

    Raises
    ------
    TargetError
        With the first such kernel.
    """
    for audit in audits:
        launch = launches.get(audit.name)
        dynamic = launch.dynamic_shared_bytes if launch is not None else 0
        needed = audit.shared_bytes + dynamic
        if needed > gpu.shared_bytes:
            raise TargetError(
                what=f"kernel {audit.name!r} of layer {audit.layer!r} needs more shared memory "
                "than there is",
                where=f"target {target!r}, {audit.architecture}",
                why=f"it takes {needed} bytes, and a block may have {gpu.shared_bytes}",
                todo=_REPORT,
            )


def _check_instructions(audit: KernelAudit, target: str) -> None:
    if not audit.floating and not audit.unknown:
        return
    found = audit.floating or audit.unknown
    listed = "; ".join(found[:_SHOWN])
    more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
    layer = f" of layer {audit.layer!r}" if audit.layer else ""
    raise TargetError(
        what=f"kernel {audit.name!r}{layer} computes with floating-point numbers"
        if audit.floating
        else f"kernel {audit.name!r}{layer} holds instructions that no rule knows",
        where=f"target {target!r}, {audit.architecture}: {listed}{more}",
        why="a compiled model holds no floating-point instruction, which is read off its code",
        todo=_REPORT
        if audit.floating
        else "compile with the version of CUDA that constraints.txt names",
    )


def _check_kernel(
    name: str, role: KernelRole, parts: list[KernelAudit], architecture: str, target: str
) -> None:
    where = f"target {target!r}, {architecture}"

    def refused(what: str, why: str, at: str = where) -> TargetError:
        what = f"kernel {name!r} of layer {role.layer!r} {what}"
        return TargetError(what=what, where=at, why=why, todo=_REPORT)

    if not parts:
        raise refused("has no device code", "no function of the compiled image has its name")
    if not role.is_matrix:
        return
    spilled = next((part for part in parts if part.spills), None)
    if spilled is not None:
        raise refused(
            "keeps numbers outside of registers",
            "a matrix product that spills registers is slow, so it is never delivered",
            f"{where}: {spilled.name}, {spilled.local} accesses of local memory, "
            f"{spilled.registers} registers, {spilled.stack_bytes} bytes of stack",
        )
    if not any(part.matrix for part in parts):
        raise refused("does not use tensor cores", "its code has no IMMA instruction")


def _is_float(instruction: Instruction) -> bool:
    return is_floating_point(instruction.mnemonic)


def _texts(instructions: Iterable[Instruction]) -> tuple[str, ...]:
    return tuple(f"+0x{i.offset:04x} {i}" for i in instructions)
