"""Weights at an address that the program gives at run time: on a board, and mapped from a file."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.common.errors import TargetError, UsageError
from ibert_tvm.targets import get_target
from ibert_tvm.targets.aot.header import External
from ibert_tvm.targets.packages import PackageRunner
from tests.examples import examples
from tests.integration.whole_models import minilm
from tests.processes import run_captured
from tests.snapshots import Messages

from .packages import VOCABULARY, document, inputs_for, reference, small_bert
from .qemu_board import ROOT
from .tools import board, needs

SEQ_LEN = 8
SANITISED = ("-g", "-fsanitize=address,undefined", "-DIBERT_ANY_STACK")
IDS = [101, 205, 310, 102]


def _package(folder: Path, target: str, external: str, fetch_buffer: int | None = None) -> Path:
    compiled = ibert.compile(
        small_bert(),
        target=target,
        shapes=[(1, SEQ_LEN)],
        emit="c" if target == "c99" else "objects",
        external_weights=external,
        fetch_buffer=fetch_buffer,
    )
    return compiled.export(folder / "package")


@pytest.mark.slow
@pytest.mark.parametrize("external", ["all", "words", "fetch"])
@pytest.mark.parametrize("target", examples(["cortex-m0", "cortex-m4", "rv32imc"], "cortex-m4"))
def test_weights_at_an_address_are_bit_exact_on_a_board(
    tmp_path: Path, target: str, external: str
) -> None:
    board(target)
    package, work = _package(tmp_path, target, external), tmp_path / "work"
    work.mkdir()
    facts = document(package)
    apart = [weight for weight in facts["weights"] if "section" not in weight]
    assert [weight["shape"] for weight in apart if len(facts["weights"]) > len(apart)] == (
        [[VOCABULARY, 128]] if external == "words" else []
    )
    assert (package / "ibert_weights.bin").stat().st_size >= sum(w["bytes"] for w in apart)
    runner = PackageRunner(package, facts, work, get_target(target))
    inputs = inputs_for(small_bert().input_names, SEQ_LEN, 3, VOCABULARY)
    (output,) = runner.run(0, inputs).values()
    (expected,) = reference(small_bert(), inputs)
    np.testing.assert_array_equal(output, expected)


def _host_program(package: Path, source: Path, *flags: str) -> Path:
    """A program for this machine round a package of sources."""
    needs("gcc", "make")
    variables = [f"CFLAGS=-O1 -fno-strict-aliasing {' '.join(flags)}"]
    subprocess.run(["make", "-C", str(package), *variables], check=True, capture_output=True)
    program = package.parent / source.stem
    command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", *flags, f"-I{package}", "-o"]
    subprocess.run(
        [*command, str(program), str(source), f"-L{package}", "-libert_model"], check=True
    )
    return program


def _expected() -> list[int]:
    inputs = inputs_for(small_bert().input_names, SEQ_LEN, 0, VOCABULARY, len(IDS))
    inputs["input_ids"][0, : len(IDS)] = IDS
    inputs["token_type_ids"][:] = 0
    (expected,) = reference(small_bert(), inputs)
    return expected.reshape(-1).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("external", ["all", "fetch"])
def test_a_file_of_weights_on_this_machine(tmp_path: Path, external: str) -> None:
    """The example; a file with one other bit, or a shorter one, is refused."""
    package = _package(tmp_path, "c99", external)
    weights = package / "ibert_weights.bin"
    program = _host_program(package, ROOT / "examples" / "c" / "weights_file.c")
    run = [str(program), str(weights), *map(str, IDS)]
    done = run_captured(run, check=True)
    assert [int(line) for line in done.stdout.split()] == _expected()

    content = bytearray(weights.read_bytes())
    short, wrong = content[:-16], content[:-4000] + bytes([content[-4000] ^ 64]) + content[-3999:]
    unknown = "no weights were set, or they are not those of this model\n"
    not_read = (18, "weights could not be fetched\n") if external == "fetch" else (17, unknown)
    for content, (status, message) in ((short, not_read), (wrong, (17, unknown))):
        weights.write_bytes(content)
        done = run_captured(run)
        assert (done.returncode, done.stderr) == (status, message)


@pytest.mark.slow
def test_fetches_overlap_kernels_and_may_fail(tmp_path: Path) -> None:
    """The next piece is asked for before one is used; see ``fetched_weights.c`` for the rest."""
    package = _package(tmp_path, "c99", "fetch", fetch_buffer=4096)
    weights = package / "ibert_weights.bin"
    fetch = document(package)["fetch"]
    assert fetch["buffer"] == 4096 >= fetch["largest"]
    source = Path(__file__).with_name("fetched_weights.c")
    program = _host_program(package, source, *SANITISED)
    run = [str(program), str(weights), *map(str, IDS)]
    done = run_captured(run, check=True)
    events, values = done.stdout.splitlines()
    assert [int(value) for value in values.split()] == _expected()

    # Each piece but the last is followed by the start of the next, before it is used; between the
    # two come rows, each once: of the tables of words and of positions, and of their scales. The
    # kernel of positions reads nothing else.
    assert re.fullmatch(r"s(k*w(r+k?)?s)+k*wk+", events), events
    assert events.count("r") == 4 * len(IDS), events
    under_way = [events[:at].count("s") > events[:at].count("w") for at in _all(events, "k")]
    assert sum(under_way) > 0.8 * len(under_way), events

    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert run_captured(run).returncode == 17


@pytest.mark.record
@pytest.mark.parametrize("target", ["cortex-m4", "c99"])
def test_minilm_fetches_its_weights(target: str, tmp_path: Path) -> None:
    """22 MB, of which the arena holds two pieces; `c99` is run here, with the example."""
    board(target, run=target != "c99")
    model, length, ids = minilm(), 32, [101, 2009, 2003, 1037, 3231, 102]
    kind = "c" if target == "c99" else "objects"
    compiled = ibert.compile(
        model, target=target, shapes=[(1, length)], emit=kind, external_weights="fetch"
    )
    package = compiled.export(tmp_path / "package")
    assert (package / "ibert_weights.bin").stat().st_size > 22_000_000
    inputs = inputs_for(model.input_names, length, 0, VOCABULARY, len(ids))
    inputs["input_ids"][0, : len(ids)] = ids
    inputs["token_type_ids"][:] = 0
    (expected,) = reference(model, inputs)
    if target == "c99":
        program = _host_program(package, ROOT / "examples" / "c" / "weights_file.c")
        run = [str(program), str(package / "ibert_weights.bin"), *map(str, ids)]
        lines = run_captured(run, check=True).stdout.split()
        assert [int(line) for line in lines] == expected.reshape(-1).tolist()
        return
    facts, work = document(package), tmp_path / "work"
    work.mkdir()
    output = PackageRunner(package, facts, work, get_target(target)).run(0, inputs)
    np.testing.assert_array_equal(*output.values(), expected)


def _all(text: str, letter: str) -> list[int]:
    return [at for at, one in enumerate(text) if one == letter]


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


@pytest.mark.slow_cases(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "external"), [("cortex-m4", "layers"), ("armv7-neon", "all"), ("wasm32", "words")]
)
def test_external_weights_that_there_are_not(
    target: str, external: str, messages: Messages
) -> None:
    with messages.raises(UsageError):
        ibert.compile(small_bert(), target=target, shapes=[(1, 8)], external_weights=external)


@pytest.mark.parametrize(
    ("external", "fetch_buffer"), [("fetch", 4096), ("all", 4096), ("fetch", 0)]
)
def test_a_buffer_that_does_not_fit(external: str, fetch_buffer: int, messages: Messages) -> None:
    """Of a Cortex-M0, which takes 16 columns of 512 at a time."""
    with messages.raises((UsageError, TargetError)):
        ibert.compile(
            small_bert(),
            target="cortex-m0",
            shapes=[(1, 24)],
            external_weights=external,
            fetch_buffer=fetch_buffer,
        )
