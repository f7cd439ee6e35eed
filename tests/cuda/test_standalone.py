"""Libraries for a GPU that need the driver alone: bits, errors, and what they take of the GPU."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.common.errors import TargetError, UsageError
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.targets import get_target
from ibert_tvm.targets.library_audit import audit_library
from tests.arm.tools import needs
from tests.cuda.gpu_models import as_model, build, check_mixes, random_inputs
from tests.cuda.stand_in_gpu import environment, images_for_stand_in, load
from tests.examples import examples
from tests.passes.models import ENCODERS, encoder_program
from tests.processes import run_captured
from tests.snapshots import Messages

STAND_IN_ONLY = True
SHAPE = (3, 17)


def model_of(name: str, masked: bool = True) -> QuantizedModel:
    return as_model(encoder_program(**ENCODERS[name], seed=3, masked=masked))


@pytest.fixture(autouse=True)
def _compiler():
    needs("g++")
    yield
    load().reset()


# By default the C program below shows it, on one batch.
@pytest.mark.slow_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "target", "masked"),
    examples(
        [("odd", "t4", True), ("relu_roberta", "h100", True), ("odd", "a100", False)],
        ("relu_roberta", "h100", True),
        ("odd", "a100", False),
        otherwise="record",
        unpack=True,
    ),
)
def test_every_mix_of_lengths_gives_the_bits_of_the_specification(
    model: str, target: str, masked: bool, tmp_path: Path
) -> None:
    quantised = model_of(model, masked)
    shapes = [(1, 17), SHAPE]
    library = build(quantised, target, shapes, tmp_path / "model.so", runtime="none")
    assert [f.packed for f in library.metadata.functions] == [masked, masked]
    for shape in shapes:
        check_mixes(library, quantised, shape)


@pytest.fixture(scope="module")
def model() -> QuantizedModel:
    return model_of("odd")


@pytest.fixture(scope="module")
def path(model: QuantizedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for the stand-in."""
    needs("g++")
    load().become(75)
    made = tmp_path_factory.mktemp("standalone") / "model.so"
    with images_for_stand_in():
        ibert.compile(model, target="t4", shapes=[SHAPE], runtime="none").export(made)
    return made


@pytest.fixture(scope="module")
def program(path: Path) -> Path:
    """A C program that runs it."""
    needs("gcc")
    made, source = path.parent / "run", Path(__file__).with_name("standalone.c")
    flags = ["-std=c99", "-O1", f"-I{path.parent}", str(source), str(path)]
    command = ["gcc", *flags, f"-Wl,-rpath,{path.parent}", "-o", str(made)]
    subprocess.run(command, check=True, timeout=60)
    return made


@pytest.mark.slow
def test_a_c_program_gives_the_bits_of_the_specification(
    model: QuantizedModel, program: Path, tmp_path: Path
) -> None:
    inputs = random_inputs(model, *SHAPE, seed=5)
    done = run_captured(_command(program, tmp_path, model), env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    for index, want in enumerate(evaluate(model.module, inputs, model.parameters)):
        got = np.fromfile(tmp_path / f"output_{index}", want.dtype, want.size)
        np.testing.assert_array_equal(got.reshape(want.shape), want)


def _command(program: Path, folder: Path, model: QuantizedModel, number: int = 0) -> list[str]:
    """What runs the program on random inputs in files, of 32 bits as a C program has them."""
    inputs = random_inputs(model, *SHAPE, seed=5)
    for name, values in inputs.items():
        values.astype("int32").tofile(folder / name)
    outputs = [folder / f"output_{index}" for index in range(len(model.info.outputs))]
    for path in outputs:
        path.write_bytes(b"")
    files = [*(folder / name for name in inputs), *outputs]
    return [str(program), str(number), *map(str, SHAPE), *map(str, files)]


@pytest.mark.slow_cases(13)
@pytest.mark.representatives(3)
@pytest.mark.parametrize(
    ("number", "settings"),
    [
        (0, {"driver": 11080}),
        (0, {"devices": 0}),
        (0, {"fail": "cuInit:1:999"}),
        (2, {}),
        (99, {}),
        (0, {"capability": 80}),
        (0, {"memory": 4096}),
        (0, {"fail": "cuMemAlloc_v2:2:2"}),
        (0, {"fail": "cuMemHostAlloc:1:2"}),
        (0, {"fail": "cuModuleGetFunction:5:500"}),
        (0, {"fail": "cuStreamBeginCapture_v2:1:900"}),
        (0, {"fail": "cuLaunchKernel:3:701"}),
        (0, {"fail": "cuGraphInstantiateWithFlags:1:2"}),
        (0, {"fail": "cuGraphLaunch:2:700"}),
        (0, {"fail": "cuStreamSynchronize:3:719"}),
        (0, {"fail": "cuModuleLoadData:1:222"}),
    ],
    ids=[
        *("old driver", "no GPU", "driver that fails", "no such GPU", "no such number"),
        *("another architecture", "no memory for weights", "no memory for values"),
        *("no pinned memory", "no kernel", "no capture", "no launch", "no graph"),
        *("GPU that fails", "kernel that fails", "portable code of a newer CUDA"),
    ],
)
def test_what_a_c_program_is_told(
    model: QuantizedModel,
    program: Path,
    tmp_path: Path,
    number: int,
    settings: dict[str, object],
    messages: Messages,
) -> None:
    command = _command(program, tmp_path, model, number)
    done = run_captured(command, env=environment(**settings))
    assert done.returncode == 1
    own = [line for line in done.stderr.splitlines() if not line.startswith("stand-in GPU")]
    messages.check("\n".join(own))


def test_a_c_program_without_a_driver(model: QuantizedModel, program: Path, tmp_path: Path) -> None:
    done = run_captured(_command(program, tmp_path, model))
    if done.returncode == 0:
        pytest.skip("this machine has a GPU")
    assert done.stderr.startswith("there is no NVIDIA driver on this machine: libcuda.so.1: ")


_LOADED = """
import json, sys
from ibert_tvm.common.errors import DeviceError
from ibert_tvm.runtime import load_library
try:
    load_library(sys.argv[1])
except DeviceError as error:
    print(json.dumps([error.what, error.where, error.why, error.todo]))
"""


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    "settings", [{"driver": 11080}, {"memory": 4096}], ids=["old driver", "no memory"]
)
def test_what_a_python_program_is_told(
    path: Path, settings: dict[str, object], messages: Messages
) -> None:
    command = [sys.executable, "-c", _LOADED, str(path)]
    done = run_captured(command, env=environment(**settings))
    parts = json.loads(done.stdout)
    parts[1] = parts[1].replace(str(path), "PATH")
    messages.check("\n".join(parts))


def test_the_memory_of_the_gpu_is_given_back(path: Path) -> None:
    gpu = load()
    before = gpu.memory()
    libraries = [ibert.load_library(path) for _ in range(2)]
    taken = gpu.memory() - before
    assert taken >= libraries[0].metadata.weight_bytes
    assert taken == libraries[0].metadata.device_code["storage_bytes"] + (
        libraries[0].metadata.weight_bytes
    )
    del libraries[0]
    gc.collect()
    assert gpu.memory() - before == taken
    del libraries
    gc.collect()
    assert gpu.memory() == before


def test_each_kernel_is_timed_where_somebody_asks(model: QuantizedModel, path: Path) -> None:
    library, inputs = ibert.load_library(path), random_inputs(model, *SHAPE, seed=5)
    seen: list[str] = []
    with library.engine.observed(lambda name, _: seen.append(name)):
        observed = library.run(**inputs, dequantize=False)
    (function,) = library.metadata.functions
    assert seen == [kernel.name for kernel in function.kernels]
    for name, output in library.run(**inputs, dequantize=False).items():
        np.testing.assert_array_equal(output.values, observed[name].values)
    assert (library.engine.architecture, library.engine.multiprocessors) == ("sm_75", 40)


def test_the_processor_part_of_a_library_is_audited(path: Path) -> None:
    audit = audit_library(path, get_target("t4"))
    assert audit.findings == ()
    # What opens libraries does so for a GPU's driver only.
    other = audit_library(path, get_target("x86-64"))
    assert [text.partition(":")[0] for text in other.findings] == ["dlerror", "dlopen", "dlsym"]


def test_a_form_that_a_gpu_has_not(model: QuantizedModel, messages: Messages) -> None:
    with messages.raises(UsageError):
        ibert.compile(model, target="t4", shapes=[SHAPE], runtime="none", emit="c")


def test_launches_that_depend_on_something_are_refused(messages: Messages) -> None:
    from tvm import tirx

    from ibert_tvm.targets.cuda.standalone import device_calls

    loop = tirx.For(tirx.Var("i", "int32"), 0, 2, tirx.ForKind.SERIAL, tirx.Evaluate(0))
    with messages.raises(TargetError):
        device_calls(tirx.PrimFunc([], loop))
