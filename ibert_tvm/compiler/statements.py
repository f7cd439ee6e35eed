"""What a compilation did and what its checks found, in sentences for people."""

from __future__ import annotations

from collections.abc import Sequence

from ..common.strict_json import JsonObject


def target_words(target: JsonObject, features: Sequence[str]) -> str:
    """What a library runs on: ``host`` is whatever machine it was compiled on."""
    name = str(target.get("name", ""))
    if name != "host" or not features:
        return name
    machine = str(target.get("mtriple", "")).partition("-")[0].replace("x86_64", "x86-64")
    return f"{machine} with {features[-1]}".strip() + " (host)"


def quantization_lines(summary: JsonObject) -> list[str]:
    """Say how a float model was quantised on the way; nothing of one that was quantised."""
    if not summary:
        return []
    facts = summary["quantized"]
    what = (
        f"the {facts['calibration_texts']} texts that come with this package"
        if facts["calibration_texts"]
        else "the scales that it came with"
    )
    return [
        f"quantised on the way with {what}: preset {facts['preset']}, head {facts['head']}, in "
        f"{facts['seconds']:.1f} s; `ibert quantize` takes texts like yours",
        *(f"note: {note}" for note in facts["notes"]),
    ]


def memory_statement(report: JsonObject) -> str:
    """Say what memory a program without runtime needs."""
    arenas = ", ".join(f"{nbytes} for {name}" for name, nbytes in report["arena_bytes"].items())
    return (
        f"no runtime: {report['kernels']} kernels of {report['kernel_code_bytes']} bytes, "
        f"weights {report['weight_bytes']} bytes, arena in bytes: {arenas}"
    )


def tokenizer_statement(report: JsonObject) -> str:
    """Say what a tokenizer in C takes, and what it was compared on."""
    compared = (
        f"equal to the package tokenizers on {report['probes']} probes"
        if report["probes"]
        else "not compared: there is no C compiler for this machine"
    )
    return f"tokenizer: {report['table_bytes']} bytes of tables; {compared}"


def integer_only_statement(report: JsonObject) -> str:
    """Say what the integer-only check of a compilation looked at and found."""
    summary = report.get("integer_only")
    if isinstance(summary, dict):
        facts = ", ".join(f"{value} {key.replace('_', ' ')}" for key, value in summary.items())
        return f"integer only, checked: {facts}"
    return f"integer only: {summary}"


def tuning_statement(tuning: JsonObject) -> str:
    """Say which kernels a tuning database knew.

    Parameters
    ----------
    tuning : mapping
        As `ibert_tvm.tuning.TunedKernels.report` gives it.
    """
    text = f"tuned: {tuning['hits']} kernels as measured in {tuning['database']}"
    if tuning["misses"]:
        text += f"; {tuning['misses']} not measured, scheduled by default (--json lists them)"
    return text


def device_statements(cuda: JsonObject) -> list[str]:
    """Say what device code a library has and what its audit found.

    Parameters
    ----------
    cuda : mapping
        As `ibert_tvm.targets.build.GpuBuild.report` gives it; empty for a processor.

    Returns
    -------
    list of str
        One per architecture, then what holds for all.
    """
    lines = []
    for architecture in cuda.get("architectures", ()):
        kernels = [k for k in cuda["kernels"] if k["architecture"] == architecture]
        if not kernels:
            lines.append(f"device code: {architecture}, not audited")
            continue
        matrix = [k for k in kernels if k["matrix"]]
        spilling = sum(1 for k in kernels if k["local"])
        spills = f"{spilling} of them use local memory" if spilling else "none uses local memory"
        lines.append(
            f"device code: {architecture}, {cuda['code_bytes'][architecture] / 1e3:.0f} kB, "
            f"{len(kernels)} kernels, no floating-point instruction; "
            f"{len(matrix)} use tensor cores; {spills}"
        )
    if cuda.get("ptx"):
        newest = cuda["architectures"][-1].replace("sm_", "compute_")
        lines.append(
            f"portable code: {newest}, which the driver of a newer GPU compiles; "
            "what it makes of it is not audited"
        )
    if "storage_bytes" in cuda:
        lines.append(
            "one CUDA graph per run, "
            f"{cuda['storage_bytes'] / 1e3:.0f} kB of device memory for values between kernels"
        )
    return lines
