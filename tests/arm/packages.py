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

from .qemu_board import FIRMWARE, link_firmware, run_firmware

VOCABULARY = 1000


@quantised_once
def small_bert() -> QuantizedModel:
    """Two layers, 128 wide, like BERT-Tiny but for its vocabulary; random weights."""
    import torch
    import transformers as hf

    torch.manual_seed(11)
    config = hf.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        max_position_embeddings=64,
    )
    model = hf.BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:  # larger than the usual initialisation: differences must show
                parameter.normal_(0, 0.15)
    canonical = ibert.load(model, head="sentence_embedding", verify=False)
    names = list(canonical.info.inputs)
    batches = [inputs_for(names, 24, seed, VOCABULARY) for seed in range(2)]
    return ibert.quantize(canonical, calibration=batches)


def inputs_for(
    names: list[str], seq_len: int, seed: int, vocabulary: int, tokens: int | None = None
) -> dict[str, np.ndarray]:
    """One random sequence, int32 [1, seq_len]; padded behind `tokens` if that is given."""
    random = np.random.default_rng(seed)
    mask = np.ones((1, seq_len), "int32")
    ids = random.integers(3, vocabulary, (1, seq_len)).astype("int32")
    if tokens is not None:
        mask[:, tokens:] = 0
        ids[:, tokens:] = 0
    kinds = random.integers(0, 2, (1, seq_len)).astype("int32")
    values = {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}
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
    timeout: float = 300,
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
    stack = int(run.stdout.rpartition("stack used: ")[2].split()[0])
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
