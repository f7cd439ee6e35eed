"""Finding the C compiler driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from targets import TargetError, get_target
from targets.toolchain import find_linker

TARGET = get_target("x86-64")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the whole PATH; CC unset."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path


def program(folder: Path, name: str) -> str:
    path = folder / name
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_gcc_is_preferred_to_cc_and_clang(programs: Path) -> None:
    clang = program(programs, "clang")
    assert find_linker(TARGET) == (clang,)
    cc = program(programs, "cc")
    assert find_linker(TARGET) == (cc,)
    gcc = program(programs, "gcc")
    assert find_linker(TARGET) == (gcc,)


def test_the_environment_variable_wins(programs: Path, monkeypatch) -> None:
    program(programs, "gcc")
    mine = program(programs, "my-cc")
    monkeypatch.setenv("CC", "my-cc")
    assert find_linker(TARGET) == (mine,)
    monkeypatch.setenv("CC", mine)
    assert find_linker(TARGET) == (mine,)
    monkeypatch.setenv("CC", "my-cc  -m64 --sysroot=/opt")
    assert find_linker(TARGET) == (mine, "-m64", "--sysroot=/opt")
    monkeypatch.setenv("CC", "")
    assert find_linker(TARGET) == (str(programs / "gcc"),)


@pytest.mark.parametrize(
    ("variable", "looked_for"),
    [(None, "gcc, cc, clang"), ("icc", "icc"), ("ccache gcc", "ccache gcc"), (" ", " ")],
)
def test_no_compiler_is_an_error(programs: Path, monkeypatch, variable, looked_for) -> None:
    if variable is not None:
        program(programs, "clang")
        monkeypatch.setenv("CC", variable)
    with pytest.raises(TargetError) as caught:
        find_linker(TARGET)
    assert str(caught.value) == (
        "no C compiler to link for target 'x86-64'\n"
        f"  where: PATH (looked for {looked_for})\n"
        "  why: the library's weights are assembled and linked by the system's C compiler\n"
        "  what to do: install one (Debian: apt-get install gcc binutils), or set CC"
    )
