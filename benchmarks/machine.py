"""What a result must say about the machine and the software that produced it."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["describe_machine", "describe_software", "measure_limits"]

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
        "memory_gib": round(int(memory_kib[0]) / 2**20, 1) if memory_kib else None,
        "system": f"{platform.system()} {platform.release()}",
        "load_at_start": os.getloadavg()[0],
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def describe_software() -> dict[str, Any]:
    """Commit (with a mark when the checkout differs from it), Python, package versions, time."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {
        "commit": _git("rev-parse", "HEAD") or None,
        "modified": bool(_git("status", "--porcelain", "--untracked-files=no")),
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
    if platform.machine() not in ("x86_64", "AMD64"):
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
    for name in ("int8-vpdpbusd-zmm", "int8-vpdpbusd-ymm-vex", "int16-vpmaddwd-ymm"):
        if name in limits:
            return float(limits[name]["value"])
    return None


def fp32_ceiling(limits: dict[str, dict[str, Any]]) -> float | None:
    """GMAC/s of the best FP32 multiply-add that was measured, or None."""
    values = [row["value"] for name, row in limits.items() if name.startswith("fp32-fma")]
    return max(values, default=None)
