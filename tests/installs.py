"""Installations of the wheel as a reader makes them, without the network.

The project is built and installed by the commands of a document; pip leaves dependencies out, and
the distributions that the named extras require are linked from this environment instead. What a
requirement forgets is therefore missing there, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

from .processes import ROOT

FOLDERS = ("relay_passes", "schedules", "targets")
FIRMWARE = Path("examples") / "firmware"
_PIP = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_QUIET": "1"}


def copy_source(folder: Path) -> Path:
    """What the wheel is built from, in a folder of its own: setuptools leaves files beside it."""
    for name in ("ibert_tvm", *FOLDERS):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / FIRMWARE, folder / FIRMWARE)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


class Installation:
    """A virtual environment that a document's commands install into.

    Parameters
    ----------
    folder
        Empty; holds the source, too.

    Attributes
    ----------
    python
        Its interpreter; the commands of packages are beside it.
    """

    def __init__(self, folder: Path) -> None:
        self._source = folder / "source"
        self._environment = folder / "environment"
        self.python = self._environment / "bin" / "python"
        venv = [sys.executable, "-m", "venv", "--without-pip", self._environment]
        subprocess.run(venv, check=True)
        (self._site,) = self._environment.glob("lib/python*/site-packages")
        pip = f'exec {sys.executable} -m pip "$@"'
        wrapper = f'[ "$1" = wheel ] || set -- --python {self.python} "$@"\n{pip}\n'
        (folder / "pip").write_text(f"#!/bin/sh\n{wrapper}")
        (folder / "pip").chmod(0o755)
        self._path = f"{folder}:{os.environ['PATH']}"

    def type(self, commands: Iterable[str]) -> None:
        """Type commands of pip in the checkout; link what the extras in them require."""
        if not self._source.exists():
            copy_source(self._source)
        text = "\n".join(["set -e", *commands])
        variables = {**os.environ, **_PIP, "PATH": self._path}
        done = subprocess.run(
            ["bash", "-c", text], cwd=self._source, env=variables, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        named = re.findall(r"(?:whl\)?|ibert-tvm)\[([\w,]+)\]", text)
        self.link(",".join(named).split(","))

    def link(self, extras: Iterable[str]) -> None:
        """Link the distributions that the project requires with some extras."""
        (ours,) = (d for d in distributions(path=[str(self._site)]) if d.name == "ibert-tvm")
        for found in _required(ours, set(extras)):
            for file in found.files or ():
                target = self._site / file.parts[0]
                if file.parts[0] not in ("..", "__pycache__") and not target.exists():
                    target.symlink_to(Path(str(found.locate_file(file.parts[0]))))


def _required(root: Distribution, extras: set[str]) -> list[Distribution]:
    """Distributions of this environment that one requires, directly or not."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(root, extra) for extra in ("", *extras)]
    while waiting:
        holder, extra = waiting.pop()
        for text in holder.requires or ():
            needed = Requirement(text)
            if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
                continue
            ours = needed.name == root.name
            one = root if ours else found.setdefault(needed.name, distribution(needed.name))
            for each in ("", *needed.extras):
                if (needed.name, each) not in seen:
                    seen.add((needed.name, each))
                    waiting.append((one, each))
    return list(found.values())


def size(site: Path) -> int:
    """Bytes of installed files, those that links lead to too, without compiled modules."""
    tops = [top.resolve() for top in site.iterdir()]
    files = (path for top in tops for path in (top, *top.rglob("*")))
    return sum(f.stat().st_size for f in files if f.suffix != ".pyc" and f.is_file())
