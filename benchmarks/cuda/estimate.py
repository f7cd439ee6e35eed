"""Estimate the sixteen cells on a T4 from the machine code, without a GPU.

    python -m benchmarks.cuda.estimate --libraries DIR      # from --prepare DIR --target t4
    python -m benchmarks.cuda.estimate --library model.so   # any library for sm_75

A folder prepared with ``--models bert-base-short,bert-large-short`` serves as well, and takes a
sixth of the time: models of two layers, whose first stands for all but the last.

Every kernel's machine code is followed for the warps of a block: which instructions are executed,
and which memory is touched. A model of a multiprocessor then executes as many blocks as one has to
(`benchmarks.cuda.turing`, which says where its numbers are from and what it leaves out). A kernel
takes as long as that, or as its bytes take at the data sheet's bandwidth, whichever is longer. The
result is an estimate, labelled as one, and no measurement.
"""

from __future__ import annotations

import argparse
import logging
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_software
from benchmarks.models import Cell
from benchmarks.process import ROOT

from .cells import PAPER_MODELS, Task
from .errors import GpuBenchmarkError
from .measure import by_role
from .prepared import Prepared
from .sass import Instruction, parse_sass
from .turing import T4, Machine, occupancy, simulate
from .warp import Launch, Trace, follow_warp

__all__ = ["KernelEstimate", "estimate_kernel", "estimate_library", "main", "read_machine_code"]

LOG = logging.getLogger("benchmarks.cuda")
_CUDA_MACHINE = 190  # EM_CUDA
_MACS_PER_IMMA = 8 * 8 * 16
# Blocks that are simulated per multiprocessor, in multiples of what it holds; more are as many
# times as long.
_ROUNDS = 3
# Models with two layers that stand for whole ones.
_SHORT = "-short"
# What the paper measured on a T4, for context: I-BERT (Kim et al., ICML 2021), section 4.3.
_PAPER = "2.42x to 4.00x over FP32 (TensorRT, T4)"


@dataclass(frozen=True)
class KernelEstimate:
    """One launch of a device kernel.

    Attributes
    ----------
    microseconds : float
        Of the kernel, without its launch.
    bound : str
        What it waits for: the unit that is busiest, ``"memory"`` or ``"latency"`` (no unit is
        busy for more than 60% of the time).
    busy : dict of str to float
        Fraction of the time in which units of a busy multiprocessor are occupied.
    blocks, waves : float
        Of the grid; and blocks of the busiest multiprocessor over those that it holds at a time.
    resident : int
        Blocks that a multiprocessor holds at a time.
    limited_by : str
        What keeps it from holding more.
    executed : int
        Instructions that the warps of all blocks execute.
    matrix_instructions : int
        How many of them are IMMA.
    undecided : int
        Branches that depend on data; they were not taken.
    """

    microseconds: float
    bound: str
    busy: Mapping[str, float]
    blocks: int
    waves: float
    resident: int
    limited_by: str
    executed: int
    matrix_instructions: int
    undecided: int


def read_machine_code(library: Path) -> bytes:
    """The machine code for sm_75 in a library: the ELF file for NVIDIA GPUs that lies in it.

    Raises
    ------
    GpuBenchmarkError
        If there is not exactly one.
    """
    content = library.read_bytes()
    found = []
    start = content.find(b"\x7fELF", 1)
    while start >= 0:
        (machine,) = struct.unpack_from("<H", content, start + 18)
        programs, sections = struct.unpack_from("<QQ", content, start + 32)
        sizes = struct.unpack_from("<HHHH", content, start + 54)
        if machine == _CUDA_MACHINE:
            end = max(programs + sizes[0] * sizes[1], sections + sizes[2] * sizes[3])
            found.append(content[start : start + end])
        start = content.find(b"\x7fELF", start + 1)
    if len(found) != 1:
        raise GpuBenchmarkError(
            f"{library} cannot be estimated",
            where="its machine code",
            why=f"it has code for {len(found)} architectures",
            todo="compile it with --target t4",
        )
    return found[0]


def disassemble(cubin: bytes) -> dict[str, list[Instruction]]:
    """Kernels of a cubin by name."""
    from ibert_tvm.targets.cuda.toolchain import find_cuda_toolchain

    nvdisasm = find_cuda_toolchain("benchmarks.cuda").nvdisasm
    with tempfile.TemporaryDirectory(prefix="estimate.") as folder:
        path = Path(folder) / "kernels.cubin"
        path.write_bytes(cubin)
        done = subprocess.run(
            [nvdisasm, "-c", "-hex", str(path)], capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        raise GpuBenchmarkError(
            "the machine code cannot be disassembled",
            where=nvdisasm,
            why=done.stderr.strip()[-400:],
            todo="see `ibert doctor`",
        )
    return parse_sass(done.stdout)


def estimate_kernel(
    code: list[Instruction],
    launch: Launch,
    registers: int,
    shared_bytes: int,
    machine: Machine = T4,
) -> KernelEstimate:
    """Estimate one launch.

    Parameters
    ----------
    code : list of Instruction
        The kernel.
    launch : Launch
        Sizes of grid and block.
    registers : int
        Of a thread.
    shared_bytes : int
        Of a block.
    machine : Machine
        The GPU.
    """
    x, y, z = launch.threads
    warps = -(-x * y * z // 32)
    first = _block(code, launch, warps, (0, 0, 0))
    last = tuple(extent - 1 for extent in launch.blocks)
    count = launch.blocks[0] * launch.blocks[1] * launch.blocks[2]
    cached: frozenset[int] = frozenset()
    if count > 1:
        same = _sectors(first) & _sectors(_block(code, launch, 1, last))  # type: ignore[arg-type]
        if len(same) * 32 <= machine.l1_bytes:
            cached = frozenset(same)
    held = occupancy(machine, warps, registers, shared_bytes)
    own = -(-count // machine.multiprocessors)  # of the multiprocessor that has most
    simulated = min(own, _ROUNDS * held.blocks)
    done = simulate(code, first, simulated, held.blocks, machine, cached)
    matrix = sum(code[s.index].operation == "IMMA" for trace in first for s in trace.executed)
    busiest = max(done.busy, key=lambda unit: done.busy[unit])
    return KernelEstimate(
        microseconds=done.cycles * own / simulated / machine.clock_ghz * 1e-3,
        bound=busiest if done.busy[busiest] > 0.6 else "latency",
        busy=done.busy,
        blocks=count,
        waves=round(own / held.blocks, 2),
        resident=held.blocks,
        limited_by=held.limit,
        executed=count * sum(len(trace.executed) for trace in first),
        matrix_instructions=count * matrix,
        undecided=len(set().union(*(trace.undecided for trace in first))),
    )


def _block(
    code: list[Instruction], launch: Launch, warps: int, block: tuple[int, int, int]
) -> list[Trace]:
    return [
        follow_warp(code, Launch(launch.blocks, launch.threads, block, warp))
        for warp in range(warps)
    ]


def _sectors(traces: Sequence[Trace]) -> set[int]:
    return {sector for trace in traces for step in trace.executed for sector in step.sectors}


def estimate_library(path: Path, machine: Machine = T4) -> dict[str, list[dict[str, Any]]]:
    """Estimate every kernel call of a library for sm_75.

    Parameters
    ----------
    path : Path
        What ``ibert compile --target t4`` wrote.
    machine : Machine
        The GPU.

    Returns
    -------
    dict of str to list of dict
        By cell (``"1x128"``), every kernel call in order: ``name``, ``kind``, ``layer``, ``macs``,
        ``bytes``, ``median_ms`` and ``min_ms`` (both the estimate without its launch),
        ``launches`` of device kernels, and ``device``, one `KernelEstimate` of each.
    """
    from ibert_tvm.runtime.library_file import read_metadata

    metadata = read_metadata(path)
    codes = disassemble(read_machine_code(path))
    audits: dict[str, list[Mapping[str, Any]]] = {}
    for audit in metadata.device_code["kernels"]:
        audits.setdefault(str(audit["kernel"]), []).append(audit)
    launches = metadata.device_code["launches"]
    known: dict[str, list[KernelEstimate]] = {}
    found = {}
    for function in metadata.functions:
        rows = []
        for record in function.kernels:
            if record.name not in known:
                known[record.name] = [
                    estimate_kernel(
                        codes[audit["name"]],
                        Launch(tuple(sizes["blocks"]), tuple(sizes["threads"])),
                        int(audit["registers"]),
                        int(audit["shared_bytes"]) + int(sizes["dynamic_shared_bytes"]),
                        machine,
                    )
                    for audit in audits[record.name]
                    for sizes in [launches[audit["name"]]]
                ]
            parts = known[record.name]
            milliseconds = sum(part.microseconds for part in parts) * 1e-3
            # Tables that are looked up count whole in the bytes, and are not read whole.
            if not record.layer.startswith("embeddings"):
                milliseconds = max(milliseconds, record.num_bytes / machine.memory_gbs * 1e-6)
            rows.append(
                {
                    **{"name": record.name, "kind": record.kind, "layer": record.layer},
                    **{"macs": record.macs, "bytes": record.num_bytes, "launches": len(parts)},
                    **{"median_ms": milliseconds, "min_ms": milliseconds},
                    "device": [asdict(part) for part in parts],
                }
            )
        found[f"{function.batch}x{function.seq_len}"] = rows
        LOG.info("%s %dx%d", path, function.batch, function.seq_len)
    return found


def with_all_layers(calls: Sequence[dict[str, Any]], layers: int) -> list[dict[str, Any]]:
    """The kernel calls of a whole model, from those of one with two layers of the same sizes.

    The first layer stands for all but the last, which is the second.

    Parameters
    ----------
    calls : sequence of dict
        As of `estimate_library`.
    layers : int
        Of the whole model.
    """

    def number(call: Mapping[str, Any]) -> int:
        found = re.search(r"\.layer\.(\d+)\.", call["layer"])
        return int(found[1]) if found else -1

    numbers = [number(call) for call in calls]
    first, last = numbers.index(0), numbers.index(1)
    repeated = [
        {**call, "layer": call["layer"].replace(".layer.0.", f".layer.{layer}.")}
        for layer in range(layers - 1)
        for call in calls[first:last]
    ]
    rest = [
        {**call, "layer": call["layer"].replace(".layer.1.", f".layer.{layers - 1}.")}
        for call in calls[last:]
    ]
    return [*calls[:first], *repeated, *rest]


def cell_row(task: Task, calls: list[dict[str, Any]], machine: Machine = T4) -> dict[str, Any]:
    """What is reported of a cell.

    Returns
    -------
    dict
        ``estimated_ms`` of a call, ``kernels_ms``, ``launches``, ``tops``, ``bound_ms`` (the
        matrix products alone at the data sheet's rate), ``kernels`` as `by_role` gives them, each
        with ``bound``, ``busy``, ``waves``, ``resident`` and ``limited_by`` of its largest device
        kernel.
    """
    kernels = sum(call["median_ms"] for call in calls)
    launches = sum(call["launches"] for call in calls)
    whole = kernels + 1e-3 * (launches * machine.launch_us + machine.call_us)
    rows = by_role(calls)
    for row in rows:
        first = next(c for c in calls if c["kind"] == row["kind"] and _in_role(c, row["role"]))
        largest = max(first["device"], key=lambda part: part["microseconds"])
        names = ("bound", "busy", "blocks", "waves", "resident", "limited_by", "undecided")
        row |= {name: largest[name] for name in names}
        from_memory = row["bytes"] / machine.memory_gbs * 1e-6
        if row["median_ms"] <= 1.001 * from_memory:
            row["bound"] = "memory"
        del row["min_ms"]
    return {
        **{"model": task.model, "cell": str(task.cell), "estimated_ms": round(whole, 4)},
        **{"kernels_ms": round(kernels, 4), "launches": launches},
        "tops": round(2 * task.macs / whole * 1e-9, 1),
        "bound_ms": round(2 * task.macs / machine.tops * 1e-9, 4),
        "kernels": rows,
    }


def _in_role(call: Mapping[str, Any], wanted: str) -> bool:
    from benchmarks.arm.report import role

    return (role(call["layer"]) or call["name"]) == wanted


def check_products(calls: Sequence[Mapping[str, Any]]) -> list[str]:
    """Kernels that execute fewer matrix instructions than their products need, with the numbers.

    They would show that a warp was not followed rightly.
    """
    wrong = []
    for call in calls:
        executed = sum(part["matrix_instructions"] for part in call["device"])
        needed = -(-call["macs"] // _MACS_PER_IMMA)
        if executed < needed:
            wrong.append(f"{call['name']}: {executed} of {needed} matrix instructions")
    return wrong


def main(arguments: list[str] | None = None) -> int:
    """Estimate, write the report; 1 if a kernel was not followed rightly, 2 without libraries."""
    from .estimate_report import write_estimate

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cuda.estimate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--libraries", type=Path, metavar="DIR", help="a prepared folder")
    what.add_argument("--library", type=Path, help="one library for sm_75, to look at")
    parser.add_argument("--models", default=",".join(PAPER_MODELS), help="(default: %(default)s)")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "cuda-estimate-t4",
        help="path of the result without suffix; .json and .md are written",
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    result: dict[str, Any] = {
        **{"schema": 1, "kind": "estimate", "machine": asdict(T4), "context": _PAPER},
        **{"software": describe_software(), "rows": [], "wrong": []},
    }
    try:
        if options.library is not None:
            _show(estimate_library(options.library))
            return 0
        prepared = Prepared(options.libraries)
        result["prepared"] = {
            key: prepared.manifest()[key] for key in ("target", "architectures", "software")
        }
        for model in filter(None, options.models.split(",")):
            library, short = prepared.int8(model), prepared.int8(f"{model}{_SHORT}")
            from_two = not library.exists() and short.exists()
            for cell, calls in estimate_library(short if from_two else library).items():
                task = Task(model, Cell.parse(cell))
                whole = with_all_layers(calls, task.spec.layers) if from_two else calls
                result["rows"].append({**cell_row(task, whole), "from_two_layers": from_two})
                result["wrong"] += [f"{model} {cell}: {text}" for text in check_products(calls)]
    except (GpuBenchmarkError, OSError) as error:
        LOG.error("error: %s", error)
        return 2
    for text in result["wrong"]:
        LOG.error("not followed rightly: %s", text)
    for path in write_estimate(result, options.output):
        sys.stdout.write(f"{path}\n")
    return int(bool(result["wrong"]))


def _show(cells: Mapping[str, list[dict[str, Any]]]) -> None:
    """One line per kernel of each cell, the first call of each name."""
    for cell, calls in cells.items():
        seen = set()
        total = sum(call["median_ms"] for call in calls)
        sys.stdout.write(f"{cell}: kernels {total:.3f} ms\n")
        for call in calls:
            if call["name"] in seen:
                continue
            seen.add(call["name"])
            for part in call["device"]:
                busy = " ".join(f"{k} {v:.0%}" for k, v in part["busy"].items() if v >= 0.05)
                sys.stdout.write(
                    f"  {call['layer'] or call['name']:56s} {part['microseconds']:7.1f} us "
                    f"{part['blocks']:5d} blocks, {part['resident']} at a time "
                    f"({part['limited_by']}), {part['waves']} waves; {busy}\n"
                )
        for text in check_products(calls):
            sys.stdout.write(f"  not followed rightly: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
