"""The fenced blocks of a document, and running them as a reader would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

STRICT = "set -euo pipefail"
# Why a block is not run, said above its fence as <!-- not run: REASON -->. There are no others.
MINUTES = "takes minutes"
INSTALLS = "installs packages"
REASONS = (
    MINUTES,
    "takes an hour",
    INSTALLS,
    "needs the data of a task",
    "needs a model of yours",
    "part of a program",
    "needs an NVIDIA GPU",
    "needs a board on the network",
    "runs on the board",
    "runs until it is stopped",
    "needs a running server",
    "needs the change in the checkout",
)
_FOLDER = "path/to/hf-folder"
_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^>]*) -->\n)?```(?P<language>[^\n]*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes
    ----------
    language
        What follows the fence; empty for a block that only shows something.
    text
        What stands in it.
    line
        Line of the fence, from 1.
    reason
        Why it is not run; empty if it is.
    """

    language: str
    text: str
    line: int
    reason: str


def blocks(path: Path) -> list[Block]:
    """All fenced blocks of a document."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(
            match["language"],
            match["text"],
            text.count("\n", 0, match.start()) + 1 + bool(match["reason"]),
            match["reason"] or "",
        )
        for match in _FENCE.finditer(text)
    ]


def commands(text: str) -> Iterator[str]:
    """The commands of a block: lines that end in a backslash go on, comments are left out."""
    for line in text.replace("\\\n", " ").split("\n"):
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if line:
            yield line


def script(path: Path, model: Path, minutes: bool = False, prelude: str = STRICT) -> str:
    """A document's blocks as one shell script, in order.

    Python blocks that follow each other without another block are one program. ``MODEL=`` names
    the given folder instead of what the document says, and so does ``path/to/hf-folder``.

    Parameters
    ----------
    path
        The document.
    model
        A Hugging Face folder.
    minutes
        With the blocks that take minutes.
    prelude
        What the script begins with: by default, that the first failure ends it.
    """
    parts = [prelude]
    reasons = ("", MINUTES) if minutes else ("",)
    run = [b for b in blocks(path) if b.language in ("bash", "python") and b.reason in reasons]
    for language, group in groupby(run, key=lambda block: block.language):
        if language == "python":
            body = "\n".join(block.text for block in group).replace(_FOLDER, str(model))
            parts.append(f"python - <<'END_OF_PROGRAM'\n{body}END_OF_PROGRAM")
            continue
        for block in group:
            parts.append(f"echo '== {path.name}:{block.line}' >&2")
            parts.append(re.sub(r"^MODEL=.*$", f"MODEL={model}", block.text, flags=re.M))
    return "\n".join(parts) + "\n"


def prepare(folder: Path, made: Path | None = None) -> None:
    """Make an empty folder look like a checkout to documents.

    Parameters
    ----------
    folder
        Gets texts to calibrate on, in ``texts.txt``.
    made
        Holds what an earlier document makes, copied into the folder.
    """
    for item in () if made is None else made.iterdir():
        copy = shutil.copytree if item.is_dir() else shutil.copy
        copy(item, folder / item.name)
    (folder / "ibert_tvm").symlink_to(ROOT / "ibert_tvm")
    shutil.copytree(
        ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("build", "*.pyc")
    )
    lines = (ROOT / "ibert_tvm/data/calibration.txt").read_text(encoding="utf-8").split("\n")
    (folder / "texts.txt").write_text("\n".join(lines[:24]), encoding="utf-8")


def run(
    path: Path,
    folder: Path,
    model: Path,
    minutes: bool = False,
    *,
    programs: Path = Path(sys.executable).parent,
    prelude: str = STRICT,
) -> subprocess.CompletedProcess[str]:
    """Run a document in a folder that was prepared for it.

    Parameters
    ----------
    path
        The document.
    folder
        As `prepare` left it.
    model
        The Hugging Face folder to use.
    minutes, prelude
        As `script` takes them.
    programs
        Folder of ``python`` and ``ibert``.
    """
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(folder),
        "MODEL": str(model),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONSAFEPATH": "1",
    }
    return subprocess.run(
        ["bash", "-c", script(path, model, minutes, prelude)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
