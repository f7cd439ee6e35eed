"""The certificate of an artefact: it is given where all holds, and each check can fail."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.common.errors import DocumentError, UsageError
from ibert_tvm.common.files import files_sha256
from ibert_tvm.common.integrity import check_sealed
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.model.tokenization import Tokenizer
from ibert_tvm.model.tokenizer_behaviour import behaviour
from ibert_tvm.targets import get_target, pipeline
from ibert_tvm.targets.aot import lower
from ibert_tvm.targets.library_audit import audit_library, read_listing
from ibert_tvm.verification import Certificate, verify
from tests.artefact.conftest import make_quantized
from tests.cache import compiled_in_memory_once, compiled_once

LIBRARY_CHECKS = [
    *("digests", "tokenizer", "made from the model"),
    *("no floating point", "intervals", "same bits"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_quantized().save(tmp_path_factory.mktemp("verified") / "tiny.ibert")


@pytest.fixture(scope="module")
def libraries(folder: Path) -> dict[str, Path]:
    model = QuantizedModel.load(folder)
    return {
        runtime: compiled_once(model, "host", [(1, 8), (2, 4)], runtime=runtime)
        for runtime in ("tvm", "none")
    }


def _failed(certificate: Certificate) -> dict[str, tuple[str, ...]]:
    assert not certificate.passed
    return {check.name: check.findings for check in certificate.checks if not check.passed}


@pytest.mark.parametrize("runtime", ["tvm", "none"])
def test_a_library(folder: Path, libraries: dict[str, Path], runtime: str) -> None:
    path, counts = libraries[runtime], []
    certificate = verify(path, folder, inputs=6, advance=lambda *count: counts.append(count))
    assert counts == [(done, 6) for done in range(1, 7)]
    assert certificate.passed, certificate.checks
    assert [check.name for check in certificate.checks] == LIBRARY_CHECKS
    assert certificate.sha256 == files_sha256([path])
    assert certificate.model_sha256 == files_sha256([folder / "manifest.json"])
    _, _, _, code, intervals, bits = (check.facts for check in certificate.checks)
    assert code["instructions"] > 100
    assert (intervals["values"], intervals["numbers"]) == (2, "without bounds")
    assert (bits["inputs"], bits["shapes"]) == (6, ["1x8", "2x4"])


@pytest.mark.slow
def test_every_target_has_the_same_digest(folder: Path, libraries: dict[str, Path]) -> None:
    digests = {
        verify(path, folder, inputs=4).checks[-1].facts["outputs_sha256"]
        for path in libraries.values()
    }
    assert len(digests) == 1


def test_a_folder(folder: Path) -> None:
    certificate = verify(folder)
    assert certificate.passed
    assert [check.name for check in certificate.checks] == ["digests", "tokenizer", "intervals"]
    assert set(certificate.checks[2].facts["bits"]) == {"emb", "pool"}


def test_one_bit(folder: Path, libraries: dict[str, Path], tmp_path: Path) -> None:
    changed = bytearray(libraries["none"].read_bytes())
    changed[len(changed) // 3] ^= 1
    (tmp_path / "changed.so").write_bytes(changed)
    (finding,) = _failed(verify(tmp_path / "changed.so", folder))["digests"]
    assert "parts were changed: " in finding
    copy = make_quantized().save(tmp_path / "changed.ibert")
    weights = bytearray((copy / "params.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "params.safetensors").write_bytes(weights)
    (finding,) = _failed(verify(copy))["digests"]
    assert "params.safetensors: its SHA-256 is not the one in manifest.json" in finding


def test_the_library_of_other_weights(libraries: dict[str, Path], tmp_path: Path) -> None:
    model = make_quantized()
    table = np.roll(model.parameters["emb.weight"], 1)
    other = replace(model, parameters={**model.parameters, "emb.weight": table})
    failed = _failed(verify(libraries["none"], other.save(tmp_path / "other.ibert"), inputs=4))
    assert set(failed) == {"made from the model", "same bits"}
    assert "integers of sentence_embedding differ" in failed["same bits"][0]
    info = replace(model.info, source_sha256="11" * 32)
    moved = replace(model, info=info).save(tmp_path / "moved.ibert")
    failed = _failed(verify(libraries["none"], moved, inputs=4))
    assert set(failed) == {"made from the model"}
    assert failed["made from the model"][0].startswith("info.source_sha256 is ")


@pytest.mark.slow
def test_the_library_of_another_tokenizer(folder: Path, tmp_path: Path) -> None:
    """Two words exchanged, and every digest of the library and of its tokenizer made right."""
    model = QuantizedModel.load(folder)
    *words, one, other = model.tokenizer["vocab.txt"].splitlines()
    files = {"vocab.txt": b"\n".join([*words, other, one])}
    info = replace(model.info, tokenizer_behaviour=behaviour(Tokenizer(files)))
    changed = replace(model, tokenizer=files, info=info)
    path = ibert.compile(changed, "host", [(1, 8)], runtime="none").export(tmp_path / "other.so")
    failed = _failed(verify(path, folder, inputs=2))
    assert set(failed) == {"tokenizer", "made from the model"}
    assert failed["tokenizer"][0].startswith("vocabulary: ")


def test_a_planted_float(folder: Path, tmp_path: Path) -> None:
    compiled = compiled_in_memory_once(QuantizedModel.load(folder), "x86-64", [(1, 8)])
    assert compiled.bare is not None
    planted = (
        "\n__attribute__((constructor)) static void planted(void) {"
        ' __asm__ volatile("addss %xmm0, %xmm0"); }\n'
    )
    bare = replace(compiled.bare, driver_c=compiled.bare.driver_c + planted)
    path = replace(compiled, bare=bare).export(tmp_path / "planted.so")
    (finding,) = _failed(verify(path, folder, inputs=2))["no floating point"]
    assert finding.startswith("planted at 0x") and finding.split()[-2:] == ["addss", "xmm0,xmm0"]


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize("runtime", ["none", "tvm"])
def test_a_planted_float_in_tir(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    """By a pass behind the check that the program is integers only; its integers stay the same."""
    import tvm_ffi
    from tvm import tirx

    def halved(store: tirx.BufferStore) -> tirx.BufferStore:
        kind = store.value.ty.dtype
        if str(kind) not in ("int8", "int32"):
            return store
        floats = store.value.astype("float64") * 0.5
        return tirx.BufferStore(store.buffer, (floats * 2.0).astype(str(kind)), store.indices)

    @tirx.transform.prim_func_pass(opt_level=0)
    def planted(func: tirx.PrimFunc, *_: object) -> tirx.PrimFunc:
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, halved)))

    for module in (lower, pipeline):
        original = module.kernel_passes
        monkeypatch.setattr(module, "kernel_passes", lambda d, o=original: [planted, *o(d)])
    compiled = ibert.compile(QuantizedModel.load(folder), "x86-64", [(1, 8)], runtime=runtime)
    path = compiled.export(tmp_path / "planted.so")
    findings = _failed(verify(path, folder, inputs=2))
    assert set(findings) == {"no floating point"}
    assert any(" of layer pool at 0x" in line for line in findings["no floating point"])


def test_a_planted_overflow(tmp_path: Path) -> None:
    """No storage type of the value holds it."""
    model = make_quantized()
    large = {**model.parameters, "emb.multiplier": np.array([2**31 - 1], np.int32)}
    path = replace(model, parameters=large).save(tmp_path / "wide.ibert")
    (finding,) = _failed(verify(path))["intervals"]
    assert "emb" in finding


def test_intervals_that_are_too_narrow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ibert_tvm.relay_passes.integer import ranges

    def narrow(*arguments: object, **options: object) -> ranges.RangeReport:
        report = original(*arguments, **options)
        details = {name: replace(value, high=value.low) for name, value in report.details.items()}
        return replace(report, details=details)

    original = ranges.analyse_ranges
    monkeypatch.setattr(ranges, "analyse_ranges", narrow)
    assert " leaves [" in _failed(verify(folder))["intervals"][0]


def test_code_with_and_without_floats(tmp_path: Path) -> None:
    target = get_target("x86-64")
    for name, body, wrong in (
        ("integer", "int f(int x) { return x * 3; }", False),
        ("float", "float f(float x, int y) { return x * y; }", True),
        ("helper", "double sin(double); void *f(void) { return (void *)sin; }", True),
    ):
        (tmp_path / f"{name}.c").write_text(body)
        command = ["cc", "-O2", "-shared", "-fPIC", "-fno-builtin", f"{name}.c", "-o", f"{name}.so"]
        subprocess.run(command, cwd=tmp_path, check=True)
        audit = audit_library(tmp_path / f"{name}.so", target)
        assert audit.instructions and bool(audit.findings) == wrong, audit.findings


@pytest.mark.parametrize(
    ("target", "line", "finding"),
    [
        ("x86-64", "rep stos QWORD PTR es:[rdi],rax", ""),
        ("x86-64", "cs nop WORD PTR [rax+rax*1+0x0]", ""),
        ("x86-64", "bnd mulss xmm0,xmm1", "f at 0x10: bnd mulss xmm0,xmm1"),
        ("x86-64", "{vex} vcvtneps2bf16 xmm0,xmm1", "f at 0x10: {vex} vcvtneps2bf16 xmm0,xmm1"),
        ("x86-64", "(bad)", "f at 0x10: no instruction: (bad)"),
        ("rpi4", "fadd\ts0, s1, s2", "f at 0x10: fadd s0, s1, s2"),
        ("rpi4", ".inst\t0x00000001 ; undefined", "f at 0x10: no instruction: "),
        ("armv7-neon", "vadd.f32\ts0, s0, s1", "f at 0x10: vadd.f32 s0, s0, s1"),
        ("armv7-neon", "vadd.i32\tq0, q0, q1", ""),
    ],
)
def test_lines_of_disassemblers(target: str, line: str, finding: str) -> None:
    audit = read_listing(f"0000000000000010 <f>:\n  10:\t{line}\n", get_target(target))
    assert audit.instructions == 1
    assert [f.replace("\t", " ").startswith(finding) for f in audit.findings] == [True] * bool(
        finding
    )


def test_no_code_at_all() -> None:
    assert read_listing("", get_target("x86-64")).findings == ("there is no code",)


def test_what_cannot_be_verified(folder: Path, libraries: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=r"^a library alone cannot be verified"):
        verify(libraries["none"])
    with pytest.raises(UsageError, match=r"^there is nothing at "):
        verify(folder / "x")


def test_the_command(
    ibert_command: Callable, folder: Path, libraries: dict[str, Path], tmp_path: Path
) -> None:
    output = tmp_path / "verify.json"
    words = ("verify", libraries["none"], "--model", folder, "--inputs", "4", "-o", output)
    outcome = ibert_command(*words)
    assert outcome.code == 0, outcome.stderr
    passed = [line.partition(": passed") for line in outcome.stdout.splitlines()[2:]]
    assert [name for name, found, _ in passed if found][:6] == LIBRARY_CHECKS
    document = json.loads(output.read_text())
    check_sealed(document)
    assert document["artefact_sha256"] == files_sha256([libraries["none"]])
    forged = {**document, "artefact_sha256": "0" * 64}
    with pytest.raises(DocumentError, match="it was changed"):
        check_sealed(forged)

    changed = bytearray(libraries["none"].read_bytes())
    changed[4096] ^= 1
    (tmp_path / "changed.so").write_bytes(changed)
    outcome = ibert_command("verify", tmp_path / "changed.so", *words[2:], "--json")
    assert outcome.code == 5
    assert outcome.document["passed"] is False
    assert json.loads(output.read_text())["passed"] is False
