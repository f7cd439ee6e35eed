"""A measurement on a GPU as Markdown, beside its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.goals import geometric_mean
from benchmarks.models import describe
from benchmarks.report import table
from benchmarks.store import save_with_text

from .cells import SPECS
from .goals import KINDS, check_goals, groups_of, ratio
from .limits import mma_limit, read_limit
from .peers import BASELINE
from .published import PUBLISHED, SOURCE

__all__ = ["write_report"]

# Cells whose kernels are shown, if they were measured; the document has those of all.
_SHOWN = ("1x128", "8x256")


def write_report(result: dict[str, Any], output: Path) -> list[Path]:
    """Write ``output.json`` and ``output.md``.

    Parameters
    ----------
    result : dict
        What ``benchmarks.cuda`` collects.
    output : Path
        Path without suffix.

    Returns
    -------
    list of Path
        The files written.
    """
    return save_with_text(result, _markdown(result), output)


def _markdown(result: Mapping[str, Any]) -> str:
    lines = ["# Latency on an NVIDIA GPU, beside PyTorch", "", *_head(result)]
    if result["rows"]:
        lines += _goal_lines(result)
        lines += _wrong_lines(result)
        lines += _ratio_lines(result)
        lines += _latency_lines(result)
        lines += _text_lines(result)
        lines += _published_lines(result)
        lines += _kernel_lines(result)
        lines += _sensor_lines(result)
    lines += _limit_lines(result)
    lines += ["", "## Peers", ""]
    lines += [f"- `{name}`: {title}" for name, title in result["peers"].items()]
    missing = [f"- {name}: {reason}" for name, reason in result["skipped"].items()]
    missing += [
        f"- `{row['peer']}` on {row['model']} {row['cell']}: {row['failed']}"
        for row in result["rows"]
        if "failed" in row
    ]
    if missing:
        lines += ["", "Not measured:", "", *missing]
    return "\n".join(lines) + "\n"


def _head(result: Mapping[str, Any]) -> list[str]:
    gpu, machine, software = result["gpu"], result["machine"], result["software"]
    made = result["prepared"]
    versions = ", ".join(f"{k} {v}" for k, v in software["packages"].items() if v)
    modified = " (with local changes)" if made["software"]["modified"] else ""
    return [
        f"- GPU: {gpu['name']}, compute capability {gpu['capability'] / 10:.1f}, "
        f"{gpu['multiprocessors']} multiprocessors, at most {gpu['clock_mhz']} MHz, "
        f"{gpu['memory_mib']} MiB, L2 {gpu['l2_kib']} KiB",
        f"- Driver: {gpu['kernel_driver'] or 'unknown'}, CUDA {gpu['driver']}",
        f"- Machine: {machine['processor']}, {machine['cores']} cores",
        f"- Software: Python {software['python']}, {versions}",
        f"- Compiled for {made['target']} ({', '.join(made['architectures'])}) at commit "
        f"{made['software']['commit']}{modified}; measured {software['time']}",
    ]


def _goal_lines(result: Mapping[str, Any]) -> list[str]:
    marks = {True: "met", False: "**missed**", None: "not measured"}
    rows = [
        [goal.name, goal.bound, marks[goal.met], goal.measured or "–", goal.cells]
        for goal in check_goals(result)
    ]
    return [
        *("", "## Targets", ""),
        *table(["target", "bound", "", "worst measured", "cells"], rows),
        "",
        "Ratios are of medians, beside them those of minima; of PyTorch's variants the faster one "
        "counts.",
    ]


def _wrong_lines(result: Mapping[str, Any]) -> list[str]:
    """Warn of rows that are no result: they are left out of all ratios."""
    return [
        line
        for row in result["rows"]
        if "wrong" in row
        for line in ("", f"**`{row['peer']}` on {row['model']} {row['cell']}: {row['wrong']}.**")
    ]


def _ratio_lines(result: Mapping[str, Any]) -> list[str]:
    groups = {key: group for key, group in groups_of(result).items() if BASELINE in group}
    kinds = [kind for kind in KINDS if any(ratio(group, kind) for group in groups.values())]
    collected: dict[str, list[float]] = {}
    rows = []
    for (model, cell), group in groups.items():
        row = [model, cell]
        for kind in kinds:
            value, minimum = ratio(group, kind), ratio(group, kind, "min_ms")
            row.append("–" if value is None else f"{value:.2f} ({minimum:.2f})")
            if value is not None:
                collected.setdefault(kind, []).append(value)
            without = ratio(group, kind, "device_median_ms")
            row.append("–" if without is None else f"{without:.2f}")
        rows.append(row)
    if not collected:
        return []
    header = ["model", "batch x seq"]
    for kind in kinds:
        header += [kind, "its copies left out"]
    summary = [
        [kind, f"{geometric_mean(values):.2f}", f"{min(values):.2f}", f"{max(values):.2f}"]
        for kind, values in collected.items()
    ]
    return [
        *("", "## Times as fast", ""),
        f"Median of the peer's faster variant divided by that of `{BASELINE}`; of minima in "
        "parentheses. A call copies ids from pinned memory and outputs to it, for every peer. In "
        "the columns *its copies left out* only the peer is spared that.",
        *("", *table(header, rows), ""),
        *table(["against", "geometric mean", "lowest", "highest"], summary),
    ]


def _latency_lines(result: Mapping[str, Any]) -> list[str]:
    settings = result["settings"]
    lines = [
        *("", "## Latency", ""),
        f"Milliseconds of a call: median (minimum) over up to {settings['rounds']} rounds of at "
        f"least {settings['seconds']} s in which the peers take turns, each in its own process, "
        "stopped while it is not its turn. TOPS: operations of all matrix products (two per "
        "multiply-accumulate) over the median. Outputs: the cosine to the float model's, computed "
        "in FP32 on a processor; for integers, whether every one is that of the specification.",
    ]
    for model in dict.fromkeys(row["model"] for row in result["rows"]):
        rows = []
        for row in result["rows"]:
            if row["model"] != model or "median_ms" not in row:
                continue
            alone = row.get("device_median_ms")
            exact = {True: "bit-exact", False: "**wrong**", None: ""}[row["bit_exact"]]
            rows.append(
                [
                    *(row["cell"], row["peer"]),
                    f"{row['median_ms']:.4g} ({row['min_ms']:.4g})",
                    "–" if alone is None else f"{alone:.4g}",
                    f"{row['tops']:.1f}",
                    "–" if row["cosine"] is None else f"{row['cosine']:.4f}",
                    exact,
                ]
            )
        header = ["batch x seq", "peer", "ms", "without copies", "TOPS", "cosine", "integers"]
        lines += ["", f"### {model}: {describe(SPECS[model])}", "", *table(header, rows)]
    return lines


def _text_lines(result: Mapping[str, Any]) -> list[str]:
    """What leaving padding out gains."""
    rows = [
        [
            *(model, cell, f"{row['median_ms']:.4g}", f"{row['texts_median_ms']:.4g}"),
            f"{row['median_ms'] / row['texts_median_ms']:.2f}",
        ]
        for (model, cell), group in groups_of(result).items()
        for row in group.values()
        if "texts_median_ms" in row
    ]
    if not rows:
        return []
    header = ["model", "batch x seq", "all tokens, ms", "texts, ms", "times as fast"]
    return [
        *("", "## Padding", ""),
        f"`{BASELINE}` with texts as long as those of the held-out file, padded to the cell.",
        *("", *table(header, rows)),
    ]


def _published_lines(result: Mapping[str, Any]) -> list[str]:
    """What TensorRT did on other GPUs."""
    groups = groups_of(result)
    rows = []
    for quoted in PUBLISHED:
        own = groups.get((quoted.model, str(quoted.cell)), {}).get(BASELINE)
        if own is not None:
            figures = f"{quoted.int8_ms:.2f} ({quoted.fp16_ms:.2f})"
            here = f"{own['median_ms']:.4g}"
            rows.append([quoted.model, str(quoted.cell), quoted.gpu, figures, here])
    if not rows:
        return []
    header = ["model", "batch x seq", "GPU", "TensorRT INT8 (FP16), ms", f"`{BASELINE}` here, ms"]
    return [
        *("", "## Published figures of TensorRT", ""),
        f"Quoted from [NVIDIA's BERT demo]({SOURCE}), (removed in TensorRT 11): averages on "
        "the GPU that is named, without copies. Nothing of it was measured here.",
        *("", *table(header, rows)),
    ]


def _fraction(value: float, limit: float | None) -> str:
    return f"{value / limit:.0%}" if limit else "–"


def _kernel_lines(result: Mapping[str, Any]) -> list[str]:
    compute = mma_limit(result["limits"])
    memory = read_limit(result["limits"])
    lines: list[str] = []
    groups = groups_of(result)
    groups = {key: group for key, group in groups.items() if "kernels" in group.get(BASELINE, {})}
    shown = {key for key in groups if key[1] in _SHOWN} or set(groups)
    for (model, cell), group in groups.items():
        if (model, cell) not in shown:
            continue
        kernels = group[BASELINE]["kernels"]
        total = sum(row["median_ms"] for row in kernels)
        rows = []
        for row in kernels:
            milliseconds = max(row["median_ms"], 1e-9)
            tops = 2 * row["macs"] / milliseconds * 1e-9
            bandwidth = row["bytes"] / milliseconds * 1e-6
            # Tables that are looked up count whole in these bytes, and are not read whole.
            moved = row["bytes"] > 0 and not row["role"].startswith("embeddings")
            rows.append(
                [
                    *(row["role"], row["kind"], str(row["calls"])),
                    *(f"{1e3 * row['median_ms']:.1f}", f"{row['median_ms'] / total:.1%}"),
                    f"{tops:.1f}" if row["macs"] else "–",
                    _fraction(tops, compute) if row["macs"] else "–",
                    f"{bandwidth:.0f}" if moved else "–",
                    _fraction(bandwidth, memory) if moved else "–",
                ]
            )
        header = ["place", "kernel", "calls", "us", "share", "TOPS", "of the mma limit"]
        header += ["GB/s", "of the memory"]
        lines += ["", f"### {model} {cell}", "", *table(header, rows), ""]
        call = group[BASELINE]["median_ms"]
        lines.append(f"Kernels together {total:.4g} ms, a call {call:.4g} ms.")
    if not lines:
        return []
    return [
        *("", f"## Where the time of {BASELINE} goes", ""),
        "Kernels launched one by one, with an event before and behind each; repeated layers "
        "together. Bytes are those of arguments and results, each once: what stays in the "
        "second-level cache from one kernel to the next counts, so that small cells can exceed the "
        "memory's limit.",
        *lines,
    ]


def _range(values: Iterable[float], unit: str) -> str:
    found = list(values)
    if not found:
        return "–"
    low, high = min(found), max(found)
    return f"{low:g} {unit}" if low == high else f"{low:g} to {high:g} {unit}"


def _sensor_lines(result: Mapping[str, Any]) -> list[str]:
    rows = []
    for row in result["rows"]:
        readings = [reading for reading in row.get("sensors", ()) if reading]
        if not readings:
            continue
        limited = sorted({name for reading in readings for name in reading.get("limited_by", ())})
        rows.append(
            [
                *(row["model"], row["cell"], row["peer"]),
                _range((r["clock_mhz"] for r in readings if "clock_mhz" in r), "MHz"),
                _range((r["celsius"] for r in readings if "celsius" in r), "°C"),
                _range((r["watts"] for r in readings if "watts" in r), "W"),
                ", ".join(limited) or "–",
            ]
        )
    if not rows:
        return ["", "Clocks and temperatures could not be read."]
    header = ["model", "batch x seq", "peer", "clock", "temperature", "power", "held down by"]
    note = "Read at the end of every turn, while the GPU may already be cooling down."
    return ["", "## Clocks", "", note, "", *table(header, rows)]


def _limit_lines(result: Mapping[str, Any]) -> list[str]:
    if not result["limits"]:
        return []
    rows = [[name, f"{row['value']:.4g}", row["unit"]] for name, row in result["limits"].items()]
    return [
        *("", "## Limits of the GPU", "", *table(["limit", "measured", "unit"], rows), ""),
        "Measured by `benchmarks/cuda/limits.cu`: `mma`, the matrix instruction of the kernels "
        "(m8n8k16 before sm_80, m16n8k32 from then on) with all operands in registers; reads and "
        "copies (both directions counted) of device memory; empty kernels launched one after the "
        "other.",
    ]
