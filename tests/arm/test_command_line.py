"""Boards on the command line: `compile`, `run --emulate`, `targets` and `doctor`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ibert_tvm.cli import main
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from tests.arm.small_bert import expected, inputs, small_bert
from tests.arm.tools import BOARDS, board
from tests.encoder.small_encoders import bert


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bert(layers=1).save(tmp_path_factory.mktemp("artefact") / "small.ibert")


class Outcome:
    """What one command printed and returned."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        self.code, self.stdout, self.stderr = code, stdout, stderr

    @property
    def document(self) -> Any:
        return json.loads(self.stdout)


@pytest.fixture
def ibert(capfd: pytest.CaptureFixture[str]):
    def call(*arguments: object) -> Outcome:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        return Outcome(code, *capfd.readouterr())

    return call


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
    artefact: Path, tmp_path: Path, ibert
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
    arrays = {name: arrays[name] for name in small_bert(layers=1).input_names}
    np.savez(given, **arrays)
    refused = ibert("run", library, "--inputs", given)
    assert refused.code == 4
    assert "under an emulator (--emulate)" in refused.stderr
    assert ibert("run", library, "--inputs", given, "--emulate", "--integers", "-o", got).code == 0
    with np.load(got) as outputs:
        results = [outputs[name] for name in outputs.files if not name.endswith(".scale")]
    for result, want in zip(results, expected(small_bert(layers=1), arrays), strict=True):
        np.testing.assert_array_equal(result, want)


@pytest.mark.qemu
@pytest.mark.slow
def test_a_package_runs_on_its_emulated_board(tmp_path: Path, ibert) -> None:
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
    for words, message in (
        (
            ("--inputs", given),
            f"{package} is a package for a microcontroller\n"
            "  why: it does not run on this machine by itself\n"
            "  what to do: give --emulate, to run it on its emulated board\n",
        ),
        (
            ("--emulate", *texts),
            f"texts were given to a package alone: {package}\n"
            "  why: it holds no tokenizer\n"
            "  what to do: give the NAME.ibert folder that it was compiled from, with --model; or "
            "token ids, with --inputs FILE.npz\n",
        ),
        (
            ("--emulate", *texts, "--model", small_bert(layers=1).save(tmp_path / "other.ibert")),
            "the two do not belong together\n"
            f"  where: {package} and {tmp_path / 'other.ibert'}\n"
            "  why: they say different sources\n"
            "  what to do: give the NAME.ibert folder that the package was compiled from, with "
            "--model\n",
        ),
    ):
        refused = ibert(*run, *words)
        assert (refused.code, refused.stderr) == (2, f"error: {message}")
    (package / "README.md").write_text("changed")
    refused = ibert(*run, "--emulate", "--inputs", given)
    assert (refused.code, "is damaged" in refused.stderr) == (3, True)


@pytest.mark.slow
def test_without_emulator_compile_says_so_or_fails_if_it_must_not(
    artefact: Path, tmp_path: Path, ibert, hide
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
    outcome = ibert(*words, "--require-load")
    assert outcome.code == 4
    assert outcome.stdout == ""
    assert outcome.stderr == (
        "error: no emulator to run code for target 'rpi4'\n"
        "  where: PATH (looked for qemu-aarch64)\n"
        "  why: this machine (x86_64) cannot run it by itself\n"
        "  what to do: install it (Debian: apt-get install qemu-user)\n"
    )
    assert library.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.h", "model.so"]


def test_without_compiler_nothing_is_written(artefact: Path, tmp_path: Path, ibert, hide) -> None:
    hide("arm-linux", "gcc", "cc", "clang")
    library = tmp_path / "model.so"
    words = ("compile", artefact, "--target", "armv6-softfloat", "--seq-len", 8, "-o", library)
    outcome = ibert(*words)
    assert outcome.code == 4
    assert outcome.stderr == (
        "error: no C compiler to link for target 'armv6-softfloat'\n"
        "  where: PATH (looked for arm-linux-gnueabi-gcc)\n"
        "  why: the library's weights are assembled and linked by the target's C compiler\n"
        "  what to do: install it (Debian: apt-get install gcc-arm-linux-gnueabi "
        "libc6-dev-armel-cross), or set IBERT_CC_ARMV6_SOFTFLOAT\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_tvms_runtime_is_refused_where_there_is_none(artefact: Path, tmp_path: Path, ibert) -> None:
    words = ("compile", artefact, "--target", "armv7-neon", "--runtime", "tvm", "--seq-len", 8)
    outcome = ibert(*words, "-o", tmp_path / "model.so")
    assert outcome.code == 4
    assert outcome.stderr == (
        "error: no runtime 'tvm' for target 'armv7-neon'\n"
        "  where: --runtime\n"
        "  why: there is no package of TVM for this processor, so nothing could load the library, "
        "nor could it be checked here\n"
        "  what to do: use --runtime none: a library with a plain C interface, which needs "
        "nothing but libc\n"
    )


@pytest.mark.slow
def test_a_library_for_tvms_runtime_is_not_emulated(artefact: Path, tmp_path: Path, ibert) -> None:
    library = tmp_path / "model.so"
    assert ibert("compile", artefact, "--seq-len", 8, "-o", library).code == 0
    np.savez(tmp_path / "in.npz", input_ids=np.full((1, 8), 5))
    outcome = ibert("run", library, "--inputs", tmp_path / "in.npz", "--emulate")
    assert outcome.code == 4
    assert outcome.stderr == (
        f"error: the library {library} cannot be run under an emulator\n"
        "  why: it is one for TVM's runtime, of which there is only this machine's here\n"
        "  what to do: compile it with --runtime none, or run it on a board (--rpc)\n"
    )
    outcome = ibert(
        *("run", library, "--inputs", tmp_path / "in.npz", "--emulate", "--rpc", "board:9090")
    )
    assert outcome.code == 2
    assert "both --emulate and --rpc were given" in outcome.stderr


def test_targets_lists_what_compiles_and_what_runs(ibert) -> None:
    for name in BOARDS:
        board(name)
    rows = {row["name"]: row for row in ibert("targets", "--json").document["targets"]}
    for name in BOARDS:
        row = rows[name]
        assert (row["available"], row["missing"], row["runs_missing"]) == (True, "", "")
        assert row["compiler"] and "qemu-" in row["runs"]
        assert row["runtimes"][-1] == "none"
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
