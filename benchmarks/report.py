"""Results as JSON, Markdown and a chart."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .machine import fp32_ceiling, int8_ceiling
from .models import MODELS, Cell, describe

__all__ = ["write_report"]

BASELINE = "ibert"


def write_report(result: dict[str, Any], output: Path) -> list[Path]:
    """Write ``output.json``, ``output.md`` and, with matplotlib, ``output.png``.

    Parameters
    ----------
    result : dict
        What ``benchmarks.cpu`` collects.
    output : Path
        Path without suffix.

    Returns
    -------
    list of Path
        The files written.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    paths = [output.with_name(output.name + ".json"), output.with_name(output.name + ".md")]
    paths[0].write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    chart = output.with_name(output.name + ".png")
    drawn = _draw_chart(result, chart)
    paths[1].write_text(_markdown(result, chart.name if drawn else None), encoding="utf-8")
    return [*paths, chart] if drawn else paths


def _groups(result: dict[str, Any]) -> dict[tuple[str, str, int], dict[str, dict[str, Any]]]:
    """Measured rows by (model, cell, threads), then by peer."""
    groups: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = {}
    for row in result["rows"]:
        if "median_ms" in row:
            key = (row["model"], row["cell"], row["threads"])
            groups.setdefault(key, {})[row["peer"]] = row
    return groups


def _best(group: dict[str, dict[str, Any]], prefix: str, field: str = "median_ms") -> float | None:
    """The lowest figure of the peers whose name begins with `prefix`."""
    values = [row[field] for peer, row in group.items() if peer.startswith(prefix)]
    return min(values, default=None)


def _best_fp32(result: dict[str, Any], group: dict[str, dict[str, Any]]) -> float | None:
    values = [r["median_ms"] for p, r in group.items() if result["precision"][p] == "fp32"]
    return min(values, default=None)


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _geometric_mean(values: list[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values))


def _ratio_rows(result: dict[str, Any]) -> tuple[list[list[str]], list[list[str]]]:
    """Ratios of each kind of peer to the baseline, and their summary."""
    kinds = {
        "OpenVINO INT8": lambda group: _best(group, "openvino-int8"),
        "ONNX Runtime INT8": lambda group: _best(group, "onnxruntime-int8"),
        "best FP32": lambda group: _best_fp32(result, group),
    }
    rows, collected = [], {kind: [] for kind in kinds}
    for (model, cell, threads), group in _groups(result).items():
        if BASELINE not in group:
            continue
        own = group[BASELINE]["median_ms"]
        row = [model, cell, str(threads)]
        for kind, pick in kinds.items():
            value = pick(group)
            row.append("–" if value is None else f"{value / own:.2f}")
            if value is not None:
                collected[kind].append(value / own)
        ceiling = int8_ceiling(result["limits"][str(threads)])
        fraction = group[BASELINE]["gmacs"] / ceiling if ceiling else None
        row.append("–" if fraction is None else f"{fraction:.0%}")
        rows.append(row)
    summary = [
        [kind, f"{_geometric_mean(values):.2f}", f"{min(values):.2f}", f"{max(values):.2f}"]
        for kind, values in collected.items()
        if values
    ]
    return rows, summary


def _machine_lines(result: dict[str, Any]) -> list[str]:
    machine, software = result["machine"], result["software"]
    versions = ", ".join(f"{k} {v}" for k, v in software["packages"].items() if v)
    modified = " (with local changes)" if software["modified"] else ""
    lines = [
        f"- Machine: {machine['processor']} (family {machine['family']}, model "
        f"{machine['model']}), {machine['cores']} cores, {machine['memory_gib']} GiB; "
        f"{', '.join(machine['features'])}",
        f"- Software: Python {software['python']}, {versions}",
        f"- Commit: {software['commit']}{modified}; {software['time']}",
        f"- Load average at the start: {machine['load_at_start']:.2f}",
        "",
        "## Limits of the machine",
        "",
    ]
    threads = list(result["limits"])
    names = list(result["limits"][threads[0]]) if threads else []
    rows = []
    for name in names:
        unit = result["limits"][threads[0]][name]["unit"]
        values = [f"{result['limits'][count][name]['value']:.0f}" for count in threads]
        rows.append([name, *values, unit])
    header = ["limit", *(f"{count} thread{'s' * (count != '1')}" for count in threads), "unit"]
    return lines + _table(header, rows)


def _latency_lines(result: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    groups = _groups(result)
    peers = [p for p in result["peers"] if any(p in group for group in groups.values())]
    for model in dict.fromkeys(key[0] for key in groups):
        lines += ["", f"### {model}: {describe(MODELS[model])}", ""]
        rows = []
        for (name, cell, threads), group in groups.items():
            if name != model:
                continue
            work = MODELS[model].macs(Cell.parse(cell)) * 1e-9
            figures = [
                f"{group[p]['median_ms']:.2f} ({group[p]['min_ms']:.2f})" if p in group else "–"
                for p in peers
            ]
            rows.append([cell, str(threads), f"{work:.3g}", *figures])
        lines += _table(["batch x seq", "threads", "GMAC", *peers], rows)
    return lines


def _efficiency_lines(result: dict[str, Any]) -> list[str]:
    """Achieved GMAC/s, fraction of the ceiling, memory, agreement with PyTorch."""
    rows = []
    for (model, cell, threads), group in _groups(result).items():
        limits = result["limits"][str(threads)]
        for peer, row in group.items():
            is_int8 = result["precision"][peer] == "int8"
            ceiling = int8_ceiling(limits) if is_int8 else fp32_ceiling(limits)
            fraction = f"{row['gmacs'] / ceiling:.0%}" if ceiling else "–"
            cosine = row.get("cosine_to_pytorch")
            rows.append(
                [
                    *(model, cell, str(threads), peer, f"{row['gmacs']:.0f}", fraction),
                    f"{row['peak_mib']:.0f}",
                    f"{row['load_seconds']:.2f}",
                    "–" if cosine is None else f"{cosine:.4f}",
                ]
            )
    header = ["model", "batch x seq", "threads", "peer", "GMAC/s", "of the ceiling"]
    return _table([*header, "peak MiB", "load s", "cosine to PyTorch"], rows)


def _markdown(result: dict[str, Any], chart: str | None) -> str:
    lines = ["# Latency on the CPU, beside other runtimes", "", *_machine_lines(result)]
    settings = result["settings"]
    if result["rows"]:
        lines += [
            "",
            "## Latency",
            "",
            f"Milliseconds: median (minimum) over {settings['rounds']} rounds of "
            f"{settings['seconds_per_turn']} s in which the peers take turns, each in its own "
            "process, stopped while it is not its turn. Only ratios within one run mean something.",
            *_latency_lines(result),
        ]
        others = max(row.get("other_load_cores", 0.0) for row in result["rows"])
        if others > 0.2:
            lines += [
                "",
                f"**Other processes kept up to {others:.1f} cores busy during this run.**",
            ]
        rows, summary = _ratio_rows(result)
        if rows:
            header = ["model", "batch x seq", "threads", "OpenVINO INT8", "ONNX Runtime INT8"]
            header += ["best FP32", "ibert: of the INT8 ceiling"]
            lines += [
                *("", "## Times as fast", ""),
                "Median of the peer's faster variant divided by that of `ibert`.",
                *("", *_table(header, rows), ""),
                *_table(["against", "geometric mean", "lowest", "highest"], summary),
            ]
        if chart:
            lines += ["", f"![Latency relative to the baseline]({chart})"]
        lines += ["", "## Throughput, memory, agreement", "", *_efficiency_lines(result)]
        lines += [
            "",
            "GMAC/s counts the matrix products (linear layers, Q K^T, P V). The ceiling is that "
            "of the 8-bit dot product for INT8 peers and of FP32 multiply-add for the others. "
            "The cosine compares the mean-pooled output for one input of random tokens with "
            "PyTorch's: a check that the peer computes the model, not a measure of fidelity.",
        ]
    lines += ["", "## Peers", ""]
    lines += [f"- `{name}`: {title}" for name, title in result["peers"].items()]
    if result["skipped"]:
        lines += ["", "Not measured:", ""]
        lines += [f"- `{name}`: {reason}" for name, reason in result["skipped"].items()]
    failed = [row for row in result["rows"] if "failed" in row]
    for row in failed:
        lines.append(
            f"- `{row['peer']}` on {row['model']} {row['cell']}, {row['threads']} threads: "
            f"{row['failed']}"
        )
    return "\n".join(lines) + "\n"


def _draw_chart(result: dict[str, Any], path: Path) -> bool:
    """Bars of each peer's median relative to the baseline; False without matplotlib or data."""
    groups = _groups(result)
    if not groups or find_spec("matplotlib") is None:
        return False
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    present = [p for p in result["peers"] if any(p in group for group in groups.values())]
    baseline = BASELINE if BASELINE in present else present[0]
    others = [peer for peer in present if peer != baseline]
    keys = [key for key, group in groups.items() if baseline in group]
    if not others or not keys:
        return False
    height = 0.8 / len(others)
    colours = plt.get_cmap("tab10").colors
    figure, axes = plt.subplots(figsize=(9, 0.9 + len(keys) * (0.25 + 0.13 * len(others))))
    for index, peer in enumerate(others):
        positions, values = [], []
        for row, key in enumerate(keys):
            if peer in groups[key]:
                positions.append(row + (index - (len(others) - 1) / 2) * height)
                values.append(groups[key][peer]["median_ms"] / groups[key][baseline]["median_ms"])
        bars = axes.barh(positions, values, height, label=peer, color=colours[index % 10])
        axes.bar_label(bars, fmt="%.2f", fontsize=6, padding=2)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(keys)))
    axes.set_yticklabels([f"{m} {c}, {t} thr." for m, c, t in keys], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"latency relative to {baseline} (more than 1: {baseline} is faster)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)
    return True
