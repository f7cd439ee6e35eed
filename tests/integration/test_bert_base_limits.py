"""BERT-Base compiles, loads and runs within its limits of memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

import ibert_tvm as ibert
from ibert_tvm.quantization.options import CalibrationOptions
from tests.processes import run_captured

_COMPILE = """
import json, resource, sys
import ibert_tvm as ibert
quantized = ibert.QuantizedModel.load(sys.argv[1])
compiled = ibert.compile(quantized, target="host", shapes=[(1, 128)])
compiled.export(sys.argv[2])
peak = max(resource.getrusage(who).ru_maxrss for who in (
    resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps({"peak_kib": peak, "weight_bytes": compiled.report["weight_bytes"]}))
"""

_RUN = """
import json, sys
def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
import tvm
import numpy as np
import ibert_tvm as ibert
before = resident()
library = ibert.load_library(sys.argv[1], num_threads=1)
ids = np.full((1, 128), 7)
library.run(input_ids=ids, attention_mask=np.ones_like(ids))
print(json.dumps({"added_kib": resident() - before}))
"""


def _python(code: str, *arguments: object) -> dict[str, float]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = run_captured(command, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.record
def test_bert_base_compiles_and_loads_within_limits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = hf.BertModel(hf.BertConfig(), add_pooling_layer=False).eval()
    canonical = ibert.load(model, head="none", verify=False)
    ids = np.random.default_rng(0).integers(1000, 30000, (1, 16))
    batch = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    if "token_type_ids" in canonical.info.inputs:
        batch["token_type_ids"] = np.zeros_like(ids)
    # How well it is quantised does not matter here.
    options = CalibrationOptions(observer="minmax", alphas=(0.0,), compensate=False)
    quantized = ibert.quantize(canonical, calibration=[batch], options=options)
    folder = quantized.save(tmp_path / "base.ibert")
    del model, canonical, quantized

    library = tmp_path / "model.so"
    compiled = _python(_COMPILE, folder, library)
    assert compiled["peak_kib"] < 6 * 2**20

    run = _python(_RUN, library)
    weights_kib = compiled["weight_bytes"] / 1024
    # Mapped once: a copy of the weights would add as much again.
    assert run["added_kib"] < 1.25 * weights_kib + 64 * 1024
