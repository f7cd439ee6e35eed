"""Several threads give the integers that the specification says, as one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

import ibert_tvm as ibert
from ibert_tvm.targets import cpu_features, get_target, missing_features
from tests.examples import examples
from tests.integration.whole_models import random_inputs, reference

THREADS = 3
# Rows that no register tile divides, so that kernels also share the padded copy of their operand.
SHAPES = [(1, 17), (3, 33)]

# A process of its own: the tests' processes keep TVM to one thread.
_RUN = """
import sys
import numpy as np
import ibert_tvm
if len(sys.argv) > 4:
    # Importing runs TVM with threads of its own; the library keeps to those it was told.
    ibert_tvm.load(sys.argv[4], head="none")
library = ibert_tvm.load_library(sys.argv[1], num_threads=int(sys.argv[3]))
with np.load(sys.argv[2]) as stored:
    for index in range(50):
        inputs = {name: stored[name] for name in stored.files if name != "expected"}
        (output,) = library.run(**inputs, dequantize=False).values()
        np.testing.assert_array_equal(output.values, stored["expected"], err_msg=f"run {index}")
print(1 + library.engine.pool.started())
"""


@pytest.mark.parametrize("target", examples(["x86-avx512-vnni", "x86-64-v3"], "x86-64-v3"))
def test_threads_share_the_work_and_change_nothing(target: str, tmp_path: Path) -> None:
    if missing := missing_features(get_target(target), cpu_features()):
        pytest.skip(f"this processor lacks {', '.join(missing)}")
    torch.manual_seed(3)
    config = hf.BertConfig(
        vocab_size=90,
        hidden_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=72,
        max_position_embeddings=40,
    )
    model = hf.BertModel(config).eval()
    model.save_pretrained(tmp_path / "source")
    canonical = ibert.load(model, head="none", verify=False)
    names = list(canonical.info.inputs)
    batches = [random_inputs(names, 2, 24, 90, seed, padding=False) for seed in range(2)]
    quantized = ibert.quantize(canonical, calibration=batches)
    library = ibert.compile(quantized, target=target, shapes=SHAPES).export(tmp_path / "m.so")
    for (batch, seq_len), source in zip(SHAPES, ([], [tmp_path / "source"]), strict=True):
        inputs = random_inputs(names, batch, seq_len, 90, seed=seq_len, padding=True)
        (expected,) = reference(quantized, inputs)
        stored = tmp_path / f"{batch}x{seq_len}.npz"
        np.savez(stored, expected=expected, **inputs)
        arguments = [str(item) for item in (library, stored, THREADS, *source)]
        command = [sys.executable, "-c", _RUN, *arguments]
        environment = {**os.environ, "TVM_NUM_THREADS": "2"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [str(THREADS)]
