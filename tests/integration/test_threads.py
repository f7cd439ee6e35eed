"""Several threads give the integers that the specification says, as one does."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.targets import cpu_features, get_target, missing_features
from tests.examples import examples
from tests.integration.whole_models import one_layer, random_inputs, reference
from tests.processes import run_captured, without_torch

THREADS = 3
# Rows that no register tile divides, so that kernels also share the padded copy of their operand.
SHAPES = [(1, 17), (3, 33)]

# A process of its own: the tests' processes keep TVM to one thread.
_RUN = """
import sys
import numpy as np
import ibert_tvm
if len(sys.argv) > 4:
    # TVM has threads of its own, as where a model was imported; the library keeps to its number.
    import tvm
    from tvm import te
    x = te.placeholder((64,), "int32")
    function = te.create_prim_func([x, te.compute((64,), lambda i: x[i] + 1, name="y")])
    schedule = tvm.s_tir.Schedule(function)
    schedule.parallel(schedule.get_loops("y")[0])
    arrays = [tvm.runtime.tensor(np.zeros(64, np.int32)) for _ in range(2)]
    tvm.compile(schedule.mod, target="llvm")["main"](*arrays)
    assert (arrays[1].numpy() == 1).all()
library = ibert_tvm.load_library(sys.argv[1], num_threads=int(sys.argv[3]))
with np.load(sys.argv[2]) as stored:
    for index in range(50):
        inputs = {name: stored[name] for name in stored.files if name != "expected"}
        (output,) = library.run(**inputs, dequantize=False).values()
        np.testing.assert_array_equal(output.values, stored["expected"], err_msg=f"run {index}")
print(1 + library.engine.pool.started(), library.close())
"""


@pytest.mark.slow_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("target", examples(["x86-avx512-vnni", "x86-64-v3"], "x86-64-v3"))
def test_threads_share_the_work_and_change_nothing(target: str, tmp_path: Path) -> None:
    if missing := missing_features(get_target(target), cpu_features()):
        pytest.skip(f"this processor lacks {', '.join(missing)}")
    quantized = one_layer()
    names = list(quantized.input_names)
    library = ibert.compile(quantized, target=target, shapes=SHAPES).export(tmp_path / "m.so")
    for (batch, seq_len), before in zip(SHAPES, ([], ["first run TVM"]), strict=True):
        inputs = random_inputs(names, batch, seq_len, 90, seed=seq_len, padding=True)
        (expected,) = reference(quantized, inputs)
        stored = tmp_path / f"{batch}x{seq_len}.npz"
        np.savez(stored, expected=expected, **inputs)
        arguments = [str(item) for item in (library, stored, THREADS, *before)]
        command = [sys.executable, "-c", _RUN, *arguments]
        environment = {**without_torch(), "TVM_NUM_THREADS": "2"}
        done = run_captured(command, env=environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{THREADS} the threads of this process run in it\n"
