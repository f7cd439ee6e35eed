"""Boards on the command line: `compile`, `run --emulate`, `targets` and `doctor`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ibert_tvm.relay_passes.integer.evaluate import evaluate
from tests.arm.small_bert import expected, inputs, small_bert
from tests.arm.tools import BOARDS, board
from tests.encoder.small_encoders import bert


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bert().save(tmp_path_factory.mktemp("artefact") / "small.ibert")


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch):
    """Make programs look as if they were not installed."""
    real = shutil.which

    def hide(*prefixes: str) -> None:
        def which(name: str, *args: Any, **kwargs: Any) -> str | None:
            return None if name.startswith(prefixes) else real(name, *args, **kwargs)

        monkeypatch.setattr("shutil.which", which)

    return hide


@pytest.mark.slow
@pytest.mark.qemu
def test_compile_says_that_the_library_was_loaded_and_run_runs_it(
    artefact: Path, tmp_path: Path, ibert, refused
) -> None:
    board("armv7-neon")
    library, given, got = (tmp_path / name for name in ("model.so", "in.npz", "out.npz"))
    words = ("compile", artefact, "--target", "armv7-neon", "--seq-len", 8, "-o", library)
    outcome = ibert(*words, "--require-load", "--json")
    assert outcome.code == 0, outcome.stderr
    document = outcome.document
    # TVM has no package for this processor.
    assert (document["runtime"], document["target"]) == ("none", "armv7-neon")
    check = document["load_check"]
    assert (check["checked"], check["by"]) == (True, "qemu-arm -cpu cortex-a7")
    assert check["symbols"] > 10

    arrays = inputs(1, 8, seed=2)
    arrays = {name: arrays[name] for name in small_bert().input_names}
    np.savez(given, **arrays)
    refused("run", library, "--inputs", given)
    assert ibert("run", library, "--inputs", given, "--emulate", "--integers", "-o", got).code == 0
    with np.load(got) as outputs:
        results = [outputs[name] for name in outputs.files if not name.endswith(".scale")]
    for result, want in zip(results, expected(small_bert(), arrays), strict=True):
        np.testing.assert_array_equal(result, want)


@pytest.mark.qemu
@pytest.mark.slow
def test_a_package_runs_on_its_emulated_board(tmp_path: Path, ibert, refused) -> None:
    board("cortex-m4")
    model = bert()
    folder = model.save(tmp_path / "small.ibert")
    package, given, got = (tmp_path / name for name in ("package", "in.npz", "out.npz"))
    words = ("--target", "cortex-m4", "--seq-len", "4,8", "--prefix", "small", "-o", package)
    assert ibert("compile", folder, *words).code == 0
    ids = np.array([[2, 7, 8, 3, 0], [2, 9, 3, 0, 0]])
    np.savez(given, input_ids=ids, attention_mask=ids != 0)
    run = ("run", package, "--integers", "-o", got)
    outcome = ibert(*run, "--emulate", "--inputs", given, "--json")
    assert outcome.code == 0, outcome.stderr
    assert outcome.document["device"] == "emulated board"
    name = model.info.outputs[0].name
    want = evaluate(
        model.program,
        {
            "input_ids": ids,
            "attention_mask": (ids != 0).astype(int),
            "token_type_ids": np.zeros_like(ids),
        },
        model.parameters,
    )[0]
    with np.load(got) as outputs:
        np.testing.assert_array_equal(outputs[name], want)
    texts = ("--text", "hello world", "--text", "big small hello world")
    assert ibert(*run, "--emulate", "--model", folder, *texts).code == 0
    other = small_bert().save(tmp_path / "other.ibert")
    refused(*run, "--inputs", given)
    refused(*run, "--emulate", *texts)
    refused(*run, "--emulate", *texts, "--model", other)
    (package / "README.md").write_text("changed")
    refused(*run, "--emulate", "--inputs", given, size=re.compile(r"(?<=says )\d+"))


@pytest.mark.slow
def test_without_emulator_compile_says_so_or_fails_if_it_must_not(
    artefact: Path, tmp_path: Path, ibert, refused, hide
) -> None:
    board("rpi4", run=False)
    hide("qemu-")
    library = tmp_path / "model.so"
    words = ["compile", artefact, "--target", "rpi4", "--seq-len", 8, "--runtime", "none"]
    words += ["-o", library]
    outcome = ibert(*words)
    assert outcome.code == 0, outcome.stderr
    assert (
        "library NOT loaded: no emulator to run code for target 'rpi4': this machine (x86_64) "
        "cannot run it by itself; install it (Debian: apt-get install qemu-user)"
    ) in outcome.stdout
    before = library.read_bytes()
    refused(*words, "--require-load")
    assert library.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.h", "model.so"]


def test_without_compiler_nothing_is_written(artefact: Path, tmp_path: Path, refused, hide) -> None:
    hide("arm-linux", "gcc", "cc", "clang")
    words = ("compile", artefact, "--target", "armv6-softfloat", "--seq-len", 8)
    refused(*words, "-o", tmp_path / "model.so")
    assert list(tmp_path.iterdir()) == []


def test_tvms_runtime_is_refused_where_there_is_none(
    artefact: Path, tmp_path: Path, refused
) -> None:
    words = ("compile", artefact, "--target", "armv7-neon", "--runtime", "tvm", "--seq-len", 8)
    refused(*words, "-o", tmp_path / "model.so")


@pytest.mark.slow
def test_a_library_for_tvms_runtime_is_not_emulated(
    artefact: Path, tmp_path: Path, ibert, refused
) -> None:
    library = tmp_path / "model.so"
    assert ibert("compile", artefact, "--runtime", "tvm", "--seq-len", 8, "-o", library).code == 0
    np.savez(tmp_path / "in.npz", input_ids=np.full((1, 8), 5))
    words = ("run", library, "--inputs", tmp_path / "in.npz", "--emulate")
    refused(*words)
    refused(*words, "--rpc", "board:9090")


def test_targets_lists_what_compiles_and_what_runs(ibert) -> None:
    for name in BOARDS:
        board(name)
    rows = {row["name"]: row for row in ibert("targets", "--json").document["targets"]}
    for name in BOARDS:
        row = rows[name]
        assert (row["available"], row["missing"], row["runs_missing"]) == (True, "", "")
        assert row["compiler"] and "qemu-" in row["runs"]
        assert row["runtimes"][0] == "none"
    lines = ibert("targets").stdout.splitlines()
    assert next(line.split()[-1] for line in lines if line.startswith("rpi4 ")) == "qemu-aarch64"


def test_doctor_lists_compilers_and_emulators(ibert, hide) -> None:
    for name in BOARDS:
        board(name)
    checks = {check["name"]: check for check in ibert("doctor", "--json").document["checks"]}
    compiler = checks["aarch64-linux-gnu-gcc"]
    assert compiler["state"] == "ok"
    assert compiler["found"].endswith("; for aarch64-dotprod, aarch64-i8mm, rpi4")
    assert checks["qemu-arm"]["state"] == checks["qemu-aarch64"]["state"] == "ok"

    hide("aarch64-linux-gnu", "qemu-aarch64")
    outcome = ibert("doctor", "--json")
    assert outcome.code == 0, "what ARM needs is optional"
    checks = {check["name"]: check for check in outcome.document["checks"]}
    compiler, emulator = checks["aarch64-linux-gnu-gcc"], checks["qemu-aarch64"]
    assert compiler["state"] == emulator["state"] == "missing"
    assert "gcc-aarch64-linux-gnu libc6-dev-arm64-cross" in compiler["todo"]
    assert emulator["todo"] == "install it (Debian: apt-get install qemu-user)"
