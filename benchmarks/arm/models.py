"""Whole models on ARM targets: compiled without runtime, run under QEMU, compared, counted."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.models import MODELS, Cell, ModelSpec, model_folder
from benchmarks.peers.ibert import IbertPeer
from ibert_tvm.targets import TargetDescription
from ibert_tvm.targets.aot.interface import TensorSpec, item_size
from ibert_tvm.targets.aot.weights import weights_assembly
from ibert_tvm.targets.emulation import emulator_command
from ibert_tvm.targets.linking import PARALLEL
from ibert_tvm.targets.toolchain import find_linker
from ibert_tvm.targets.weights import write_weights
from tests.arm import packages

from .counting import Counting, Counts
from .errors import CountingError

if TYPE_CHECKING:
    from ibert_tvm.compiler import CompiledModel
    from ibert_tvm.model.artefact import QuantizedModel

__all__ = ["SPECS", "count_model", "quantise"]

SPECS = {
    spec.name: spec
    for spec in (
        MODELS["minilm"],
        ModelSpec("bert-tiny", 2, 128, 2, 512, ("1x32", "1x128")),
    )
}
_MAIN = Path(__file__).with_name("model_main.c")
_FLAGS = ("-O2", "-std=gnu99", "-static", "-no-pie", "-Wl,--gc-sections", "-Wl,-z,noexecstack")
_ENTRY = "ibert_run"
_SECONDS = 3600


def count_model(
    name: str, quantised_path: Path, cell: Cell, target: TargetDescription
) -> dict[str, Any]:
    """Compile a model for one shape, run it once, compare its outputs, and count.

    Parameters
    ----------
    name
        Of the model, for messages.
    quantised_path
        ``NAME.ibert``.
    cell
        Shape; all tokens are real ones.
    target
        An ARM target.

    Returns
    -------
    dict
        ``instructions``, ``floating_point``, ``unknown``, ``macs``, and ``calls``: per kernel call,
        in order, its ``layer``, ``kind``, ``kernel``, ``macs`` and ``instructions``.

    Raises
    ------
    CountingError
        If an output differs from the specification, or the program cannot be counted.
    """
    import ibert_tvm

    quantised = _load(quantised_path)
    shape = (cell.batch, cell.seq_len)
    compiled = ibert_tvm.compile(quantised, target=target.name, shapes=[shape], runtime="none")
    inputs = _inputs(quantised, cell, compiled)
    with tempfile.TemporaryDirectory(prefix="counting.") as folder:
        run = _on_board if target.system == "bare-metal" else _on_linux
        outputs, counts = run(compiled, inputs, Path(folder), target)
    for index, (output, expected) in enumerate(
        zip(outputs, packages.reference(quantised, inputs), strict=True)
    ):
        wrong = int(np.count_nonzero(output.reshape(expected.shape) != expected))
        if wrong:
            raise CountingError(
                what=f"{name} is wrong on {target.name}",
                where=f"output {index}",
                why=f"{wrong} of {expected.size} entries differ from the specification",
                todo="see the tests of whole models",
            )
    return _document(compiled, counts)


def _document(compiled: CompiledModel, counts: Counts) -> dict[str, Any]:
    assert compiled.bare is not None
    kernels = {kernel.symbol: kernel for kernel in compiled.bare.kernels}
    (function,) = compiled.bare.functions
    executed = [call for call in counts.calls if call.function != _ENTRY]
    planned = [call.symbol for call in function.calls]
    if [call.function for call in executed] != planned:
        raise CountingError(
            what="other kernels ran than were planned",
            where=function.symbol,
            why=f"{len(executed)} calls were counted, the program has {len(planned)}",
            todo="report this model",
        )
    rows = []
    for call, plan in zip(executed, function.calls, strict=True):
        kernel = kernels[plan.symbol]
        rows.append(
            {
                "layer": plan.layer,
                "kind": kernel.kind,
                "kernel": plan.symbol,
                "macs": kernel.macs,
                "instructions": call.instructions,
            }
        )
    return {
        "instructions": counts.instructions,
        "floating_point": counts.floating_point,
        "unknown": counts.unknown,
        "macs": sum(row["macs"] for row in rows),
        "calls": rows,
    }


def quantise(spec: ModelSpec, cache_folder: Path) -> Path:
    """Quantise a model, unless that was done before.

    Parameters
    ----------
    spec
        One of `SPECS`.
    cache_folder
        Where sources and quantised models are kept.

    Returns
    -------
    pathlib.Path
        ``NAME.ibert``.
    """
    peer = IbertPeer()
    peer.prepare(spec, model_folder(spec, cache_folder), cache_folder)
    return peer.quantised(spec, cache_folder)


@cache
def _load(path: Path) -> QuantizedModel:
    from ibert_tvm.model.artefact import QuantizedModel

    return QuantizedModel.load(path)


def _inputs(
    quantised: QuantizedModel, cell: Cell, compiled: CompiledModel
) -> dict[str, np.ndarray]:
    """Random ids of the model's vocabulary; every token is a real one."""
    assert compiled.bare is not None
    highest = {spec.name: spec.high for spec in compiled.bare.interface.inputs}
    kinds = {var.name: str(var.ty.dtype) for var in quantised.module["main"].params}
    values = cell.inputs()
    if (last := highest.get("input_ids")) is not None:
        values["input_ids"] = values["input_ids"] % (last + 1)
    values["token_type_ids"] = np.zeros_like(values["input_ids"])
    return {name: values[name].astype(kinds[name]) for name in quantised.input_names}


def _watched(compiled: CompiledModel) -> list[str]:
    assert compiled.bare is not None
    return [kernel.symbol for kernel in compiled.bare.kernels]


def _on_board(
    compiled: CompiledModel,
    inputs: Mapping[str, np.ndarray],
    folder: Path,
    target: TargetDescription,
) -> tuple[list[np.ndarray], Counts]:
    package = compiled.export(folder / "package")
    elf = packages.link_package(package, folder)
    with Counting(elf, target, _watched(compiled), within=_ENTRY) as counting:
        run = packages.run_package(
            package, elf, inputs, folder, timeout=_SECONDS, plugin=counting.argument
        )
        return run.outputs, counting.counts()


def _on_linux(
    compiled: CompiledModel,
    inputs: Mapping[str, np.ndarray],
    folder: Path,
    target: TargetDescription,
) -> tuple[list[np.ndarray], Counts]:
    assert compiled.bare is not None
    program = _link(compiled, folder, target)
    with Counting(program, target, _watched(compiled), within=_ENTRY) as counting:
        emulator, *options = emulator_command(target)
        command = [emulator, "-plugin", counting.argument, *options, str(program)]
        specs = compiled.bare.interface.inputs
        data = b"".join(inputs[spec.name].astype(spec.dtype).tobytes() for spec in specs)
        done = subprocess.run(
            command, input=data, capture_output=True, check=False, timeout=_SECONDS
        )
        if done.returncode != 0:
            raise CountingError(
                what=f"the model failed on {target.name}",
                where=" ".join(command),
                why=done.stderr.decode(errors="replace").strip()[-1000:]
                or f"exit status {done.returncode}",
                todo="see the tests of whole models",
            )
        counts = counting.counts()
    (function,) = compiled.bare.functions
    outputs, offset = [], 0
    for spec in compiled.bare.interface.outputs:
        size = spec.elements(function.batch, function.seq_len)
        outputs.append(np.frombuffer(done.stdout, spec.dtype, size, offset))
        offset += outputs[-1].nbytes
    return outputs, counts


def _link(compiled: CompiledModel, folder: Path, target: TargetDescription) -> Path:
    """Link the model's objects and `model_main.c` at fixed addresses."""
    bare = compiled.bare
    assert bare is not None
    write_weights(bare.weights, bare.parameters, bare.weight_bytes, folder)
    (folder / "weights.s").write_text(weights_assembly(bare, separate=False), encoding="utf-8")
    (folder / "ibert_model.h").write_text(bare.header, encoding="utf-8")
    (folder / "driver.c").write_text(bare.driver_c, encoding="utf-8")
    objects = []
    for index, data in enumerate((*bare.objects.values(), *bare.support.values())):
        objects.append(f"k{index}.o")
        (folder / objects[-1]).write_bytes(data)
    interface, (function,) = bare.interface, bare.functions
    sizes = [
        f"-D{name}={_rounded(specs, function.batch, function.seq_len)}"
        for name, specs in (
            ("INPUT_BYTES", interface.inputs),
            ("OUTPUT_BYTES", interface.outputs),
        )
    ]
    threads = ["-pthread", "-DIBERT_WITHOUT_RUNTIME", str(PARALLEL)] if bare.threads else []
    sources = [*sizes, "-I.", "driver.c", "weights.s", *threads, str(_MAIN)]
    _tool([*find_linker(target), *_FLAGS, *sources, *objects, "-o", "program"], folder)
    return folder / "program"


def _rounded(specs: Sequence[TensorSpec], batch: int, seq_len: int) -> int:
    sizes = [spec.elements(batch, seq_len) * item_size(spec.dtype) for spec in specs]
    return sum(-(-size // 8) * 8 for size in sizes)


def _tool(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CountingError(
            what="cannot link the model",
            where=" ".join(command[:8]) + " ...",
            why=done.stderr.strip()[-1000:],
            todo="check the target's toolchain; see `ibert doctor`",
        )
