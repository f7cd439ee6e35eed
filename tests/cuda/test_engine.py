"""The engine for GPUs: one graph launch per run, no allocation, bit for bit.

On the stand-in, whose calls and memory are counted; with ``-m gpu`` on a GPU.
"""

from __future__ import annotations

import gc
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ibert_tvm
from ibert_tvm.runtime import Library, load_library
from ibert_tvm.runtime.cuda_engine import _contexts_that_fit
from tests.arm.tools import needs
from tests.cuda.gpu_library import TinyGpuModel
from tests.cuda.real_gpu import RealGpu
from tests.cuda.stand_in_gpu import StandInGpu, environment, load
from tests.processes import run_captured

KERNELS = 3


@pytest.fixture
def gpu(device: RealGpu | None) -> Any:
    """The stand-in, of the architecture that libraries are made for; or a real GPU."""
    needs("g++")
    found = load()
    found.become(75)
    return found


@pytest.fixture(scope="module")
def model() -> TinyGpuModel:
    return TinyGpuModel()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes the library for a target, once for all tests."""
    folder = tmp_path_factory.mktemp("gpu")

    def make(target: str) -> Path:
        path = folder / f"{target.replace(':', '-')}.so"
        return path if path.exists() else TinyGpuModel(target=target).build(path)

    return make


@pytest.fixture
def path(gpu: Any, gpu_target: str, built: Callable[[str], Path]) -> Path:
    return built(gpu_target)


@pytest.fixture
def library(path: Path) -> Library:
    return load_library(path)


def _inputs(batch: int, length: int, seed: int) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(seed)
    mask = np.ones((batch, length), np.int32)
    mask[-1, 1 + seed % length :] = 0
    return {
        "input_ids": random.integers(0, 8, (batch, length)).astype(np.int32),
        "attention_mask": mask,
        "token_type_ids": random.integers(0, 2, (batch, length)).astype(np.int32),
    }


def _check(library: Library, model: TinyGpuModel, batch: int, length: int, seed: int) -> None:
    inputs = _inputs(batch, length, seed)
    outputs = library.run(**inputs, dequantize=False)
    expected = model.reference(*inputs.values())
    for name, values in expected.items():
        np.testing.assert_array_equal(outputs[name].values, values)


_COUNTED = (
    "cudaGraphLaunch",
    "cudaStreamSynchronize",
    "kernel",
    "cuLaunchKernelEx",
    "cudaMemcpyAsync",
    "cudaGraphInstantiate",
    "cudaMalloc",
    "cudaMallocHost",
    "cudaFree",
    "cudaFreeHost",
)


@contextmanager
def _calls(gpu: StandInGpu) -> Iterator[dict[str, int]]:
    """Calls of CUDA's functions in a block; those that were not called are left out."""
    made: dict[str, int] = {}
    before = {name: gpu.calls(name) for name in _COUNTED}
    yield made
    counts = {name: gpu.calls(name) - before[name] for name in _COUNTED}
    made.update({name: count for name, count in counts.items() if count})


def test_a_run_is_one_graph_launch_and_one_synchronisation(
    gpu: StandInGpu, library: Library, model: TinyGpuModel
) -> None:
    for batch, length in model.shapes:
        with _calls(gpu) as first:
            _check(library, model, batch, length, seed=0)
        # A plain run, which loads code and takes memory, and the captured one.
        assert (first["cudaGraphInstantiate"], first["cudaGraphLaunch"]) == (1, 1)
        assert first["cuLaunchKernelEx"] == 2 * KERNELS
    for seed in range(1, 20):
        for batch, length in model.shapes:
            with _calls(gpu) as later:
                _check(library, model, batch, length, seed)
            launched = later.pop("cuLaunchKernelEx", KERNELS)  # some drivers count graphs' kernels
            assert launched == KERNELS
            assert later == {"cudaGraphLaunch": 1, "cudaStreamSynchronize": 1, "kernel": KERNELS}


def test_padding_and_batches_are_those_of_every_library(
    library: Library, model: TinyGpuModel
) -> None:
    for batch, length in ((1, 3), (3, 5), (9, 8), (2, 11)):
        _check(library, model, batch, length, seed=batch)


def test_texts(library: Library) -> None:
    texts = ["hello world", "small big hello world small big hello world small"]
    outputs = library.run_texts(texts)
    assert outputs["hidden"].shape[0] == outputs["embedding"].shape[0] == 2
    for index, text in enumerate(texts):
        alone = library.run_texts([text])
        np.testing.assert_array_equal(alone["embedding"][0], outputs["embedding"][index])


def test_outputs_do_not_change_with_later_runs(library: Library) -> None:
    first = library.run(**_inputs(1, 8, 1), dequantize=False)
    kept = {name: output.values.copy() for name, output in first.items()}
    library.run(**_inputs(1, 8, 2), dequantize=False)
    for name, values in kept.items():
        np.testing.assert_array_equal(first[name].values, values)


def test_weights_are_on_the_gpu_once_and_all_memory_is_given_back(
    gpu: StandInGpu, model: TinyGpuModel, path: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copy(path, tmp_path / "another.so"))  # no library of the others' tests
    before = gpu.memory()
    first = load_library(copy)
    weights = gpu.memory() - before
    assert weights >= first.metadata.weight_bytes
    second, third = load_library(copy), load_library(copy, device="cuda:0")
    assert gpu.memory() - before == weights
    for name, array in first.parameters.items():
        np.testing.assert_array_equal(array, second.parameters[name])
    del first, second
    gc.collect()
    assert gpu.memory() - before == weights
    for batch, length in model.shapes:
        _check(third, model, batch, length, seed=1)
    inputs = sum(3 * 256 * -(-batch * length * 4 // 256) for batch, length in model.shapes)
    assert gpu.memory() - before == weights + inputs + third.metadata.device_code["storage_bytes"]
    del third
    gc.collect()
    assert gpu.memory() == before


def test_callers_at_the_same_time_share_weights_and_nothing_else(
    gpu: StandInGpu, model: TinyGpuModel, path: Path, tmp_path: Path
) -> None:
    before = gpu.memory()
    library = load_library(Path(shutil.copy(path, tmp_path / "another.so")))
    weights = gpu.memory() - before

    def run_all(library: Library, seed: int) -> None:
        for batch, length in model.shapes:
            _check(library, model, batch, length, seed)

    run_all(library, seed=1)
    each = gpu.memory() - before - weights
    with library.contexts.lent(), library.contexts.lent():
        run_all(library, seed=2)  # in a third context
    assert len(library.contexts) == 3
    # The second has run nothing and has no memory yet.
    assert gpu.memory() - before == weights + 2 * each
    with _calls(gpu) as later:
        run_all(library, seed=3)
    shapes = len(model.shapes)
    assert later["cudaGraphLaunch"] == later["cudaStreamSynchronize"] == shapes
    assert not later.keys() & {"cudaMalloc", "cudaMallocHost", "cudaGraphInstantiate"}
    library.close()
    del library
    gc.collect()
    assert gpu.memory() == before


@pytest.mark.parametrize(("contexts", "limit"), [(0.5, 1), (2.5, 2), (100, 4)])
def test_there_are_no_more_contexts_than_find_a_place(
    library: Library, contexts: float, limit: int
) -> None:
    metadata = library.metadata
    inputs = sum(3 * 4 * f.batch * f.seq_len for f in metadata.functions)
    each = metadata.device_code["storage_bytes"] + inputs
    assert _contexts_that_fit(metadata, int(contexts * each)) == limit


def test_a_library_that_is_gone_leaves_the_others_their_memory(
    path: Path, model: TinyGpuModel
) -> None:
    kept, gone = load_library(path), load_library(path)
    for library in (kept, gone):
        _check(library, model, 4, 8, seed=3)
    del gone, library
    gc.collect()
    other = load_library(path)
    for seed in range(4, 8):
        _check(other, model, 4, 8, seed)
        _check(kept, model, 4, 8, seed)


def test_threads_share_a_library_and_run_several(path: Path, model: TinyGpuModel) -> None:
    shared = load_library(path)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            own = load_library(path)
            for seed in range(5):
                batch, length = model.shapes[(number + seed) % len(model.shapes)]
                _check(own, model, batch, length, 10 * number + seed)
                _check(shared, model, batch, length, 10 * number + seed)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert 1 <= len(shared.contexts) <= shared.engine.max_contexts == 4


def test_inputs_are_aligned_buffers_of_the_function(library: Library) -> None:
    (function,) = (f for f in library.metadata.functions if (f.batch, f.seq_len) == (1, 8))
    with library.contexts.lent() as context:
        buffers = context.inputs(function)
        assert list(buffers) == ["input_ids", "attention_mask", "token_type_ids"]
        starts = {buffer.ctypes.data for buffer in buffers.values()}
        assert all(start % 256 == 0 for start in starts) and len(starts) == 3
        assert all((b.shape, str(b.dtype)) == ((1, 8), "int32") for b in buffers.values())
        assert not any(buffer.any() for buffer in buffers.values())
        assert context.inputs(function) is buffers


def test_kernels_are_timed_one_by_one_in_order(
    gpu: StandInGpu, library: Library, model: TinyGpuModel
) -> None:
    _check(library, model, 4, 8, seed=1)
    (function,) = (f for f in library.metadata.functions if (f.batch, f.seq_len) == (4, 8))
    with library.contexts.lent() as context:  # the one that has run
        times = context.kernel_times(function)
        assert context.time_ms(function, 3) > 0
    assert [name for name, _ in times] == [kernel.name for kernel in function.kernels]
    assert all(milliseconds > 0 for _, milliseconds in times)
    seen: list[tuple[str, int]] = []
    with library.engine.observed(lambda name, taken: seen.append((name, taken))):
        _check(library, model, 4, 8, seed=2)
    assert [name for name, _ in seen] == [kernel.name for kernel in function.kernels]
    with _calls(gpu) as later:  # nothing of that is left
        _check(library, model, 4, 8, seed=3)
    assert later["cudaGraphLaunch"] == later["cudaStreamSynchronize"] == 1
    assert later["kernel"] == KERNELS
    assert len(seen) == KERNELS


def test_the_device_of_a_library(library: Library, path: Path, device: RealGpu | None) -> None:
    assert library.device == library.engine.device == "cuda:0"
    assert library.num_threads == 1
    if device is None:
        assert library.engine.name == "Stand-in T4"
    architecture = "sm_75" if device is None else f"sm_{device.capability}"
    assert library.engine.architecture == architecture
    assert library.metadata.device == "cuda"
    assert library.metadata.architectures == (architecture,)
    ids = [[4, 5, 6]]
    by_path = ibert_tvm.run(path, input_ids=ids, device="cuda")
    np.testing.assert_array_equal(by_path["hidden"], library.run(ids)["hidden"])


@pytest.mark.slow
def test_running_needs_neither_the_compiler_nor_torch(path: Path, device: RealGpu | None) -> None:
    script = (
        "import sys, ibert_tvm\n"
        "library = ibert_tvm.load_library(sys.argv[1])\n"
        "print(library.run([[4, 5, 6]], dequantize=False)['hidden'].values.sum())\n"
        "print([name for name in ('tvm', 'torch', 'transformers') if name in sys.modules])\n"
        "with open('/proc/self/maps') as maps:\n"
        "    print('libtvm_compiler' in maps.read())\n"
        "import tvm\n"
        "again = ibert_tvm.load_library(sys.argv[1])\n"
        "print(again.run([[4, 5, 6]], dequantize=False)['hidden'].values.sum())\n"
    )
    done = run_captured(
        [sys.executable, "-c", script, str(path)],
        env=environment(capability=75) if device is None else None,
    )
    assert done.returncode == 0, done.stderr
    first, modules, compiler, second, _ = done.stdout.split("\n")
    assert (modules, compiler) == ("[]", "False")
    assert first == second


@pytest.mark.slow
def test_a_library_of_several_architectures_runs_on_each(
    device: RealGpu | None, model: TinyGpuModel, tmp_path: Path
) -> None:
    if device is not None:
        pytest.skip("a GPU has one architecture; the stand-in takes any")
    needs("g++")
    gpu = load()
    built = TinyGpuModel(shapes=((1, 8),), target="cuda:sm_75+sm_80").build(tmp_path / "model.so")
    try:
        for capability in (75, 80):
            gpu.become(capability)
            # A file each: the code of a loaded file stays what it was.
            library = load_library(shutil.copy(built, tmp_path / f"{capability}.so"))
            assert library.engine.architecture == f"sm_{capability}"
            assert library.metadata.architectures == ("sm_75", "sm_80")
            _check(library, model, 1, 8, seed=5)
    finally:
        gpu.become(75)
