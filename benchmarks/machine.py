"""What a result must say about the machine and the software that produced it."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ibert_tvm.targets.machines.x86_64 import X86_64

__all__ = [
    "COMPILER",
    "describe_machine",
    "describe_software",
    "fp32_ceiling",
    "hash_sources",
    "int8_ceiling",
    "measure_limits",
    "read_bandwidth",
]

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "apache-tvm",
    "apache-tvm-ffi",
    "numpy",
    "onnxruntime",
    "openvino",
    "nncf",
    "torch",
    "transformers",
)
# What a compiled library and the way it runs depend on: all packages but the command line and
# what only measures.
COMPILER = ("ibert_tvm", "relay_passes", "schedules", "targets")
_NOT_COMPILER = ("ibert_tvm/bench", "ibert_tvm/cli")

# The processor flags that decide which 8-bit kernels a runtime can use.
FLAGS = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
)


def _proc_field(path: str, name: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _caches_kib() -> dict[str, int]:
    """Sizes of the first core's data caches by level, ``{"L2": 1024}``."""
    sizes = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size = (
                (folder / name).read_text().strip() for name in ("type", "level", "size")
            )
        except OSError:
            continue
        if kind != "Instruction" and size.endswith("K"):
            sizes[f"L{level}"] = int(size[:-1])
    return sizes


def describe_machine() -> dict[str, Any]:
    """Processor, its relevant features, cores, memory, system."""
    flags = set(_proc_field("/proc/cpuinfo", "flags").split())
    memory_kib = _proc_field("/proc/meminfo", "MemTotal").split()
    return {
        "processor": _proc_field("/proc/cpuinfo", "model name") or platform.machine(),
        "family": _proc_field("/proc/cpuinfo", "cpu family"),
        "model": _proc_field("/proc/cpuinfo", "model"),
        "features": [name for name in FLAGS if name in flags],
        "cores": len(os.sched_getaffinity(0)),
        "caches_kib": _caches_kib(),
        "memory_gib": round(int(memory_kib[0]) / 2**20, 1) if memory_kib else None,
        "system": f"{platform.system()} {platform.release()}",
        "load_at_start": os.getloadavg()[0],
    }


def hash_sources(places: tuple[str, ...]) -> str:
    """SHA-256 of Python sources, by path and content.

    Parameters
    ----------
    places : tuple of str
        Files and folders, relative to the root of the repository; the command line and what only
        measures are left out.

    Returns
    -------
    str
    """
    digest = hashlib.sha256()
    for place in places:
        whole = ROOT / place
        for path in [whole] if whole.is_file() else sorted(whole.rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(_NOT_COMPILER):
                digest.update(name.encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def describe_software() -> dict[str, Any]:
    """Commit (with a mark when the checkout differs), hash of the compiler, versions, time."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {
        "commit": _git("rev-parse", "HEAD") or None,
        "modified": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "sources": hash_sources(COMPILER),
        "python": platform.python_version(),
        "packages": packages,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _limits_program(cache: Path) -> Path:
    """Compile ``limits.c``; again only when it has changed."""
    source = Path(__file__).with_name("limits.c")
    program = cache / "limits"
    if program.exists() and program.stat().st_mtime >= source.stat().st_mtime:
        return program
    cache.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CC", "gcc")
    command = [compiler, "-O2", "-pthread", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def measure_limits(cache: Path, threads: int, seconds: float = 0.5) -> dict[str, dict[str, Any]]:
    """Run the microbenchmark of the machine's limits.

    Parameters
    ----------
    cache : Path
        Where the compiled program is kept.
    threads : int
        Threads that run at the same time, each on its own data.
    seconds : float
        Time spent on each limit.

    Returns
    -------
    dict
        ``{name: {"value": float, "unit": str}}``; limits that the processor lacks are left out.
        Empty on a machine that is not x86-64.
    """
    if not X86_64.runs_on(platform.machine()):
        return {}
    done = subprocess.run(
        [str(_limits_program(cache)), str(threads), str(seconds)],
        check=True,
        capture_output=True,
        text=True,
    )
    rows = (line.split() for line in done.stdout.splitlines())
    return {name: {"value": float(value), "unit": unit} for name, value, unit in rows}


def int8_ceiling(limits: dict[str, dict[str, Any]]) -> float | None:
    """GMAC/s of the best exact 8-bit matrix instruction that was measured, or None."""
    dots = ("int8-tdpbusd-tile", "int8-vpdpbusd-zmm", "int8-vpdpbusd-ymm-vex", "int16-vpmaddwd-ymm")
    for name in dots:  # the best of those that a processor has comes first
        if name in limits:
            return float(limits[name]["value"])
    return None


def fp32_ceiling(limits: dict[str, dict[str, Any]]) -> float | None:
    """GMAC/s of the best FP32 multiply-add that was measured, or None."""
    values = [row["value"] for name, row in limits.items() if name.startswith("fp32-fma")]
    return max(values, default=None)


def read_bandwidth(
    limits: dict[str, dict[str, Any]], caches_kib: dict[str, int], num_bytes: int
) -> tuple[str, float] | None:
    """Bandwidth of the nearest memory that holds `num_bytes`.

    Parameters
    ----------
    limits
        What `measure_limits` returns.
    caches_kib
        Cache sizes by level.
    num_bytes
        Bytes that are read again and again.

    Returns
    -------
    tuple of (str, float) or None
        ``("L3", GB/s)``; None if it was not measured.
    """
    for level in ("L2", "L3"):
        if num_bytes <= caches_kib.get(level, 0) * 1024 and f"read-{level}" in limits:
            return level, float(limits[f"read-{level}"]["value"])
    row = limits.get("read-DRAM")
    return None if row is None else ("DRAM", float(row["value"]))
