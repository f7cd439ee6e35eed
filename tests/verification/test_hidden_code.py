"""The audit on code that is hidden from whoever believes section headers or decodes in a line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ibert_tvm.targets.library_audit import audit_library
from ibert_tvm.targets.toolchain import find_linker
from tests.arm.tools import board
from tests.verification.corpus import link_flags
from tests.verification.hidden_code import HIDDEN


def _linked(name: str, folder: Path) -> Path:
    """The library of a name."""
    hidden = HIDDEN[name]
    target = board(hidden.target, run=False)
    (folder / "hidden.s").write_text(hidden.source, encoding="utf-8")
    path = folder / "hidden.so"
    command = [*find_linker(target), *link_flags(target), *hidden.flags, "hidden.s", "-o", path]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    if not hidden.sections:
        content = bytearray(path.read_bytes())
        content[0x28:0x30] = bytes(8)  # e_shoff
        content[0x3C:0x40] = bytes(4)  # e_shnum, e_shstrndx
        path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_code_is_found(name: str, tmp_path: Path) -> None:
    path = _linked(name, tmp_path)
    findings = audit_library(path, board(HIDDEN[name].target, run=False)).findings
    assert any(HIDDEN[name].finding in finding for finding in findings), findings
