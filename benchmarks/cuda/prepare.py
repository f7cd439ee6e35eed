"""Making a prepared folder: everything that needs a compiler, on a machine with or without a GPU.

Each step runs in a process of its own (large models need gigabytes, which only the end of a process
gives back), is skipped if what it makes is there and up to date, and is finished or not there at
all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import COMPILER, describe_software, hash_sources
from benchmarks.models import Cell, ModelSpec, model_folder
from benchmarks.process import ROOT, _reason, ending_with_this

from .cells import SPECS, pooled
from .errors import GpuBenchmarkError
from .prepared import SCHEMA, Prepared, hash_integers

__all__ = ["STEPS", "prepare"]

LOG = logging.getLogger("benchmarks.cuda")


def _quantised(spec: ModelSpec, job: Mapping[str, Any]) -> Path:
    given = job["quantised"].get(spec.name)
    if given:
        return Path(given)
    from benchmarks.peers.ibert import IbertPeer

    cache = Path(job["cache"])
    peer = IbertPeer()
    peer.prepare(spec, model_folder(spec, cache), cache)
    return peer.quantised(spec, cache)


def _folder(spec: ModelSpec, job: Mapping[str, Any], prepared: Prepared) -> None:
    """The float weights, as links where the file system allows it."""
    source = model_folder(spec, Path(job["cache"]))
    folder = prepared.folder(spec.name)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        place = folder / name
        place.unlink(missing_ok=True)
        try:
            os.link((source / name).resolve(), place)
        except OSError:
            shutil.copyfile(source / name, place)


def _int8(spec: ModelSpec, job: Mapping[str, Any], prepared: Prepared) -> None:
    import ibert_tvm
    from ibert_tvm.model.artefact import QuantizedModel

    quantised = QuantizedModel.load(_quantised(spec, job))
    shapes = [(cell.batch, cell.seq_len) for cell in map(Cell.parse, job["cells"])]
    compiled = ibert_tvm.compile(quantised, target=job["target"], shapes=shapes)
    compiled.export(prepared.int8(spec.name))


def _fp32(spec: ModelSpec, job: Mapping[str, Any], prepared: Prepared) -> None:
    import ibert_tvm

    from .float_module import build_float_library

    model = ibert_tvm.load(model_folder(spec, Path(job["cache"])))
    function = model.module["main"]
    count = int(function.attrs["num_input"])
    names = [parameter.name for parameter in function.params]
    build_float_library(
        model.module,
        map(Cell.parse, job["cells"]),
        tuple(job["architectures"]),
        prepared.fp32(spec.name),
    )
    (prepared.root / spec.name / "fp32.json").write_text(
        json.dumps({"inputs": names[:count], "weights": names[count:]})
    )


def _expected(spec: ModelSpec, job: Mapping[str, Any], prepared: Prepared) -> None:
    """Hash of the integer outputs by the specification, and the float model's pooled outputs."""
    from ibert_tvm.model.artefact import QuantizedModel
    from ibert_tvm.relay_passes.integer.evaluate import evaluate

    quantised = QuantizedModel.load(_quantised(spec, job))
    function = quantised.module["main"]
    names = [p.name for p in function.params[: int(function.attrs["num_input"])]]
    float_model = _float_model(spec, prepared)
    arrays: dict[str, Any] = {}
    for cell in map(Cell.parse, job["cells"]):
        started = time.perf_counter()
        given = cell.inputs()
        inputs = {name: given.get(name, np.zeros_like(given["input_ids"])) for name in names}
        output = evaluate(quantised.module, inputs, quantised.parameters)[0]
        arrays[f"{cell}.integers"] = np.array(hash_integers(output))
        real = float_model(given["input_ids"])
        arrays[f"{cell}.pooled"] = np.asarray(pooled(real), np.float32)
        LOG.info("evaluated %s %s in %.0f s", spec.name, cell, time.perf_counter() - started)
    with prepared.expected_file(spec.name).open("wb") as stream:
        np.savez(stream, **arrays)


def _float_model(spec: ModelSpec, prepared: Prepared) -> Callable[[np.ndarray], np.ndarray]:
    """The float model on this machine's processor: ids to ``last_hidden_state``."""
    import torch

    from .torch_bert import TorchBert
    from .weights import read_weights

    weights = read_weights(prepared.folder(spec.name))
    model = TorchBert(spec, weights, "cpu", torch.float32)
    return lambda ids: model(torch.from_numpy(ids)).numpy()


# In order: the reference of `expected` reads the folder that the first step makes.
STEPS: dict[str, Callable[[ModelSpec, Mapping[str, Any], Prepared], None]] = {
    "folder": _folder,
    "int8": _int8,
    "fp32": _fp32,
    "expected": _expected,
}
_MADE = {
    "folder": Prepared.folder,
    "int8": Prepared.int8,
    "fp32": Prepared.fp32,
    "expected": Prepared.expected_file,
}


def _key(step: str, job: Mapping[str, Any]) -> str:
    """What the outcome of a step depends on."""
    depends: dict[str, Any] = {"step": step, "model": job["model"]}
    if step != "folder":
        depends |= {"cells": sorted(job["cells"]), "quantised": job["quantised"]}
        depends["sources"] = hash_sources(COMPILER)
    if step in ("int8", "fp32"):
        device = ROOT / "targets" / "cuda" / "device"
        texts = [path.read_bytes() for path in sorted(device.glob("*.cuh"))]
        depends["device_code"] = hashlib.sha256(b"".join(texts)).hexdigest()
        depends["target"] = [job["target"], job["architectures"]]
    return json.dumps(depends, sort_keys=True)


def prepare(
    prepared: Prepared,
    target: str,
    models: Iterable[str],
    cells: Iterable[Cell],
    cache: Path,
    quantised: Mapping[str, str],
    steps: Iterable[str] = tuple(STEPS),
) -> dict[str, str]:
    """Make what is missing.

    Parameters
    ----------
    prepared : Prepared
        The folder.
    target : str
        Name of a target with a GPU.
    models, cells
        What will be measured.
    cache : Path
        Where float models and quantised ones are kept.
    quantised : mapping of str to str
        By model, a quantised one that shall be used as it is.
    steps : iterable of str
        Names in `STEPS`.

    Returns
    -------
    dict of str to str
        What failed, ``"MODEL STEP"``, and why. A step that fails keeps no other from being made.

    Raises
    ------
    GpuBenchmarkError
        If `target` has no GPU.
    """
    from ibert_tvm.targets import get_target

    from .limits import build_limits

    description = get_target(target)
    if description.gpu is None:
        raise GpuBenchmarkError(
            f"target {target!r} is not a GPU",
            where="--target",
            why=description.description,
            todo="use t4, a100, h100, h200 or cuda:sm_XX",
        )
    architectures = tuple(description.gpu.architectures)
    prepared.root.mkdir(parents=True, exist_ok=True)
    failed: dict[str, str] = {}
    names = list(models)
    cell_names = [str(cell) for cell in cells]
    build_limits(architectures, prepared.limits())
    for model in names:
        (prepared.root / model).mkdir(exist_ok=True)
        for step in steps:
            job = {
                **{"model": model, "step": step, "target": target, "cells": cell_names},
                **{"architectures": list(architectures), "cache": str(cache)},
                **{"quantised": {k: str(Path(v).resolve()) for k, v in quantised.items()}},
            }
            why = _make(prepared, job)
            if why:
                failed[f"{model} {step}"] = why
                LOG.warning("%s, %s: %s", model, step, why)
    _write_manifest(prepared, target, architectures, names, cell_names)
    return failed


def _make(prepared: Prepared, job: dict[str, Any]) -> str:
    """Do one step unless it was done; returns why it failed."""
    model, step = job["model"], job["step"]
    made = _MADE[step](prepared, model)
    stamp, key = prepared.root / model / f"{step}.key", _key(step, job)
    if made.exists() and stamp.exists() and stamp.read_text() == key:
        return ""
    stamp.unlink(missing_ok=True)
    log = prepared.root / "logs" / f"{model}-{step}.log"
    log.parent.mkdir(exist_ok=True)
    started = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.cuda.prepare", str(prepared.root), json.dumps(job)]
    with log.open("w") as stream:
        done = subprocess.run(
            ending_with_this(command),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            check=False,
        )
    if done.returncode != 0:
        return f"{_reason(log.read_text(errors='replace'))} (log: {log})"
    stamp.write_text(key)
    LOG.info("%s, %s: made in %.0f s", model, step, time.perf_counter() - started)
    return ""


def _write_manifest(
    prepared: Prepared,
    target: str,
    architectures: tuple[str, ...],
    models: Iterable[str],
    cells: Iterable[str],
) -> None:
    software = describe_software()
    entries = {}
    for model in models:
        signature = prepared.root / model / "fp32.json"
        entries[model] = json.loads(signature.read_text()) if signature.exists() else {}
    document = {
        **{"schema": SCHEMA, "target": target, "architectures": list(architectures)},
        **{"cells": list(cells), "models": entries, "software": software},
    }
    (prepared.root / "manifest.json").write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    """One step: ``DIR JOB``."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    root, text = sys.argv[1:]
    job = json.loads(text)
    STEPS[job["step"]](SPECS[job["model"]], job, Prepared(Path(root)))


if __name__ == "__main__":
    main()
