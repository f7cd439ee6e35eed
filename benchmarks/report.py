"""A result as Markdown, beside its JSON and its chart; and several results as one.

python -m benchmarks.report part1.json part2.json -o benchmarks/results/cpu
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .chart import draw_chart
from .goals import BASELINE, KINDS, check_goals, geometric_mean, groups_of, ratio
from .machine import fp32_ceiling, int8_ceiling, read_bandwidth
from .models import MODELS, Cell, describe
from .store import StoreError, merge, save

__all__ = ["table", "write_report"]

_BYTES = {"int8": 1, "fp32": 4}
# Static quantisation of a real model on random tokens comes down to 0.90.
_WRONG = 0.8


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
    document, text, chart = (
        output.with_name(output.name + suffix) for suffix in (".json", ".md", ".png")
    )
    save(result, document)
    drawn = draw_chart(result, chart)
    text.write_text(_markdown(result, chart.name if drawn else None), encoding="utf-8")
    return [document, text, chart] if drawn else [document, text]


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Lines of a Markdown table."""
    head = list(header)
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def machine_lines(result: dict[str, Any]) -> list[str]:
    """What was measured on what: machine, software, commit."""
    machine, software = result["machine"], result["software"]
    versions = ", ".join(f"{k} {v}" for k, v in software["packages"].items() if v)
    modified = " (with local changes)" if software["modified"] else ""
    caches = ", ".join(f"{level} {size} KiB" for level, size in machine["caches_kib"].items())
    return [
        f"- Machine: {machine['processor']} (family {machine['family']}, model "
        f"{machine['model']}), {machine['cores']} cores, {machine['memory_gib']} GiB; "
        f"{', '.join(machine['features'])}; {caches}",
        f"- Software: Python {software['python']}, {versions}",
        f"- Commit: {software['commit']}{modified}; {software['time']}",
        f"- Load average at the start: {machine['load_at_start']:.2f}",
    ]


def _limit_lines(result: dict[str, Any]) -> list[str]:
    threads = list(result["limits"])
    if not threads:
        return []
    rows = []
    for name, row in result["limits"][threads[0]].items():
        values = [f"{result['limits'][count][name]['value']:.0f}" for count in threads]
        rows.append([name, *values, row["unit"]])
    header = ["limit", *(f"{count} thread{'s' * (count != '1')}" for count in threads), "unit"]
    return ["", "## Limits of the machine", "", *table(header, rows)]


def _goal_lines(result: dict[str, Any]) -> list[str]:
    marks = {True: "met", False: "**missed**", None: "not measured"}
    rows = [
        [goal.name, goal.bound, marks[goal.met], goal.measured or "–", goal.cells]
        for goal in check_goals(result)
    ]
    return [
        *("", "## Targets", ""),
        *table(["target", "bound", "", "worst measured", "cells"], rows),
        "",
        "Ratios are of medians, beside them those of minima; of each runtime the faster variant "
        "counts. Latency per work: growth of the latency divided by growth of the "
        "multiply-accumulates.",
    ]


def _wrong_lines(result: dict[str, Any]) -> list[str]:
    """Warn of rows whose output is not the model's."""
    return [
        line
        for row in result["rows"]
        if row.get("cosine_to_pytorch", 1.0) < _WRONG
        for line in (
            "",
            f"**`{row['peer']}` does not compute the model** on {row['model']} {row['cell']}, "
            f"{row['threads']} threads: the cosine to PyTorch's output is "
            f"{row['cosine_to_pytorch']:.3f}.",
        )
    ]


def _latency_lines(result: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    groups = groups_of(result)
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
        lines += table(["batch x seq", "threads", "GMAC", *peers], rows)
    return lines


def _ratio_lines(result: dict[str, Any]) -> list[str]:
    """Ratios of each kind of peer to the baseline, and their geometric means."""
    groups = {key: g for key, g in groups_of(result).items() if BASELINE in g}
    rows = []
    measured = [
        kind for kind in KINDS if any(ratio(group, kind) is not None for group in groups.values())
    ]
    collected: dict[str, list[float]] = {kind: [] for kind in measured}
    for (model, cell, threads), group in groups.items():
        row = [model, cell, str(threads)]
        for kind, values in collected.items():
            value, of_minima = ratio(group, kind), ratio(group, kind, "min_ms")
            row.append("–" if value is None else f"{value:.2f} ({of_minima:.2f})")
            if value is not None:
                values.append(value)
        ceiling = int8_ceiling(result["limits"].get(str(threads), {}))
        row.append("–" if ceiling is None else f"{group[BASELINE]['gmacs'] / ceiling:.0%}")
        rows.append(row)
    summary = [
        [kind, f"{geometric_mean(values):.2f}", f"{min(values):.2f}", f"{max(values):.2f}"]
        for kind, values in collected.items()
    ]
    if not summary:
        return []
    header = ["model", "batch x seq", "threads", *measured, f"{BASELINE}: of the 8-bit ceiling"]
    return [
        *("", "## Times as fast", ""),
        f"Median of the peer's faster variant divided by that of `{BASELINE}`; of minima in "
        "parentheses.",
        *("", *table(header, rows), ""),
        *table(["against", "geometric mean", "lowest", "highest"], summary),
    ]


def _efficiency_lines(result: dict[str, Any]) -> list[str]:
    """Achieved work and traffic as fractions of the limits, and agreement with PyTorch."""
    rows = []
    caches = result["machine"]["caches_kib"]
    for (model, cell, threads), group in groups_of(result).items():
        limits = result["limits"].get(str(threads), {})
        for peer, row in group.items():
            precision = result["precision"][peer]
            ceiling = int8_ceiling(limits) if precision == "int8" else fp32_ceiling(limits)
            weights = MODELS[model].weight_bytes(_BYTES[precision])
            traffic = weights / row["median_ms"] * 1e-6
            memory = read_bandwidth(limits, caches, weights)
            cosine = row.get("cosine_to_pytorch")
            rows.append(
                [
                    *(model, cell, str(threads), peer, f"{row['gmacs']:.0f}"),
                    f"{row['gmacs'] / ceiling:.0%}" if ceiling else "–",
                    f"{traffic:.1f}",
                    f"{traffic / memory[1]:.0%} of {memory[0]}" if memory else "–",
                    f"{row['load_seconds']:.2f}",
                    "–" if cosine is None else f"{cosine:.4f}",
                ]
            )
    header = ["model", "batch x seq", "threads", "peer", "GMAC/s", "of the ceiling"]
    header += ["weights, GB/s", "of the bandwidth", "load s", "cosine to PyTorch"]
    return [
        *("", "## Fractions of the limits", "", *table(header, rows), ""),
        "GMAC/s counts the matrix products (linear layers, Q K^T, P V). The ceiling is that of "
        "the 8-bit dot product for INT8 peers and of FP32 multiply-add for the others. Weights: "
        "each is read once per run at least; the bandwidth is that of the nearest memory that "
        "holds them all. The cosine compares the mean-pooled output for one input of random "
        "tokens with PyTorch's: a check that the peer computes the model, not a measure of "
        "fidelity.",
    ]


def _memory_lines(result: dict[str, Any]) -> list[str]:
    rows = []
    for row in result["memory"]:
        if "stages" not in row:
            continue
        start, loaded, ran = (row["stages"][stage] for stage in ("start", "loaded", "ran"))
        figures = (
            *(ran["peak"], start["resident"], loaded["resident"], ran["resident"]),
            *(ran["anonymous"], ran["file_mapped"]),
        )
        rows.append([row["model"], row["cell"], row["peer"], *(f"{v:.0f}" for v in figures)])
    if not rows:
        return []
    header = ["model", "batch x seq", "peer", "peak", "at the start", "loaded", "after runs"]
    return [
        *("", "## Memory", "", *table([*header, "of that anonymous", "file-mapped"], rows), ""),
        "Resident MiB of a process that loads the model and runs it five times on one thread, "
        "and does nothing else. At the start it has Python and NumPy, the same for all. "
        "File-mapped pages (weights of this project, code of libraries) are shared between "
        "processes, and given back under pressure.",
    ]


def _profile_lines(result: dict[str, Any]) -> list[str]:
    """Where the time of this project goes."""
    lines: list[str] = []
    for row in result["profiles"]:
        if "by_role" not in row:
            continue
        parts = [
            [
                part["name"],
                part["kind"],
                str(part["calls"]),
                f"{part['milliseconds']:.3f}",
                f"{part['share']:.1%}",
                "–" if part["gmacs"] is None else f"{part['gmacs']:.0f}",
            ]
            for part in row["by_role"]
        ]
        header = ["place", "kernel", "calls", "ms", "share", "GMAC/s"]
        lines += ["", f"### {row['model']} {row['cell']}", "", *table(header, parts)]
    if not lines:
        return []
    return [
        *("", f"## Where the time of {BASELINE} goes", ""),
        "On one thread; all repeated layers together (`ibert bench --per-layer` shows more).",
        *lines,
    ]


def _markdown(result: dict[str, Any], chart: str | None) -> str:
    lines = ["# Latency on the CPU, beside other runtimes", "", *machine_lines(result)]
    settings = result["settings"]
    if result["rows"]:
        lines += _goal_lines(result)
        others = max(row.get("other_load_cores", 0.0) for row in result["rows"])
        if others > 0.2:
            busy = f"**Other processes kept up to {others:.1f} cores busy during this run.**"
            lines += ["", busy]
        lines += _wrong_lines(result)
        if chart:
            lines += ["", f"![Latency relative to {BASELINE}]({chart})"]
        lines += _ratio_lines(result)
        lines += [
            *("", "## Latency", ""),
            f"Milliseconds: median (minimum) over {settings['rounds']} rounds of at least "
            f"{settings['seconds']} s in which the peers take turns, each in its own process, "
            "stopped while it is not its turn. Only ratios within one run mean something.",
            *_latency_lines(result),
        ]
        lines += _efficiency_lines(result)
    lines += [*_profile_lines(result), *_memory_lines(result), *_limit_lines(result)]
    lines += ["", "## Peers", ""]
    lines += [f"- `{name}`: {title}" for name, title in result["peers"].items()]
    missing = [f"- `{name}`: {reason}" for name, reason in result["skipped"].items()]
    missing += [
        f"- `{row['peer']}` on {row['model']} {row['cell']}"
        + (f", {row['threads']} threads" if "threads" in row else "")
        + f": {row['failed']}"
        for row in [*result["rows"], *result["memory"], *result["profiles"]]
        if "failed" in row
    ]
    if missing:
        lines += ["", "Not measured:", "", *missing]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Merge results and write the report of them; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="JSON documents of benchmarks.cpu")
    parser.add_argument("-o", "--output", type=Path, required=True, help="path without suffix")
    options = parser.parse_args(arguments)
    try:
        paths = write_report(merge(options.results), options.output)
    except StoreError as error:
        parser.error(str(error))
    sys.stdout.write("".join(f"{path}\n" for path in paths))
    return 0


if __name__ == "__main__":
    sys.exit(main())
