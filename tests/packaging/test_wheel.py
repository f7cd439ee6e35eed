"""What the wheel holds; `tests.walk` installs it where nothing else of the project is."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from tests.installs import FIRMWARE, FOLDERS, copy_source
from tests.processes import ROOT, run_captured


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without the network."""
    source = copy_source(tmp_path_factory.mktemp("source"))
    built = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-I", "-m", "pip", "wheel", "-q", "--no-deps"]
    done = run_captured([*command, "--no-build-isolation", "-w", built, source])
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = built.glob("*.whl")
    return path


@pytest.mark.slow
def test_it_holds_every_file_of_the_packages_under_one_name(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    names = {name for name in held if ".dist-info/" not in name}
    sources = {
        f"{'' if folder == 'ibert_tvm' else 'ibert_tvm/'}{path.relative_to(ROOT).as_posix()}"
        for folder in ("ibert_tvm", *FOLDERS)
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    # `ibert verify --emulate` runs packages in the example firmware.
    sources |= {
        f"ibert_tvm/firmware/{path.relative_to(ROOT / FIRMWARE).as_posix()}"
        for path in (ROOT / FIRMWARE).rglob("*")
        if path.suffix in (".S", ".c", ".h", ".ld")
    }
    assert names == sources
    (top,) = (name for name in held if name.endswith("/top_level.txt"))
    assert zipfile.ZipFile(wheel).read(top) == b"ibert_tvm\n"
