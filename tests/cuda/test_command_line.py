"""GPUs on the command line: `compile`, `inspect`, `targets` and `doctor`, without a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ibert_tvm.runtime.library_file import read_metadata
from ibert_tvm.targets import get_target
from ibert_tvm.targets.cuda import compile as device_code
from ibert_tvm.targets.library_audit import audit_library
from ibert_tvm.targets.library_check import check_elf
from tests.arm.small_bert import small_bert
from tests.cuda.tools import cuda_toolchain

SHORT = ("--seq-len", "8")


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bert().save(tmp_path_factory.mktemp("artefact") / "small.ibert")


@pytest.mark.slow
def test_compile_gives_a_library_whose_code_is_audited(
    artefact: Path, tmp_path: Path, ibert
) -> None:
    cuda_toolchain()
    path, dump = tmp_path / "model.so", tmp_path / "ir"
    command = ("compile", artefact, "-o", path, "--target", "t4+a100+ptx", "--seq-len", "16")
    outcome = ibert(*command, "--dump-ir", dump)
    assert (outcome.code, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    assert lines[0].startswith(f"wrote {path}: ")
    kernels = int(lines[2].split(", ")[2].removesuffix(" kernels"))
    assert 13 <= kernels <= 18  # seven matrix products; passes may fuse what lies between
    for line, architecture in zip(lines[2:4], ("sm_75", "sm_80"), strict=True):
        size = line.split(", ")[1].removesuffix(" kB")
        assert 10 < float(size) < 200
        assert line == (
            f"device code: {architecture}, {size} kB, {kernels} kernels, no floating-point "
            "instruction; 7 use tensor cores; none uses local memory"
        )
    assert lines[4] == (
        "portable code: compute_80, which the driver of a newer GPU compiles; "
        "what it makes of it is not audited"
    )
    assert lines[5].startswith("one CUDA graph per run, ")
    assert {"kernels.cu", "kernels.sm_75.sass", "kernels.sm_80.sass"} <= {
        file.name for file in dump.iterdir()
    }

    # Nor has the processor's part of it any.
    assert audit_library(path, get_target("t4+a100+ptx")).findings == ()

    document = ibert("inspect", path, "--json").document
    assert document["target"]["name"] == "t4+a100+ptx"
    device = document["device_code"]
    assert (device["architectures"], device["ptx"]) == (["sm_75", "sm_80"], True)
    assert len(device["kernels"]) == 2 * kernels
    assert {kernel["local"] for kernel in device["kernels"]} == {0}
    for kernel in device["kernels"]:
        assert (kernel["matrix"] > 0) == (kernel["kind"] in ("linear", "attention"))
        assert device["launches"][kernel["name"]]["threads"][0] >= 1
    names = [k["kernel"] for k in device["kernels"] if k["architecture"] == "sm_75"]
    called = [kernel.name for kernel in read_metadata(path).functions[0].kernels]
    assert list(dict.fromkeys(names)) == list(dict.fromkeys(called))
    shown = ibert("inspect", path).stdout
    for line in lines[2:6]:
        assert line in " ".join(shown.split())
    assert "tensor core" in shown and "attention" in shown


@pytest.mark.slow
def test_compile_for_a_gpu_beside_a_64_bit_arm(artefact: Path, tmp_path: Path, ibert) -> None:
    from tests.arm.tools import needs

    cuda_toolchain()
    needs("aarch64-linux-gnu-gcc")
    path = tmp_path / "model.so"
    outcome = ibert("compile", artefact, "-o", path, "--target", "cuda:sm_87", "--seq-len", "8")
    assert (outcome.code, outcome.stderr) == (0, "")
    check_elf(path, get_target("cuda:sm_87"))
    assert "device code: sm_87, " in outcome.stdout


FLOAT = """
extern "C" __global__ void half_of(float* x) { *x *= 0.5f; }
"""


@pytest.mark.slow
def test_a_floating_point_instruction_is_the_end(
    artefact: Path, tmp_path: Path, refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda_toolchain()
    real = device_code.with_headers
    monkeypatch.setattr(device_code, "with_headers", lambda code: real(code) + FLOAT)
    path = tmp_path / "model.so"
    words = ("compile", artefact, "-o", path, "--target", "t4", *SHORT)
    refused(*words, instruction=re.compile(r"\+0x[0-9a-f]+ FMUL R[^\n]*"))
    assert not path.exists()


def test_without_a_compiler_the_error_comes_at_once(
    artefact: Path, tmp_path: Path, refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IBERT_CUDA_HOME", "/nowhere")
    monkeypatch.setattr("ibert_tvm.model.artefact.QuantizedModel.load", None)  # not reached
    refused("compile", artefact, "-o", tmp_path / "m.so", "--target", "t4", *SHORT)


@pytest.mark.parametrize("options", ["--flash 1M", "--ram 64K --emit c"], ids=lambda o: o[2:])
def test_options_that_make_no_sense_for_a_gpu_are_refused(
    options: str, artefact: Path, tmp_path: Path, refused
) -> None:
    words = ("compile", artefact, "-o", tmp_path / "m.so", "--target", "t4", *SHORT)
    refused(*words, *options.split())


def test_targets_and_doctor_know_gpus(ibert) -> None:
    toolchain = cuda_toolchain()
    rows = {row["name"]: row for row in ibert("targets", "--json").document["targets"]}
    for name in ("t4", "a100", "h100", "h200"):
        assert rows[name]["available"]
        assert rows[name]["compiler"].startswith(f"{toolchain.nvcc}, ")
        assert rows[name]["runtimes"] == ["tvm", "none"]
    checks = {check["name"]: check for check in ibert("doctor", "--json").document["checks"]}
    assert (checks["CUDA compiler"]["state"], checks["CUDA compiler"]["found"]) == (
        "ok",
        str(toolchain),
    )
    assert checks["NVIDIA GPU"]["state"] in ("ok", "missing")


def test_doctor_says_what_to_install(ibert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IBERT_CUDA_HOME", "/nowhere")
    outcome = ibert("doctor", "--json")
    checks = {check["name"]: check for check in outcome.document["checks"]}
    assert checks["CUDA compiler"] == {
        "name": "CUDA compiler",
        "state": "missing",
        "found": "not found",
        "todo": "name a folder with one, or unset IBERT_CUDA_HOME",
        "why": "no CUDA compiler for target 'cuda': there is no bin/nvcc in that folder",
    }
    text = ibert("doctor").stdout
    assert re.search(r"\nCUDA compiler +name a folder with one, or unset IBERT_CUDA_HOME\n", text)
    assert "no bin/nvcc" not in text
    assert re.search(r"\n +why: no CUDA compiler for target 'cuda'", ibert("doctor", "-v").stdout)


def test_targets_fit_a_line(ibert) -> None:
    text = ibert("targets").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "\n-v says more of each\n" in text
    rows = ibert("targets", "--json").document["targets"]
    reasons = [
        f"{row['name']} {verb}: {missing}"
        for row in rows
        for verb, missing in (
            ("is not compiled for here", row["missing"]),
            ("does not run here", row["runs_missing"]),
        )
        if missing
    ]
    assert reasons  # no machine has every processor
    words = " ".join(ibert("targets", "-v").stdout.split())
    for reason in reasons:
        assert reason in words
        assert reason not in " ".join(text.split())
    missing = text[text.index("\nmissing here ") :].split("\n\n")[0].split()
    for row in rows:
        listed = {row["name"], f"{row['name']},"} & {*missing}
        assert bool(listed) == bool(row["missing"] or row["runs_missing"])
