"""The instruction counts as Markdown, beside their JSON."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchmarks.report import table
from benchmarks.store import save_with_text

__all__ = ["goals", "write_report"]

# Smaller shares are shown together.
_LEAST_SHARE = 0.001
_HONESTY = (
    "Counted are **executed instructions** under QEMU, with the project's own plugin: exact and "
    "repeatable, but instructions, not cycles. QEMU's time says nothing about a board, and an "
    "instruction of one processor may take several cycles of another. A conditional instruction "
    "whose condition is false counts."
)


def write_report(result: dict[str, Any], output: Path) -> list[Path]:
    """Write ``output.json`` and ``output.md``.

    Parameters
    ----------
    result
        What ``benchmarks.arm`` collects.
    output
        Path without suffix.

    Returns
    -------
    list of Path
        The files written.
    """
    return save_with_text(result, _markdown(result), output)


def goals(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Every goal with what was reached.

    Returns
    -------
    list of dict
        ``{"kernel", "target", "instructions", "bar", "source", "limit", "ratio", "met"}``; limit
        and ratio are fractions of the bar.
    """
    rows = []
    for row in result["kernels"]:
        bar = row.get("bar")
        if "instructions" in row and bar is not None and bar["goal"] is not None:
            reached = row["instructions"] / bar["instructions"]
            rows.append(
                {
                    "kernel": row["kernel"],
                    "target": row["target"],
                    "instructions": row["instructions"],
                    "bar": bar["instructions"],
                    "source": bar["source"],
                    "limit": bar["goal"],
                    "ratio": reached,
                    "met": reached <= bar["goal"],
                }
            )
    return rows


def millions(number: int) -> str:
    """``1.234M``: four digits."""
    text = f"{number / 1e6:.4g}" if number >= 1e6 else f"{number / 1e6:.3f}"
    return f"{text}M"


def _goal_lines(result: dict[str, Any]) -> list[str]:
    rows = [
        [
            row["kernel"],
            row["target"],
            millions(row["instructions"]),
            f"{row['limit']:g} x {millions(row['bar'])} ({row['source']})",
            f"{row['ratio']:.2f}",
            "met" if row["met"] else "**missed**",
        ]
        for row in goals(result)
    ]
    if not rows:
        return []
    header = ["kernel", "target", "executed", "at most", "ratio", ""]
    return ["", "## Goals", "", *table(header, rows)]


def _kernel_lines(result: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    names = list(dict.fromkeys(row["kernel"] for row in result["kernels"]))
    for name in names:
        rows, notes = [], set()
        for row in result["kernels"]:
            if row["kernel"] != name:
                continue
            notes.add(row["note"])
            if "failed" in row:
                rows.append([row["target"], "–", "–", "–", "–", "–", "see below"])
                continue
            bar = row.get("bar")
            per_mac = row["instructions"] / row["macs"] if row["macs"] else None
            rows.append(
                [
                    row["target"],
                    millions(row["instructions"]),
                    f"{row['instructions'] / row['entries']:.1f}",
                    "–" if per_mac is None else f"{per_mac:.3f}",
                    "–" if bar is None else f"{bar['source']}: {millions(bar['instructions'])}",
                    "–" if bar is None else f"{row['instructions'] / bar['instructions']:.2f}",
                    str(row["floating_point"]),
                ]
            )
        header = ["target", "executed", "per entry", "per MAC", "others", "ratio", "FP"]
        lines += ["", f"### {name}", "", *table(header, rows)]
        lines += ["", *(note[:1].upper() + note[1:] + "." for note in notes if note)]
    return ["", "## Kernels", "", _KERNELS, *lines] if lines else []


_KERNELS = (
    "From a kernel's first instruction to its return, what it calls included; every result was "
    "compared with the integer specification and is equal to it. FP: executed floating-point "
    "instructions, and all in functions of a floating-point library."
)


def role(layer: str) -> str:
    """Name of a layer without its number: equal layers of an encoder have the same."""
    return re.sub(r"\.\d+\.", ".*.", layer)


def _model_lines(result: dict[str, Any]) -> list[str]:
    rows, details = [], []
    for row in result["models"]:
        title = [row["model"], row["shape"], row["target"]]
        if "failed" in row:
            rows.append([*title, "–", "–", "–", "see below"])
            continue
        rows.append(
            [
                *title,
                millions(row["instructions"]),
                f"{row['instructions'] / row['macs']:.3f}",
                str(row["floating_point"]),
                "bit-exact",
            ]
        )
        details += ["", f"### {row['model']} {row['shape']} on {row['target']}", ""]
        details += table(
            ["layers", "kernel", "calls", "executed", "share", "per MAC"], _by_role(row)
        )
    if not rows:
        return []
    header = ["model", "batch x tokens", "target", "executed", "per MAC", "FP", "result"]
    return [
        *("", "## Whole models", ""),
        "From the entry of the C interface's function to its return. The outputs were compared "
        "with the specification.",
        *("", *table(header, rows)),
        *("", "## Where the instructions go", ""),
        "All repeated layers together; the JSON document has every call.",
        *details,
    ]


def _by_role(row: dict[str, Any]) -> list[list[str]]:
    grouped: dict[tuple[str, str], list[int]] = {}
    for call in row["calls"]:
        entry = grouped.setdefault((role(call["layer"]), call["kind"]), [0, 0, 0])
        entry[0] += 1
        entry[1] += call["instructions"]
        entry[2] += call["macs"]
    whole = row["instructions"]
    shown = {key: entry for key, entry in grouped.items() if entry[1] >= _LEAST_SHARE * whole}
    rows = [
        [
            name,
            kind,
            str(calls),
            millions(executed),
            f"{executed / whole:.1%}",
            f"{executed / macs:.3f}" if macs else "–",
        ]
        for (name, kind), (calls, executed, macs) in shown.items()
    ]
    rest = whole - sum(entry[1] for entry in shown.values())
    return [*rows, ["(others, driver)", "", "", millions(rest), f"{rest / whole:.1%}", "–"]]


def _failure_lines(result: dict[str, Any]) -> list[str]:
    lines = []
    for row in [*result["kernels"], *result["models"]]:
        if "failed" in row:
            what = row.get("kernel") or f"{row['model']} {row['shape']}"
            lines.append(f"- {what} on {row['target']}: {row['failed']}")
    return ["", "## Not counted", "", *lines] if lines else []


def _markdown(result: dict[str, Any]) -> str:
    machine, software = result["machine"], result["software"]
    modified = " (with local changes)" if software["modified"] else ""
    tools = ", ".join(f"{name}: {version}" for name, version in result["tools"].items())
    versions = ", ".join(
        f"{name} {version}"
        for name, version in software["packages"].items()
        if version and name in ("apache-tvm", "apache-tvm-ffi", "numpy")
    )
    lines = [
        "# Executed instructions on ARM",
        *("", _HONESTY, ""),
        f"- Emulated on {machine['processor']}; {tools}",
        f"- Software: Python {software['python']}, {versions}",
        f"- Commit: {software['commit']}{modified}; {software['time']}",
        *_goal_lines(result),
        *_kernel_lines(result),
        *_model_lines(result),
        *_failure_lines(result),
    ]
    return "\n".join(lines) + "\n"
