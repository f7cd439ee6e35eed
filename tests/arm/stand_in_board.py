"""A stand-in for a 64-bit ARM board: TVM's RPC server in an aarch64 Debian, under qemu-user.

Its root is made once, in a cache folder outside of the checkout, from the package archives that apt
and pip of this machine are configured for. Times on it mean nothing: it shows that the path from
here to a board works, and with which instructions the board's processor copes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.arm.tools import needs
from tests.processes import run_captured
from tests.rpc.servers import Servers, running_servers

ROOT = Path(__file__).resolve().parents[2]
_DEBIAN = ("python3", "libstdc++6", "zlib1g", "libzstd1", "python3-distutils")
_PYTHON = (
    "apache-tvm",
    "apache-tvm-ffi",
    "cloudpickle",
    "ml_dtypes",
    "numpy",
    "psutil",
    "typing-extensions",
)
_PLATFORMS = ("manylinux_2_28_aarch64", "manylinux2014_aarch64", "manylinux_2_17_aarch64")
# A program of the board starts others by the name of its own interpreter, which this machine cannot
# run without the emulator.
_SITE = """\
import os, sys
sys.executable = os.environ["BOARD_PYTHON"]
"""
_WRAPPER = """\
#!/bin/sh
export BOARD_PYTHON="$0" PYTHONPATH="{site}" PYTHONDONTWRITEBYTECODE=1
exec qemu-aarch64 -cpu "${{BOARD_PROCESSOR:-cortex-a76}}" -L "{root}" \\
  "{root}/usr/bin/{python}" "$@"
"""


def _pins() -> dict[str, str]:
    pins = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, equals, version = line.partition("==")
        if equals and not line.startswith("#"):
            pins[name.lower().replace("_", "-")] = version.strip()
    return pins


def _requirements() -> list[str]:
    pins = _pins()
    named = {name: name.lower().replace("_", "-") for name in _PYTHON}
    return [f"{name}=={pins[key]}" if key in pins else name for name, key in named.items()]


def _run(*command: str) -> str:
    done = run_captured(command)
    if done.returncode != 0:
        raise OSError(f"{command[0]}: {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout


def _sources() -> tuple[str, list[str]]:
    """Code name of the Debian here, and where its apt gets packages of it."""
    release = dict(
        line.partition("=")[::2]
        for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    )
    codename = release["VERSION_CODENAME"].strip('"')
    form = "$(CREATED_BY) $(CODENAME) $(SITE) $(COMPONENT) $(REPO_URI)"
    entries = set()
    for line in _run("apt-get", "indextargets", "--format", form).splitlines():
        kind, suite, _site, component, uri = line.split(" ", 4)
        if (kind, suite, component) == ("Packages", codename, "main"):
            entries.add(f"deb {uri} {codename} main")
    if not entries:
        raise OSError(f"apt has no list of {codename} (run apt-get update)")
    return codename, sorted(entries)


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    recipe = " ".join([*_DEBIAN, *_requirements(), _SITE, _WRAPPER])
    name = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    return Path(base) / "ibert-tvm" / f"aarch64-board-{name}"


def board_python() -> Path:
    """The board's Python, as a command of this machine; makes the board's root where needed.

    Returns
    -------
    pathlib.Path
        Runs under the emulator, with TVM.
    """
    needs("qemu-aarch64", "mmdebstrap", "apt-get")
    folder = _folder()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until another process has made it
            if not (folder / "python").exists():
                _make(folder)
    except OSError as error:
        why = f"the stand-in board cannot be made: {error}"
        if os.environ.get("CI"):
            pytest.fail(why, pytrace=False)
        pytest.skip(why)
    return folder / "python"


def _make(folder: Path) -> None:
    """Make the root beside its place, and move it there when it is complete."""
    work = folder.with_name(f".{folder.name}.{os.getpid()}")
    root, site = work / "root", work / "site"
    work.mkdir()
    try:
        codename, sources = _sources()
        mode = "root" if os.geteuid() == 0 else "unshare"
        _run(
            "mmdebstrap",
            f"--mode={mode}",
            "--architectures=arm64",
            "--variant=extract",
            f"--include={','.join(_DEBIAN)}",
            codename,
            str(root),
            *sources,
        )
        interpreter = next((root / "usr/bin").glob("python3.[0-9]*"))
        version = interpreter.name.removeprefix("python")
        platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
        _run(
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            f"--target={site}",
            "--only-binary=:all:",
            "--implementation=cp",
            f"--python-version={version}",
            *platforms,
            *_requirements(),
        )
        (site / "sitecustomize.py").write_text(_SITE, encoding="utf-8")
        wrapper = work / "python"
        final = {"site": folder / "site", "root": folder / "root", "python": interpreter.name}
        wrapper.write_text(_WRAPPER.format(**final), encoding="utf-8")
        wrapper.chmod(0o755)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def stand_in_board(key: str, processor: str = "cortex-a76") -> Iterator[Servers]:
    """Run the board's server, and a tracker on this machine that knows it by a key.

    Parameters
    ----------
    key
        Of the board.
    processor
        To emulate.

    Yields
    ------
    Servers
        Their ports.
    """
    environment = {"BOARD_PROCESSOR": processor}
    with running_servers(key, str(board_python()), environment) as servers:
        yield servers
