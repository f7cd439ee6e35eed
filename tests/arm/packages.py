"""Packages for microcontrollers in tests: a small BERT, firmware round a package, its outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from tests.cache import quantised_once
from tests.processes import PATIENCE
from tests.random_models import random_bert, random_ids

from .qemu_board import FIRMWARE, link_firmware, run_firmware

VOCABULARY = 1000


@quantised_once
def small_bert(layers: int = 1) -> QuantizedModel:
    """128 wide, like BERT-Tiny but for its vocabulary; random weights."""
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": layers}
    model = random_bert(
        11, 0.15, model={"add_pooling_layer": False}, vocab_size=VOCABULARY, **sizes
    )
    canonical = ibert.load(model, head="sentence_embedding", verify=False)
    names = list(canonical.info.inputs)
    batches = [inputs_for(names, 24, seed, VOCABULARY) for seed in range(2)]
    return ibert.quantize(canonical, calibration=batches)


def inputs_for(
    names: list[str], seq_len: int, seed: int, vocabulary: int, tokens: int | None = None
) -> dict[str, np.ndarray]:
    """One random sequence, int32 [1, seq_len]; padded behind `tokens` if that is given."""
    values = random_ids(vocabulary, 1, seq_len, seed, tokens, types=2, first=3)
    values["input_ids"] *= values["attention_mask"]
    return {name: values[name] for name in names}


def reference(quantized: QuantizedModel, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What the integer specification says."""
    kinds = {var.name: str(var.ty.dtype) for var in quantized.module["main"].params}
    typed = {name: array.astype(kinds[name]) for name, array in inputs.items()}
    return evaluate(quantized.module, typed, quantized.parameters)


@dataclass(frozen=True)
class PackageRun:
    """Outputs of the model, and the stack that the firmware used."""

    outputs: list[np.ndarray]
    stack_bytes: int
    stdout: str


def document(package: Path) -> dict[str, Any]:
    """What a package says about itself."""
    return json.loads((package / "ibert_model.json").read_text(encoding="utf-8"))


def link_package(
    package: Path,
    folder: Path,
    *,
    board: str = "",
    symbols: Mapping[str, int] | None = None,
    library: Path | None = None,
) -> Path:
    """Link the example firmware round a package with as much stack as the package's bound."""
    facts = document(package)
    # The start-up code, main and semihosting have small frames of their own.
    stack = {"__stack_size": facts["memory"]["ram"]["stack"] + 512}
    return link_firmware(
        facts["target"]["name"],
        [FIRMWARE / "main.c"],
        folder / "firmware.elf",
        objects=[library or package / "libibert_model.a"],
        flags=[f"-I{package}", "-Wextra", "-Werror"],
        symbols={**stack, **(symbols or {})},
        board=board,
        memory=False,
    )


def run_package(
    package: Path,
    elf: Path,
    inputs: Mapping[str, np.ndarray],
    folder: Path,
    *,
    machine: str = "",
    timeout: float = 4 * PATIENCE,
    plugin: str | None = None,
) -> PackageRun:
    """Run linked firmware on inputs of its one shape; `plugin` as for `run_firmware`."""
    facts = document(package)
    function = facts["functions"][0]
    sizes = {"batch": function["batch"], "seq_len": function["seq_len"]}
    (folder / "inputs.bin").write_bytes(
        b"".join(inputs[one["name"]].astype(one["dtype"]).tobytes() for one in facts["inputs"])
    )
    run = run_firmware(
        facts["target"]["name"], elf, folder, board=machine, timeout=timeout, plugin=plugin
    )
    data = (folder / "outputs.bin").read_bytes()
    outputs, offset = [], 0
    for one in facts["outputs"]:
        shape = [sizes.get(axis, axis) for axis in one["shape"]]
        count = int(np.prod(shape))
        outputs.append(np.frombuffer(data, one["dtype"], count, offset).reshape(shape))
        offset += outputs[-1].nbytes
    assert offset == len(data)
    stack = int(run.stdout.rpartition("stack used, by this program and the model: ")[2].split()[0])
    return PackageRun(outputs, stack, run.stdout)


def assert_bit_exact(
    quantized: QuantizedModel, inputs: Mapping[str, np.ndarray], outputs: list[np.ndarray]
) -> None:
    """Every output equals the specification in every integer."""
    expected = reference(quantized, inputs)
    assert len(outputs) == len(expected)
    for output, want in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(output, want)
        assert output.any()
