"""The shared library: what it exports, what it needs, and how a failed export leaves things."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

import ibert_tvm as ibert
from ibert_tvm.common.errors import OutputError
from ibert_tvm.common.file_seal import Part, append_seal
from ibert_tvm.targets import TargetError, get_target
from ibert_tvm.targets.aot.c_source import kernels_source
from ibert_tvm.targets.aot.library import api_functions, exported_symbols
from ibert_tvm.targets.aot.objects import LAUNCH, check_undefined
from ibert_tvm.targets.elf import ELF
from ibert_tvm.targets.library_audit import audit_library, disassemble, parse
from ibert_tvm.targets.linking import THREAD_FUNCTIONS
from ibert_tvm.targets.toolchain import find_linker
from tests.processes import run_captured
from tests.snapshots import Messages

# What TVM's server on a board calls.
_FOR_SERVERS = {f"__tvm_ffi_ibert_{name}" for name in ("board", "call", "parameters", "threads")}


def symbols(path: Path, table: str, defined: bool) -> set[str]:
    with path.open("rb") as stream:
        return {
            symbol.name
            for symbol in ELFFile(stream).get_section_by_name(table).iter_symbols()
            if symbol.name and (symbol["st_shndx"] != "SHN_UNDEF") == defined
        }


def test_it_exports_its_interface_and_nothing_else(compiled, library_path: Path) -> None:
    exported = symbols(library_path, ".dynsym", defined=True)
    assert exported == set(exported_symbols(compiled.bare, compiled.target))
    assert exported - {*api_functions(compiled.bare), "ibert_metadata", "ibert_weights"} == {
        *THREAD_FUNCTIONS,
        LAUNCH,
        *_FOR_SERVERS,
    }
    declared = library_path.with_suffix(".h").read_text()
    assert all(
        f" {name}(" in declared or f"*{name}(" in declared for name in api_functions(compiled.bare)
    )


def test_it_needs_nothing_but_the_c_library(library_path: Path) -> None:
    needs = symbols(library_path, ".dynsym", defined=False)
    threads = {"sched_yield", "sigfillset", "__tls_get_addr", "__register_atfork"}
    crt = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__"}
    server = {"open", "read", "close", "uname", "sysconf", "getauxval", "strchr", "strstr"}
    needs -= {"memcpy", "memmove", "memset", "__cxa_finalize", *threads, *crt, *server}
    assert {name for name in needs if not name.startswith("pthread_")} == set()
    with library_path.open("rb") as stream:
        elf = ELFFile(stream)
        needed = {
            tag.needed
            for tag in elf.get_section_by_name(".dynamic").iter_tags()
            if tag.entry.d_tag == "DT_NEEDED"
        }
    assert needed <= {"libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"}


def test_nothing_of_tvm_is_left(library_path: Path) -> None:
    names = symbols(library_path, ".symtab", defined=True)
    assert {name for name in names if "tvm" in name.lower()} <= {
        LAUNCH,
        "__tvm_parallel_lambda",
        *_FOR_SERVERS,
    }
    kernels = {name for name in names if name.startswith("ibert_kernel_")}
    assert len(kernels) > 5


def test_no_instruction_computes_with_floats(library_path: Path) -> None:
    assert audit_library(library_path, get_target("host")).findings == ()


def test_kernels_need_little_stack(library_path: Path) -> None:
    """Large buffers lie in the arena; threads of other C libraries have 128 KB."""
    frames = [
        int(one.operands.removeprefix("rsp,"), 0)
        for function in parse(disassemble([library_path], get_target("host")))
        for one in function.instructions
        if one.mnemonic == "sub" and one.operands.startswith("rsp,0x")
    ]
    assert 0 < max(frames) < 32 * 1024


def test_every_object_holds_its_kernel_alone(compiled) -> None:
    import io

    for symbol, data in compiled.bare.objects.items():
        elf = ELFFile(io.BytesIO(data))
        functions = {
            entry.name
            for entry in elf.get_section_by_name(".symtab").iter_symbols()
            if entry["st_info"]["type"] == "STT_FUNC"
        }
        assert functions <= {symbol, "__tvm_parallel_lambda"}
        assert set(ELF.undefined(data)) <= {"memcpy", "memmove", "memset", LAUNCH}


def test_the_driver_compiles_without_a_warning(compiled, tmp_path: Path) -> None:
    (tmp_path / "ibert_model.h").write_text(compiled.bare.header)
    (tmp_path / "driver.c").write_text(compiled.bare.driver_c)
    strict = [
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Wconversion",
        "-Wshadow",
        "-Wcast-align",
        "-Wstrict-prototypes",
        "-Wmissing-prototypes",
        "-Wundef",
        "-Werror",
    ]
    linker = find_linker(compiled.target)
    for standard in ("c99", "c11", "c17"):
        command = [*linker, f"-std={standard}", "-ffreestanding", "-O2", *strict]
        subprocess.run([*command, "-c", "driver.c"], cwd=tmp_path, check=True)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("example", ["c/embed.c", "cpp/embed.cpp"])
def test_the_examples_build_and_run(library_path: Path, tmp_path: Path, example: str) -> None:
    source = Path(__file__).parents[3] / "examples" / example
    compiler = ["g++", "-std=c++17"] if source.suffix == ".cpp" else ["gcc", "-std=c11"]
    program = tmp_path / "embed"
    command = [*compiler, "-O2", "-Wall", "-Wextra", "-Werror", f"-I{library_path.parent}"]
    command += [str(source), str(library_path), "-pthread", "-o", str(program)]
    subprocess.run(command, check=True)
    done = run_captured([program, "7", "21", "60"])
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 9
    wrong = run_captured([program, "100000"])
    assert wrong.returncode == 1
    assert "an input holds a value that the model does not accept" in wrong.stderr
    many = run_captured([program, *["1"] * 99])
    assert many.returncode == 1
    assert "no function was compiled for this batch size and sequence length" in many.stderr
    assert subprocess.run([program], capture_output=True, check=False).returncode == 2


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("undefined", ["__TVMBackendParallelLaunch", "__mulsf3"])
def test_a_kernel_that_calls_something_else_is_refused(
    compiled, undefined: str, messages: Messages
) -> None:
    target = replace(compiled.target, name="a-target")
    with messages.raises(TargetError):
        check_undefined("ibert_kernel_x", ["memcpy", undefined], target)
    check_undefined("ibert_kernel_x", ["memset", undefined], target, provided=[undefined])


def test_a_header_that_somebody_wrote_is_kept(compiled, tmp_path: Path, messages: Messages) -> None:
    header = tmp_path / "model.h"
    header.write_text("int mine;\n")
    with messages.raises(OutputError):
        compiled.export(tmp_path / "model.so")
    assert header.read_text() == "int mine;\n"
    assert [path.name for path in tmp_path.iterdir()] == ["model.h"]


def test_a_library_that_cannot_be_linked_leaves_the_old_one(
    compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.so"
    path.write_text("the old one")
    append_seal(path, [Part("all", 0, len("the old one"))])
    broken = replace(compiled, bare=replace(compiled.bare, driver_c="#error broken\n"))
    with pytest.raises(TargetError, match=r"^cannot compile driver.c\n"):
        broken.export(path)
    assert path.read_bytes().startswith(b"the old one")
    assert [file.name for file in tmp_path.iterdir()] == ["model.so"]


def test_metadata_say_how_to_call_it(compiled, library_path: Path) -> None:
    with library_path.open("rb") as stream:
        content = ELFFile(stream).get_section_by_name(".ibert.metadata").data()
    document = json.loads(content)
    assert (document["runtime"], document["abi_version"], document["alignment"]) == ("none", 3, 64)
    assert [f["symbol"] for f in document["functions"]] == [
        f.symbol for f in compiled.bare.functions
    ]
    for listed, function in zip(document["functions"], compiled.bare.functions, strict=True):
        assert [k["layer"] for k in listed["kernels"]] == [call.layer for call in function.calls]


def test_only_known_forms_are_compiled(quantized, messages: Messages) -> None:
    for emit, runtime in (("asm", "none"), ("c", "tvm")):
        with messages.raises(ibert_errors().UsageError):
            ibert.compile(quantized, "host", [(1, 8)], runtime=runtime, emit=emit)


def ibert_errors():
    from ibert_tvm.common import errors

    return errors


def test_instructions_of_a_processor_cannot_be_written_in_c(compiled) -> None:
    model = compiled.bare
    with pytest.raises(TargetError) as caught:
        kernels_source(model)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("a kernel cannot be written in C: it uses ")
    assert lines[2:] == [
        "  why: C99 has no word for that",
        "  what to do: compile with emit='c', which schedules kernels for any processor",
    ]
