"""Find floating point in code for ARM: instructions that compute with it, calls of helpers.

Instructions are those of the cross-compiler's own disassembler, which knows code from data by the
mapping symbols of the objects; what it cannot decode is an error, not a pass.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ibert_tvm.targets import TargetDescription
from ibert_tvm.targets.fp_rules import is_float_helper, is_floating_point

_LINE = re.compile(r"^\s*[0-9a-f]+:\t(\S*)[ \t]*(.*)$")
_LABEL = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_DATA = re.compile(r"\.(?:word|short|byte|long|hword)")


def floating_point_instructions(path: Path, target: TargetDescription) -> Iterator[str]:
    """Every floating-point instruction of an object or a library, as ``function: instruction``.

    Raises
    ------
    ValueError
        If there is no code, or some of it cannot be decoded.
    """
    assert target.toolchain is not None
    program = target.toolchain.compiler.removesuffix("gcc") + "objdump"
    command = [program, "-d", "--no-show-raw-insn", str(path)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    has_fpu = target.float_abi != "soft"
    function, count = "?", 0
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            function = label[1]
        if (found := _LINE.match(line)) is None or _DATA.fullmatch(found[1]):
            continue
        count += 1
        if found[1] in ("", ".inst"):  # GNU's words for what it does not know, and where
            raise ValueError(f"{path}, {function}: not an instruction: {line.strip()}")
        if is_floating_point(target.elf_machine, found[1], found[2], has_fpu):
            yield f"{function}: {found[1]} {found[2]}".strip()
    if not count:
        raise ValueError(f"{path} holds no code")


def float_helpers(path: Path, target: TargetDescription) -> list[str]:
    """Library functions of floating point that an object or a library holds or calls."""
    assert target.toolchain is not None
    program = target.toolchain.compiler.removesuffix("gcc") + "nm"
    done = subprocess.run([program, str(path)], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in done.stdout.splitlines() if line.strip()}
    return sorted(name for name in names if is_float_helper(name))


def audit(path: Path, target: TargetDescription) -> list[str]:
    """All that is floating point; empty for code without any."""
    return [*floating_point_instructions(path, target), *float_helpers(path, target)]
