"""The estimate for a T4 as Markdown, beside its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import table
from benchmarks.store import save

__all__ = ["write_estimate"]

_SHOWN = ("1x128", "8x128", "8x256")


def write_estimate(result: dict[str, Any], output: Path) -> list[Path]:
    """Write ``output.json`` and ``output.md``; returns the files written."""
    document, text = (output.with_name(output.name + suffix) for suffix in (".json", ".md"))
    save(result, document)
    text.write_text(_markdown(result), encoding="utf-8")
    return [document, text]


def _markdown(result: Mapping[str, Any]) -> str:
    machine, software = result["machine"], result["software"]
    made = result.get("prepared", {}).get("software", software)
    modified = " (with local changes)" if made["modified"] else ""
    lines = [
        f"# Estimate for an {machine['name']}: no measurement",
        "",
        "**No GPU was used.** These times follow from the machine code for sm_75 and from "
        "published numbers of the card, by a model of one multiprocessor that no measurement has "
        "confirmed. On a machine with a GPU, `python -m benchmarks.cuda` measures.",
        "",
        f"- Machine code of commit {made['commit']}{modified}; estimated {software['time']}",
        f"- The card: {machine['multiprocessors']} multiprocessors at {machine['clock_ghz']} GHz, "
        f"{machine['tops']:g} INT8 TOPS, {machine['memory_gbs']:g} GB/s; {machine['l2_bytes']:g} "
        "bytes per cycle and multiprocessor from the second-level cache",
        f"- Assumed: {machine['launch_us']:g} us from one kernel of a graph to the next, "
        f"{machine['call_us']:g} us once a call; the boost clock throughout, which a card of 70 W "
        "may not keep",
        f"- For context only: the paper measured {result['context']} on the same card",
        *("", "## Calls", ""),
        *table(
            ["model", "batch x seq", "ms", "kernels ms", "launches", "TOPS", "of the data sheet"],
            [
                [
                    *(row["model"], row["cell"], f"{row['estimated_ms']:.3g}"),
                    *(f"{row['kernels_ms']:.3g}", str(row["launches"]), f"{row['tops']:.1f}"),
                    f"{row['tops'] / machine['tops']:.0%}",
                ]
                for row in result["rows"]
            ],
        ),
        "",
        "TOPS: operations of all matrix products over the time of the call.",
    ]
    for row in result["rows"]:
        if row["cell"] in _SHOWN:
            lines += _kernel_lines(row, machine)
    lines += [
        *("", "## How it is made", ""),
        *_two_layers(result),
        "`benchmarks/cuda/warp.py` follows every warp of a block through the machine code, with "
        "known values in registers where they follow from constants and the numbers of thread and "
        "block: what is executed, conflicts of shared memory's banks and sectors of device memory "
        "are exact for that block. The number of executed matrix instructions is checked against "
        "the products of the layer. `benchmarks/cuda/turing.py` has the model of a "
        "multiprocessor, its sources, and what it leaves out. A kernel takes at least as long as "
        "its arguments and results, each once, take at the data sheet's bandwidth.",
    ]
    if result["wrong"]:
        lines += ["", "**Not followed rightly:**", "", *(f"- {text}" for text in result["wrong"])]
    return "\n".join(lines) + "\n"


def _two_layers(result: Mapping[str, Any]) -> list[str]:
    if not any(row.get("from_two_layers") for row in result["rows"]):
        return []
    return [
        "Compiled were models of two layers of the same sizes. The first stands for all but the "
        "last: in a whole model these differ in constants only.",
        "",
    ]


def _kernel_lines(row: Mapping[str, Any], machine: Mapping[str, Any]) -> list[str]:
    rows = []
    total = sum(kernel["median_ms"] for kernel in row["kernels"])
    for kernel in row["kernels"]:
        milliseconds = max(kernel["median_ms"], 1e-9)
        tops = 2 * kernel["macs"] / milliseconds * 1e-9
        busy = sorted(kernel["busy"].items(), key=lambda item: -item[1])[:3]
        rows.append(
            [
                *(kernel["role"], str(kernel["calls"]), f"{1e3 * milliseconds:.1f}"),
                f"{milliseconds / total:.1%}",
                f"{tops / machine['tops']:.0%}" if kernel["macs"] else "–",
                f"{kernel['blocks']} ({kernel['resident']} at a time, {kernel['limited_by']})",
                f"{kernel['waves']:g}",
                kernel["bound"],
                ", ".join(f"{name} {value:.0%}" for name, value in busy),
            ]
        )
    header = ["place", "calls", "us", "share", "of 130 TOPS", "blocks", "waves", "waits for"]
    return [
        *("", f"## {row['model']} {row['cell']}: where the time would go", ""),
        *table([*header, "busy units"], rows),
    ]
