"""The example's Makefile builds anew what was built for something else. No compiler is needed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ibert_tvm.targets import TargetDescription
from ibert_tvm.targets.bare_metal.verification import bare_metal
from ibert_tvm.targets.processors import PROCESSORS

ROOT = Path(__file__).resolve().parents[1]
# Writes what it was called with to the file behind -o.
_COMPILER = """#!/bin/sh
all="$*"
while [ "$1" != -o ]; do shift; done
echo "$all" >> "$2"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(
        ROOT / "examples" / "firmware", tmp_path / "f", ignore=shutil.ignore_patterns("build")
    )
    compiler = tmp_path / "fake-gcc"
    compiler.write_text(_COMPILER)
    compiler.chmod(0o755)
    for name in ("one", "two", "with a space"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ibert_model.h").write_text("#define IBERT_STACK_BYTES 512\n")
        (tmp_path / name / "libibert_model.a").write_text("")
    return tmp_path


def _builds(folder: Path, *settings: str) -> list[str]:
    """Every call of the compiler so far, after a `make` with these settings."""
    words = ["make", f"CROSS={folder}/fake-", *settings]
    elf = "build/firmware.elf"
    subprocess.run([*words, elf], cwd=folder / "f", check=True, capture_output=True)
    return (folder / "f" / elf).read_text().splitlines()


def test_other_settings_build_anew(folder: Path) -> None:
    package = f"PACKAGE={folder}/one"
    assert len(_builds(folder, package)) == 1
    assert len(_builds(folder, package)) == 1  # nothing changed
    assert "-DTOKENS=101,7,102" in _builds(folder, package, "TOKENS=101 7 102")[1]
    assert "-DTOKENS=101,8,102" in _builds(folder, package, "TOKENS=101 8 102")[2]
    assert "-mcpu=cortex-m3" in _builds(folder, package, "TARGET=cortex-m3")[3]
    assert f"-L{folder}/two" in _builds(folder, f"PACKAGE={folder}/two", "TARGET=cortex-m3")[4]
    assert "stm32f405.ld" in _builds(folder, package, "BOARD=stm32f405")[5]
    assert len(_builds(folder, package, "BOARD=stm32f405")) == 6


@pytest.mark.parametrize(
    "target",
    [one for one in PROCESSORS if one.system == "bare-metal" and one.emulator],
    ids=lambda one: one.name,
)
def test_every_microcontroller_is_built_for_as_its_record_says(
    target: TargetDescription, folder: Path
) -> None:
    words = [
        "make",
        "--no-print-directory",
        "-n",
        "run",
        f"TARGET={target.name}",
        f"PACKAGE={folder}/one",
    ]
    done = subprocess.run(words, cwd=folder / "f", check=True, capture_output=True, text=True)
    compiled, _, started = done.stdout.replace("\\\n", "").partition("-lgcc")
    assert target.toolchain is not None and target.emulator is not None
    for word in (target.toolchain.compiler, *target.compiler_flags, *bare_metal(target).start_up):
        assert word in compiled.split()
    assert f"-Tboards/{target.emulator.board}.ld" in compiled.split()
    command = target.emulator.on_board(Path("build/firmware.elf"))
    assert sorted(started.split()[2:]) == sorted(command)


def test_a_package_in_a_folder_with_spaces(folder: Path) -> None:
    package = f"PACKAGE={folder}/with a space"
    (call,) = _builds(folder, package)
    assert f"-L{folder}/with a space -libert_model" in call
    assert "-Wl,--defsym=__stack_size=1536" in call
    (folder / "with a space" / "libibert_model.a").unlink()
    (folder / "with a space" / "Makefile").write_text("libibert_model.a:\n\ttouch $@\n")
    assert len(_builds(folder, package)) == 2
