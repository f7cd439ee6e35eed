"""Weights at an address that the program gives at run time: on a board, and mapped from a file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.common.errors import UsageError
from ibert_tvm.targets import get_target
from ibert_tvm.targets.aot.header import External
from ibert_tvm.targets.packages import PackageRunner
from tests.examples import examples
from tests.processes import run_captured
from tests.snapshots import Messages

from .packages import VOCABULARY, document, inputs_for, reference, small_bert
from .qemu_board import ROOT
from .tools import board, needs

SEQ_LEN = 8
IDS = [101, 205, 310, 102]


def _package(folder: Path, target: str, external: str) -> Path:
    compiled = ibert.compile(
        small_bert(),
        target=target,
        shapes=[(1, SEQ_LEN)],
        emit="c" if target == "c99" else "objects",
        external_weights=external,
    )
    return compiled.export(folder / "package")


@pytest.mark.slow
@pytest.mark.parametrize("external", ["all", "words"])
@pytest.mark.parametrize("target", examples(["cortex-m4", "rv32imc"], "cortex-m4"))
def test_weights_at_an_address_are_bit_exact_on_a_board(
    tmp_path: Path, target: str, external: str
) -> None:
    board(target)
    package, work = _package(tmp_path, target, external), tmp_path / "work"
    work.mkdir()
    facts = document(package)
    apart = [weight for weight in facts["weights"] if "offset" in weight]
    assert [weight["shape"] for weight in apart if len(facts["weights"]) > len(apart)] == (
        [[VOCABULARY, 128]] if external == "words" else []
    )
    assert (package / "ibert_weights.bin").stat().st_size >= sum(w["bytes"] for w in apart)
    runner = PackageRunner(package, facts, work, get_target(target))
    inputs = inputs_for(small_bert().input_names, SEQ_LEN, 3, VOCABULARY)
    (output,) = runner.run(0, inputs).values()
    (expected,) = reference(small_bert(), inputs)
    np.testing.assert_array_equal(output, expected)


@pytest.mark.slow
def test_a_mapped_file_of_weights_on_this_machine(tmp_path: Path) -> None:
    """The example; a file with one other bit, or a shorter one, is refused."""
    needs("gcc", "make")
    package, program = _package(tmp_path, "c99", "all"), tmp_path / "mapped"
    weights = package / "ibert_weights.bin"
    subprocess.run(["make", "-C", str(package)], check=True, capture_output=True)
    command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{package}", "-o", str(program)]
    command += [str(ROOT / "examples" / "c" / "mapped_weights.c"), f"-L{package}"]
    subprocess.run([*command, "-libert_model"], check=True)
    inputs = inputs_for(small_bert().input_names, SEQ_LEN, 0, VOCABULARY, len(IDS))
    inputs["input_ids"][0, : len(IDS)] = IDS
    inputs["token_type_ids"][:] = 0
    (expected,) = reference(small_bert(), inputs)
    run = [str(program), str(weights), *map(str, IDS)]
    done = run_captured(run, check=True)
    assert [int(line) for line in done.stdout.split()] == expected.reshape(-1).tolist()

    content = bytearray(weights.read_bytes())
    for wrong in (content[:-16], content[:-100] + bytes([content[-100] ^ 64]) + content[-99:]):
        weights.write_bytes(wrong)
        done = run_captured(run)
        assert done.returncode == 17
        assert done.stderr == "no weights were set, or they are not those of this model\n"


def test_sums_tell_two_wrong_words_apart() -> None:
    words = np.arange(1, 9, dtype="<u4") * 0x1F3D5B79
    upto = np.array([sum(map(int, words[: n + 1])) for n in range(8)], dtype=object)
    right = External.of(words.tobytes())
    assert right == External(32, (int(upto[-1]), int(upto.sum()) % 2**64))
    for first in range(8):
        for second in range(first):
            wrong = words.copy()
            wrong[[first, second]] = wrong[[second, first]]
            assert External.of(wrong.tobytes()) != right
            wrong = words.copy()
            wrong[[first, second]] ^= np.uint32(1 << 31)
            assert External.of(wrong.tobytes()) != right


@pytest.mark.parametrize(
    ("target", "external"), [("cortex-m4", "layers"), ("armv7-neon", "all"), ("wasm32", "words")]
)
def test_external_weights_that_there_are_not(
    target: str, external: str, messages: Messages
) -> None:
    with messages.raises(UsageError):
        ibert.compile(small_bert(), target=target, shapes=[(1, 8)], external_weights=external)
