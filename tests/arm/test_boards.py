"""A whole model on every ARM board, under its emulator: bit for bit the specification's integers.

The library is the very file that goes to the board. `armv6-softfloat` runs on an emulated processor
whose floating-point unit is taken out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

import ibert_tvm as ibert
from ibert_tvm.common.errors import UsageError
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.runtime import load_library
from ibert_tvm.runtime.library_file import read_metadata
from ibert_tvm.targets import TargetDescription, TargetError
from ibert_tvm.targets.catalogue import CATALOGUE
from ibert_tvm.targets.library_audit import audit_library
from ibert_tvm.targets.library_check import LibraryCheck
from ibert_tvm.targets.processors.cortex_m import NO_DOT_SCALAR
from tests.arm.small_bert import expected, inputs, small_bert
from tests.arm.tools import BOARDS, board, run_library
from tests.examples import examples
from tests.snapshots import Messages

pytestmark = pytest.mark.qemu

# Rows that no register tile divides; and one token, which leaves nearly all of a tile empty.
SHAPE = (2, 13)


@dataclass(frozen=True)
class Compiled:
    """A library for a board, and what was said when it was made."""

    target: TargetDescription
    path: Path
    check: LibraryCheck | None


# Kernels of every board are in test_board_kernels.py; one without floating-point unit is below.
@pytest.fixture(scope="module", params=examples(BOARDS, "rpi4"))
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    target = board(request.param)
    program = ibert.compile(small_bert(), target=target.name, shapes=[SHAPE], runtime="none")
    path = tmp_path_factory.mktemp(target.name) / "model.so"
    _, check = program.export_checked(path, require_load=True)
    return Compiled(target, path, check)


def assert_bit_exact(
    path: Path, target: TargetDescription, model: QuantizedModel, arrays: dict, **options: str
) -> None:
    arrays = {name: arrays[name] for name in model.input_names}
    outputs = run_library(path, target, arrays, **options)
    wanted = expected(model, arrays)
    assert len(outputs) == len(wanted) > 0
    for (name, got), want in zip(outputs.items(), wanted, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.representatives(2)
@pytest.mark.parametrize("tokens", [None, 7, 1, 0])
def test_every_output_is_bit_exact(compiled: Compiled, tokens: int | None) -> None:
    arrays = inputs(*SHAPE, seed=sum(SHAPE), tokens=tokens)
    assert_bit_exact(compiled.path, compiled.target, small_bert(), arrays)


def test_threads_give_the_same_bits(compiled: Compiled) -> None:
    """Under the emulator, as `ibert run --emulate --threads` starts them."""
    metadata = read_metadata(compiled.path)
    assert metadata.threads == compiled.target.machine.system.threads
    arrays = inputs(*SHAPE, seed=5, tokens=9)
    arrays = {name: arrays[name] for name in small_bert().input_names}
    if not metadata.threads:
        with pytest.raises(UsageError, match="cannot use 2 threads"):
            load_library(compiled.path, num_threads=2, emulate=True)
        return
    with load_library(compiled.path, num_threads=2, emulate=True) as library:
        outputs = library.run(**arrays, dequantize=False)
    wanted = expected(small_bert(), arrays)
    for output, want in zip(outputs.values(), wanted, strict=True):
        np.testing.assert_array_equal(output.values, want)


def test_it_was_loaded_before_it_was_said_to_be_done(compiled: Compiled) -> None:
    emulator = compiled.target.emulator
    assert compiled.check is not None and compiled.check.checked
    assert compiled.check.by == f"{emulator.program} -cpu {emulator.processor}"
    assert compiled.check.symbols > 1


def test_the_file_says_what_it_is_for(compiled: Compiled) -> None:
    metadata = read_metadata(compiled.path)
    assert metadata.target["name"] == compiled.target.name
    assert metadata.runtime == "none"
    assert metadata.required_cpu_features == compiled.target.required_features
    assert [(f.batch, f.seq_len) for f in metadata.functions] == [SHAPE]


def test_it_holds_no_floating_point_and_needs_libc_alone(compiled: Compiled) -> None:
    assert audit_library(compiled.path, compiled.target).findings == ()
    with compiled.path.open("rb") as stream:
        elf = ELFFile(stream)
        dynamic = elf.get_section_by_name(".dynamic")
        needed = {t.needed for t in dynamic.iter_tags() if t.entry.d_tag == "DT_NEEDED"}
        undefined = {
            symbol.name
            for symbol in elf.get_section_by_name(".dynsym").iter_symbols()
            if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name
        }
    assert all(re.fullmatch(r"libc\.so\.6|ld-linux[\w-]*\.so\.\d", name) for name in needed)
    known = r"mem(set|cpy|move)|__aeabi_mem\w+"
    if compiled.target.machine.system.threads:
        known += r"|pthread_\w+|sched_yield|sigfillset|__getauxval|_ITM_\w+"
        known += r"|__(register_atfork|cxa_finalize|gmon_start__|tls_get_addr)"
    if "tvm" in compiled.target.runtimes:  # what TVM's server calls asks for
        known += r"|open|read|close|uname|sysconf|getauxval|str(chr|str)"
    assert {name for name in undefined if not re.fullmatch(known, name)} == set()


@pytest.mark.slow
def test_softfloat_runs_on_a_processor_of_its_own_generation_too(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Cortex-A7 without its units would still take instructions of ARMv7."""
    target = board("armv6-softfloat")
    path = tmp_path_factory.mktemp("armv6") / "model.so"
    model = small_bert()
    ibert.compile(model, target=target.name, shapes=[(1, 5)], runtime="none").export(path)
    arrays = inputs(1, 5, seed=1)
    assert_bit_exact(path, target, model, arrays, processor="arm1136")


@pytest.mark.slow
def test_a_processor_that_lacks_what_the_target_needs_is_noticed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The emulated processor has what the target has, and no more: the gate is a real one."""
    target = board("armv7-neon")
    path = tmp_path_factory.mktemp("gate") / "model.so"
    model = small_bert()
    ibert.compile(model, target=target.name, shapes=[(1, 5)], runtime="none").export(path)
    arrays = {name: array for name, array in inputs(1, 5, seed=1).items()}
    arrays = {name: arrays[name] for name in model.input_names}
    with pytest.raises(TargetError) as caught:
        run_library(path, target, arrays, processor="cortex-a7,vfp=off,neon=off")
    assert "an illegal instruction (SIGILL)" in caught.value.why


@pytest.mark.slow
@pytest.mark.parametrize("name", examples(BOARDS[:3], "rpi4"))
def test_a_library_for_tvms_runtime_is_loaded_with_all_its_kernels(
    name: str, tmp_path: Path
) -> None:
    target = board(name)
    program = ibert.compile(small_bert(), target=name, shapes=[(1, 5)], runtime="tvm")
    assert program.runtime == "tvm"
    path, check = program.export_checked(tmp_path / "model.so", require_load=True)
    kernels = {k["name"] for f in program.metadata["functions"] for k in f["kernels"]}
    # The program itself, five symbols of ours, and every kernel.
    assert check is not None
    assert (check.checked, check.symbols) == (True, 6 + len(kernels))
    assert audit_library(path, target).findings == ()


def test_loading_checks_machine_and_features(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with messages.raises(TargetError):
        ibert.load_library(compiled.path)
    board_machine = "aarch64" if compiled.target.elf_machine == "EM_AARCH64" else "armv7l"
    monkeypatch.setattr("platform.machine", lambda: board_machine)
    monkeypatch.setattr("ibert_tvm.targets.host.cpu_features", lambda: frozenset({"fp"}))
    if compiled.target.required_features:
        with messages.raises(TargetError):
            ibert.load_library(compiled.path)


def test_the_public_way_to_run_it_here_gives_the_same(compiled: Compiled) -> None:
    model = small_bert()
    library = ibert.load_library(compiled.path, emulate=True)
    arrays = inputs(2, 9, seed=4)  # filled up to 13 tokens
    arrays = {name: arrays[name] for name in model.input_names}
    outputs = library.run(**arrays, dequantize=False)
    for output, want in zip(outputs.values(), expected(model, arrays), strict=True):
        np.testing.assert_array_equal(output.values, want)
    record = library.metadata.parameters[0]
    assert library.parameters[record.name].shape == record.shape


@pytest.mark.slow
def test_any_floating_point_would_have_been_a_library_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64-bit code that may use no floating-point or vector register at all, compiled once.

    The disassembly of the other libraries shows no floating point; here there is no instruction for
    it, so that any left in the program would be a call of a library function.
    """
    target = board("rpi4")
    bare = {**target.tvm_target, "mattr": ["-neon", "-fp-armv8"]}
    plain = replace(target, tvm_target=bare, dot=NO_DOT_SCALAR, vector_lanes=1, q15_multiply=())
    monkeypatch.setitem(CATALOGUE._built_in, target.name, plain)
    model = small_bert()
    program = ibert.compile(model, target=target.name, shapes=[(1, 5)], runtime="none")
    for name, kernel in program.bare.objects.items():
        path = tmp_path / f"{name}.o"
        path.write_bytes(kernel)
        assert audit_library(path, target).findings == ()
    path = program.export(tmp_path / "model.so", require_load=True)
    assert audit_library(path, target).findings == ()
    assert_bit_exact(path, target, model, inputs(1, 5, seed=1))
