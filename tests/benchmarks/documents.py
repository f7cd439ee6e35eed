"""Results of a benchmark that never ran."""

from __future__ import annotations

from typing import Any

PEERS = {
    "ibert": "int8",
    "openvino-int8": "int8",
    "openvino-int8-bf16": "int8",
    "onnxruntime-int8-dynamic": "int8",
    "openvino-fp32": "fp32",
}


def row(
    peer: str, median_ms: float, model: str = "minilm", cell: str = "1x128", threads: int = 1
) -> dict[str, Any]:
    """One measured row; the minimum is 0.1 ms below the median."""
    return {
        "model": model,
        "cell": cell,
        "threads": threads,
        "peer": peer,
        "median_ms": median_ms,
        "min_ms": median_ms - 0.1,
        "gmacs": round(1434.0 / median_ms, 1),
        "load_seconds": 0.5,
        "peak_mib": 90.0,
        "other_load_cores": 0.0,
    }


def memory_row(peer: str, peak: float, model: str = "bert-base") -> dict[str, Any]:
    """Memory of one peer."""
    stage = {"peak": peak, "resident": peak, "anonymous": peak - 50.0, "file_mapped": 50.0}
    return {
        "model": model,
        "cell": "1x128",
        "threads": 1,
        "peer": peer,
        "stages": {"start": {**stage, "resident": 30.0}, "loaded": stage, "ran": stage},
        "mappings": [],
    }


def document(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A result with these rows."""
    result = {
        "schema": 2,
        "machine": {
            "processor": "P",
            "family": "1",
            "model": "2",
            "features": ["avx2"],
            "cores": 2,
            "caches_kib": {"L1": 32, "L2": 1024, "L3": 32768},
            "memory_gib": 8.0,
            "load_at_start": 0.0,
        },
        "software": {
            "python": "3.11",
            "packages": {"numpy": "2", "openvino": None},
            "commit": "c0ffee",
            "modified": False,
            "sources": "5eed",
            "time": "now",
        },
        "settings": {"rounds": 7, "seconds": 0.3},
        "peers": {name: f"title of {name}" for name in PEERS},
        "precision": dict(PEERS),
        "skipped": {"pytorch-fp32": "not installed: torch"},
        "limits": {
            str(threads): {
                "int8-vpdpbusd-zmm": {"value": 500.0 * threads, "unit": "GMAC/s"},
                "fp32-fma-zmm": {"value": 125.0 * threads, "unit": "GMAC/s"},
                "read-L2": {"value": 200.0 * threads, "unit": "GB/s"},
                "read-L3": {"value": 100.0 * threads, "unit": "GB/s"},
                "read-DRAM": {"value": 40.0, "unit": "GB/s"},
            }
            for threads in (1, 2)
        },
        "rows": list(rows),
        "memory": [],
        "profiles": [],
    }
    return {**result, **changes}
