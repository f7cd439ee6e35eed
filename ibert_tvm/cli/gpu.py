"""What commands say about libraries for GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .tables import Table

if TYPE_CHECKING:
    from ibert_tvm.targets import TargetDescription


def check_gpu_toolchain(description: TargetDescription) -> None:
    """Refuse a target with a GPU for which nothing here compiles; nothing for other targets.

    Parameters
    ----------
    description : TargetDescription
        The target.

    Raises
    ------
    ibert_tvm.targets.TargetError
        If a program is missing, or does not know the architecture.
    """
    if description.gpu is None:
        return
    from ibert_tvm.targets.cuda.toolchain import check_architectures, find_cuda_toolchain

    toolchain = find_cuda_toolchain(description.name)
    check_architectures(toolchain, description.gpu.architectures, description.name)


def device_statements(cuda: Mapping[str, Any]) -> list[str]:
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
            f"device code: {architecture}, {cuda['code_bytes'][architecture] / 1e3:.0f} KB, "
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
            f"{cuda['storage_bytes'] / 1e3:.0f} KB of device memory for values between kernels"
        )
    return lines


def kernel_table(cuda: Mapping[str, Any]) -> Table:
    """Make a table of device kernels; numbers of several architectures stand side by side.

    Parameters
    ----------
    cuda : mapping
        As for `device_statements`.

    Returns
    -------
    Table
    """
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for kernel in cuda["kernels"]:
        rows.setdefault(kernel["name"], []).append(kernel)
    headers = (
        *("kind", "layer", "blocks", "threads", "shared bytes", "registers", "instructions"),
        *("tensor core", "local memory"),
    )
    return Table(headers, [_row(name, kernels, cuda) for name, kernels in rows.items()])


def _row(
    name: str, kernels: Sequence[Mapping[str, Any]], cuda: Mapping[str, Any]
) -> tuple[str, ...]:
    launch = cuda.get("launches", {}).get(name)
    dynamic = launch["dynamic_shared_bytes"] if launch else 0
    return (
        kernels[0]["kind"] or name,
        kernels[0]["layer"],
        _extents(launch["blocks"]) if launch else "",
        _extents(launch["threads"]) if launch else "",
        _side_by_side(kernel["shared_bytes"] + dynamic for kernel in kernels),
        *(
            _side_by_side(kernel[key] for kernel in kernels)
            for key in ("registers", "instructions", "matrix", "local")
        ),
    )


def _extents(sizes: Sequence[int]) -> str:
    """Sizes along x, y and z, without what is 1 at the end."""
    used = list(sizes)
    while len(used) > 1 and used[-1] == 1:
        used.pop()
    return " x ".join(map(str, used))


def _side_by_side(values: Any) -> str:
    """Values of the architectures; one where all are equal."""
    texts = [str(value) for value in values]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)
