"""Documents of a page in tests: of a small program that is really analysed, the rest invented."""

from __future__ import annotations

from typing import Any

from ibert_tvm.report import program_graph
from tests.encoder.small_encoders import bert

HOSTILE = '"><script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">{{ 7*7 }}'
"""Hostile names."""


def _part(name: str, kind: str, share: float, macs: int, gmacs: float | None) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "layer": name,
        "calls": 1,
        "ms": 2.5 * share,
        "share": share,
        "macs": macs,
        "gmacs": gmacs,
        "bytes": 4096,
        "gbytes_per_second": 1.25,
        "macs_per_byte": macs / 4096 if macs else None,
        "of_ceiling": None if gmacs is None else gmacs / 80,
    }


def bench(name: str = "encoder.layer.0.dense") -> dict[str, Any]:
    """What `ibert bench --per-layer --json` prints, of two kernels."""
    parts = [
        _part(name, "linear", 0.75, 400_000, 50.0),
        _part("encoder.layer.0.norm", "layer_norm", 0.25, 0, None),
    ]
    result = {
        "function": "main_b1_s16",
        "batch": 1,
        "seq_len": 16,
        "threads": 1,
        "runs": 12,
        "real_tokens": 1.0,
        "median_ms": 2.5,
        "min_ms": 2.25,
        "p90_ms": 3.0,
        "sequences_per_second": 400.0,
        "tokens_per_second": 6400.0,
        "macs": 400_000,
        "gmacs": 0.16,
        "of_ceiling": 0.002,
        "layers": {key: parts for key in ("kernels", "by_kind", "by_role", "by_layer")},
    }
    return {
        "machine": {"processor": "a processor", "processors": 2, "load_average": 0.5},
        "ceilings": {"1": {"instruction": "vpdpbusd", "gmacs": 80.0, "missing": ""}},
        "results": [result],
    }


def library(label: str = "embedding", **changes: Any) -> dict[str, Any]:
    """One artefact, a library; `label` is an untrusted name of its source, classes and layers."""
    info = {
        "architecture": "bert",
        "description": label,
        "head": "none",
        "num_layers": 2,
        "hidden_size": 32,
        "vocab_size": 90,
        "source": label,
        "source_sha256": "ab" * 32,
        "id2label": {"0": label},
        "notes": [label],
    }
    inspected = {
        "kind": "compiled library",
        "bytes": 26_050_892,
        "parameter_bytes": 23_000_000,
        "target": {"name": "host", "description": label},
        "runtime": "tvm",
        "device": "cpu",
        "required_cpu_features": ["avx2"],
        "functions": [{"name": "main_b1_s16", "batch": 1, "seq_len": 16}],
        "outputs": [{"name": label, "kind": "embedding", "scale": 2.0**-15}],
        "parameters": [{"name": label, "dtype": "int8", "shape": [90, 32]}],
        "versions": {"tvm": "0.27.0"},
        "info": info,
    }
    layer = {"name": label, "cosine": 0.9991234567, "relative_error": 0.0123}
    fidelity = {
        "cosine_mean": 0.9990123456,
        "cosine_min": 0.987,
        "max_abs_error": 0.03,
        "spearman": 0.998,
        "same_nearest_neighbour": None,
        "texts": 20,
        "seq_len": 16,
        "output": label,
        "layers": [layer, {**layer, "cosine": 0.98, "relative_error": None}],
    }
    worst = {
        "text": label,
        "error": 0.0033,
        "what": "rounding",
        "where": "gelu",
        "alone": 0.0014,
        "value": label,
        "clipped_value": None,
        "clipped": 0.002,
    }
    loss = {"what": "rounding", "where": label, "places": 6, "noise": 0.1, "alone": 0.0012}
    loss |= {"alone_max": 0.003, "without": None}
    why = {
        "texts": 8,
        "tokens": 141,
        "error": 0.002,
        "error_max": 0.0033,
        "rounding": None,
        "computing": 0.0009,
        "losses": [loss, {**loss, "alone": 0.0003}, {**loss, "alone": None, "alone_max": None}],
        "values": [],
        "worst": [worst],
        "suggestions": [{"change": label, "error": 0.0016}],
        "complete": False,
    }
    check = {"name": label, "passed": False, "facts": {"inputs": 16}, "findings": [label]}
    check["not_run"] = ""
    certificate = {
        "ibert_tvm": "0.1.0",
        "artefact_sha256": "cd" * 32,
        "passed": False,
        "complete": True,
        "checks": [check],
    }
    return {
        "name": label,
        "path": label,
        "kind": "compiled library",
        "sha256": "cd" * 32,
        "package": None,
        "inspect": inspected,
        "model": None,
        "graph": program_graph(bert()),
        "eval": fidelity,
        "layers": None,
        "why": why,
        "bench": bench(label),
        "certificate": certificate,
        "missing": {},
        **changes,
    }


def package() -> dict[str, Any]:
    """One artefact, a package for a microcontroller."""
    said = library()["inspect"]
    peak = {
        "batch": 1,
        "seq_len": 32,
        "layer": "encoder.layer.0.output.dense",
        "bytes": 180_700,
        "parts": [{"what": "workspace", "bytes": 56_576}],
    }
    memory = {
        "flash": {"code": 52_908, "constants": 1008, "weights": 23_320_498, "total": 23_374_414},
        "ram": {"arena": 180_752, "stack": 704, "data": 0, "total": 181_456, "peak": peak},
    }
    held = {
        "info": said["info"],
        "target": {"name": "cortex-m4"},
        "versions": said["versions"],
        "outputs": [{"name": "embedding", "dtype": "int16", "scale": 2.0**-15}],
        "functions": [{"batch": 1, "seq_len": 32, "arena_bytes": 180_752, "symbol": "run"}],
        "weights": [{"name": "table", "dtype": "int8", "shape": [90, 32], "bytes": 2880}],
        "emit": "objects",
        "memory": memory,
    }
    kind = "microcontroller package"
    return library(kind=kind, package=held, inspect=None, bench=None, eval=None)


def document(*artefacts: dict[str, Any]) -> dict[str, Any]:
    """The document of a page."""
    return {"schema_version": 1, "ibert_tvm": "0.1.0", "made": "today", "artefacts": [*artefacts]}
