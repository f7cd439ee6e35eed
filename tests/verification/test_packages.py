"""Certificates of packages for microcontrollers: objects, sources, and their run under QEMU."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.common.errors import UsageError
from ibert_tvm.common.integrity import write_manifest
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.targets import get_target
from ibert_tvm.targets.bare_metal import PackageOptions
from ibert_tvm.targets.toolchain import find_linker
from ibert_tvm.verification import Certificate, verify
from ibert_tvm.verification.certificate import Check
from tests.arm.tools import board
from tests.artefact.conftest import make_quantized
from tests.examples import examples

Package = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_quantized().save(tmp_path_factory.mktemp("verified") / "tiny.ibert")


@pytest.fixture(scope="module")
def package(folder: Path) -> Package:
    made: dict[tuple[str, str], Path] = {}

    def compile(target: str, emit: str = "objects") -> Path:
        board(target, run=False)
        if (target, emit) not in made:
            compiled = ibert.compile(
                QuantizedModel.load(folder), target, [(1, 8), (2, 4)], prefix="tiny"
            )
            place = folder.parent / f"{target}-{emit}"
            made[target, emit] = compiled.export(place, PackageOptions(emit=emit))
        return made[target, emit]

    return compile


def _named(certificate: Certificate) -> dict[str, Check]:
    return {check.name: check for check in certificate.checks}


def failed_checks(path: Path, folder: Path, emulate: bool = False) -> dict[str, tuple[str, ...]]:
    certificate = verify(path, folder, inputs=2, emulate=emulate)
    return {check.name: check.findings for check in certificate.checks if check.findings}


def failed(path: Path, folder: Path, emulate: bool = False) -> dict[str, tuple[str, ...]]:
    found = failed_checks(path, folder, emulate)
    assert found
    return found


@pytest.mark.parametrize(
    "target",
    examples(["cortex-m0", "cortex-m3", "cortex-m4", "cortex-m55", "rv32imc"], "cortex-m55"),
)
@pytest.mark.slow
def test_a_package_on_its_board(package: Package, folder: Path, target: str) -> None:
    board(target)
    certificate = verify(package(target), folder, inputs=4, emulate=True)
    assert certificate.passed and certificate.complete, certificate.checks
    code, bits = (_named(certificate)[name] for name in ("no floating point", "same bits"))
    assert code.facts["instructions"] > 200 and code.facts["objects"] > 3
    assert (bits.facts["inputs"], bits.facts["shapes"]) == (4, ["1x8", "2x4"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "emit"), [("cortex-m4", "c"), ("cortex-m4", "c-arrays"), ("cortex-m0", "c")]
)
def test_sources_are_compiled(package: Package, folder: Path, target: str, emit: str) -> None:
    certificate = verify(package(target, emit), folder, inputs=1)
    assert certificate.passed and not certificate.complete, certificate.checks
    code, bits = (_named(certificate)[name] for name in ("no floating point", "same bits"))
    assert code.facts["form"] == emit and code.facts["instructions"] > 200
    assert "what another compiler, or other flags, make of the sources" in code.facts["outside"]
    assert bits.not_run == (
        "the target is another machine; --emulate runs it under the target's emulator"
    )


def test_files_that_the_manifest_does_not_list_are_not_read(
    package: Package, folder: Path, tmp_path: Path
) -> None:
    """A signature, for one, or a link to everything."""
    path = shutil.copytree(package("cortex-m4"), tmp_path / "signed")
    (path / "signature.json").write_text("{}")
    (path / "everything").symlink_to("/")
    assert not failed_checks(path, folder)


@pytest.mark.slow
def test_a_float_in_a_linked_object(package: Package, folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(package("cortex-m4"), tmp_path / "planted")
    (tmp_path / "extra.c").write_text("float scaled(float x, int y) { return x * y; }\n")
    linker = find_linker(get_target("cortex-m4"))
    subprocess.run([*linker, "-O2", "-c", "extra.c", "-o", "extra.o"], cwd=tmp_path, check=True)
    library = path / "libtiny_model.a"
    subprocess.run(["ar", "rcsD", str(library), str(tmp_path / "extra.o")], check=True)
    (finding,) = failed(path, folder)["digests"]
    assert "libtiny_model.a" in finding and "manifest.json says" in finding
    # Whoever writes the manifest anew is found by what the code does.
    write_manifest(path)
    findings = failed(path, folder)["no floating point"]
    assert "__aeabi_fmul: a library function of floating point" in findings


@pytest.mark.slow
def test_a_float_in_c(package: Package, folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(package("cortex-m4", "c"), tmp_path / "planted")
    kernels = path / "tiny_kernels.c"
    text = kernels.read_text()
    kernels.write_text(text + "\nint planted(int x) { return (int)(x * 0.5f); }\n")
    write_manifest(path)
    assert (
        "__aeabi_fmul: a library function of floating point"
        in (failed(path, folder)["no floating point"])
    )


@pytest.mark.slow
def test_the_package_of_other_weights(package: Package, folder: Path, tmp_path: Path) -> None:
    board("cortex-m4")
    model = make_quantized()
    table = np.roll(model.parameters["emb.weight"], 1)
    other = replace(model, parameters={**model.parameters, "emb.weight": table})
    found = failed(package("cortex-m4"), other.save(tmp_path / "other.ibert"), emulate=True)
    assert set(found) == {"made from the model", "same bits"}
    assert "integers of sentence_embedding differ" in found["same bits"][0]


def test_a_package_alone(package: Package) -> None:
    with pytest.raises(UsageError, match=r"^a package alone cannot be verified: "):
        verify(package("cortex-m4"))
