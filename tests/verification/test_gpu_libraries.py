"""Certificates of libraries for GPUs: machine code taken out of the file, run on the stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

import ibert_tvm as ibert
from ibert_tvm.common.errors import DeviceError
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.runtime import cuda_engine
from ibert_tvm.runtime.plain_gpu_engine import PlainGpuEngine
from ibert_tvm.targets.cuda import compile as device_code
from ibert_tvm.targets.cuda.library import entries
from ibert_tvm.targets.cuda.packing import image_of
from ibert_tvm.verification import Certificate, verify
from tests.artefact.conftest import make_quantized
from tests.cuda import stand_in_gpu
from tests.cuda.gpu_models import build
from tests.cuda.tools import cuda_toolchain

CHECKS = [
    *("digests", "tokenizer", "made from the model"),
    "no floating point",
    "no floating point on the GPU",
    "intervals",
    "same bits",
]
FLOAT = 'extern "C" __global__ void half_of(float* x) { *x *= 0.5f; }\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_quantized().save(tmp_path_factory.mktemp("verified") / "tiny.ibert")


def compiled(folder: Path, target: str, path: Path, runtime: str = "tvm") -> Path:
    cuda_toolchain()
    made = ibert.compile(QuantizedModel.load(folder), target, [(1, 8)], runtime=runtime)
    return made.export(path)


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the stand-in, which stays in a process that has loaded it once."""

    def missing(*_: object) -> None:
        raise DeviceError("no NVIDIA driver is installed")

    monkeypatch.setattr(cuda_engine, "cuda_runtime", missing)
    monkeypatch.setattr(PlainGpuEngine, "attach", missing)


@pytest.mark.slow
@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize("runtime", ["tvm", "none"])
def test_every_architecture_is_looked_at(runtime: str, folder: Path, tmp_path: Path) -> None:
    path = compiled(folder, "t4+a100+ptx", tmp_path / "gpu.so", runtime)
    certificate = verify(path, folder, inputs=2)
    assert certificate.passed, certificate.checks
    assert [check.name for check in certificate.checks] == CHECKS
    host, device, _, bits = certificate.checks[-4:]
    assert host.facts["instructions"] > 100
    assert set(device.facts["architectures"]) == {"sm_75", "sm_80"}
    assert min(device.facts["architectures"].values()) > 30
    assert device.facts["kernels"] >= 2
    *driver, outside = device.facts["outside"]
    assert driver == ([] if runtime == "tvm" else ["libcuda.so.1, the driver, which it opens"])
    assert outside.startswith("what a driver will make of the portable code for compute_80")
    # Without a GPU the certificate says so, and what it lacks.
    assert not certificate.complete and bits.not_run and not bits.findings
    report = certificate.report()
    assert f"  {bits.not_run}" in report
    assert any(line.startswith("same bits: NOT RUN") for line in report)


@pytest.mark.record
@pytest.mark.usefixtures("without_gpu")
def test_planted_floats(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the source of the kernels, past the compiler's own audit: in SASS and in PTX."""
    original = device_code.with_headers
    monkeypatch.setattr(device_code, "with_headers", lambda code: original(code) + FLOAT)
    monkeypatch.setattr(device_code, "check_kernels", lambda *_: None)
    certificate = verify(compiled(folder, "t4+ptx", tmp_path / "gpu.so"), folder, inputs=1)
    failed = {check.name: check.findings for check in certificate.checks if check.findings}
    assert set(failed) == {"no floating point on the GPU"}
    machine, *portable = failed["no floating point on the GPU"]
    assert machine.startswith("sm_75: half_of at +0x") and "FMUL" in machine
    assert portable and all(line.startswith("compute_75: half_of in line ") for line in portable)
    assert any("mul.f32" in line for line in portable)


@pytest.mark.slow
def test_a_float_in_a_kernel_of_the_program(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layer is named."""
    original = device_code.with_headers

    def planted(code: str) -> str:
        head, brace, rest = original(code).rpartition(") {\n")
        line = "  if ((int)(threadIdx.x * 0.3f) == 77777) __trap();\n"
        return head + brace + line + rest

    monkeypatch.setattr(device_code, "with_headers", planted)
    monkeypatch.setattr(device_code, "check_kernels", lambda *_: None)
    certificate = verify(compiled(folder, "t4", tmp_path / "gpu.so"), folder, inputs=1)
    failed = {check.name: check.findings for check in certificate.checks if check.findings}
    assert " of layer pool at +0x" in failed["no floating point on the GPU"][0]


@pytest.mark.slow
def test_a_gpu_that_refuses_the_code(folder: Path, tmp_path: Path) -> None:
    """The stand-in takes no code of NVIDIA's; the certificate says so, and the checks are made."""
    stand_in_gpu.load()
    certificate = verify(compiled(folder, "t4", tmp_path / "gpu.so"), folder, inputs=1)
    failed = {check.name: check.findings for check in certificate.checks if check.findings}
    assert set(failed) == {"same bits"}
    assert failed["same bits"][0].startswith("it does not run: the GPU cuda:0 cannot run")


@pytest.mark.parametrize("runtime", ["tvm", pytest.param("none", marks=pytest.mark.slow)])
def test_on_the_stand_in(runtime: str, folder: Path, tmp_path: Path) -> None:
    """Its kernels are the processor's, which is a finding; its bits are compared."""
    path = tmp_path / "stand_in.so"
    build(QuantizedModel.load(folder), "t4", [(1, 8)], path, runtime=runtime)
    certificate: Certificate = verify(path, folder, inputs=3)
    failed = {check.name: check.findings for check in certificate.checks if check.findings}
    assert failed.pop("made from the model")
    why = "the device code cannot be read: it does not begin as an image of CUDA does"
    assert failed == {"no floating point on the GPU": (why,)}
    assert certificate.complete and certificate.checks[-1].passed
    assert certificate.checks[-1].facts["on"] == "cuda:0"


@pytest.mark.parametrize("length", [0, 7, 15, 16, 40, 79, 90, 111])
def test_images_that_are_cut_off(length: int) -> None:
    image = bytes.fromhex("50ed55ba01001000600000000000000002000101400000002000000000000000")
    image += bytes(12) + (75).to_bytes(4, "little") + bytes(32) + b"\x7fELF" + bytes(28)
    (entry,) = entries(image)
    assert (entry.is_ptx, entry.number, entry.content[:4]) == (False, 75, b"\x7fELF")
    with pytest.raises(ValueError, match=r"^it "):
        entries(image[:length])


@pytest.mark.parametrize("content", [b"", bytes(8), bytes(64), b"\xff" * 64, b"0123456789" * 9])
def test_modules_of_another_form(content: bytes) -> None:
    with pytest.raises(
        ValueError, match=r"^no module of CUDA code is among the library's modules$"
    ):
        image_of(content)
