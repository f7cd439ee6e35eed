"""A whole small encoder on microcontrollers: bit for bit, in little memory, without floats."""

from __future__ import annotations

import binascii
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ibert_tvm.common.integrity import write_manifest
from ibert_tvm.targets import get_target
from ibert_tvm.targets.bare_metal.verification import verify_package
from ibert_tvm.targets.library_audit import computes_floats, disassemble, parse
from ibert_tvm.targets.processors import PROCESSORS
from ibert_tvm.targets.toolchain import find_linker
from tests.commands import Ibert
from tests.examples import examples
from tests.processes import PATIENCE, run_captured, without_torch

from .packages import (
    VOCABULARY,
    assert_bit_exact,
    document,
    inputs_for,
    link_package,
    reference,
    run_package,
    small_bert,
)
from .qemu_board import FIRMWARE, HARNESS
from .tools import board, needs

SEQ_LEN = 32
MICROCONTROLLERS = tuple(
    sorted(one.name for one in PROCESSORS if one.system == "bare-metal" and one.emulator)
)
TARGETS = examples(MICROCONTROLLERS, "cortex-m4")
# Of each kind of instructions.
KINDS = ("cortex-m0", "cortex-m4", "cortex-m55", "rv32imc")
RAM, FLASH = 192 * 1024, 1024 * 1024
Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bert().save(tmp_path_factory.mktemp("small") / "small.ibert")


@pytest.fixture(scope="session")
def package(artefact: Path, tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compile through the command line; each package once."""
    from ibert_tvm.cli import main

    made: dict[tuple[str, str], Path] = {}

    def compile(target: str, emit: str = "objects") -> Path:
        board(target, run=target != "c99")
        if (target, emit) not in made:
            folder = tmp_path_factory.mktemp("packages") / f"{target}-{emit}"
            arguments = ["compile", str(artefact), "-o", str(folder), "--target", target]
            arguments += ["--seq-len", str(SEQ_LEN), "--flash", "1M", "--ram", "192K"]
            arguments += ["--prefix", "ibert"]
            assert main([*arguments, "--emit", emit]) == 0
            made[target, emit] = folder
        return made[target, emit]

    return compile


@pytest.mark.parametrize("tokens", [None, 7], ids=["full", "padded"])
@pytest.mark.parametrize("target", examples(MICROCONTROLLERS, *KINDS, otherwise="record"))
@pytest.mark.slow
@pytest.mark.slow_cases(2 * len(KINDS))
def test_small_bert_is_bit_exact_in_192_kb(
    package: Compile, tmp_path: Path, target: str, tokens: int | None
) -> None:
    """On the Cortex-M4 the floating-point unit is off, and one use of it would end the run."""
    folder = package(target)
    sizes = {"__ram_size": RAM}
    if target not in ("cortex-m55", "cortex-m85"):  # whose code memory is half a megabyte
        sizes["__code_size"] = FLASH
    elf = link_package(folder, tmp_path, symbols=sizes)
    quantized = small_bert()
    inputs = inputs_for(quantized.input_names, SEQ_LEN, 5, VOCABULARY, tokens)
    run = run_package(folder, elf, inputs, tmp_path)
    assert_bit_exact(quantized, inputs, run.outputs)


@pytest.mark.slow
def test_small_bert_on_the_memories_of_an_stm32f405(package: Compile, tmp_path: Path) -> None:
    folder = package("cortex-m4")
    elf = link_package(folder, tmp_path, board="stm32f405")
    quantized = small_bert()
    inputs = inputs_for(quantized.input_names, SEQ_LEN, 6, VOCABULARY)
    run = run_package(folder, elf, inputs, tmp_path, machine="netduinoplus2")
    assert_bit_exact(quantized, inputs, run.outputs)
    # Measured on the painted stack: the bound holds, and says something.
    bound = document(folder)["memory"]["ram"]["stack"]
    assert bound / 2 < run.stack_bytes <= bound + 512


@pytest.mark.parametrize(
    ("processor", "error"),
    [
        ("cortex-m4", ""),
        ("cortex-m33", ""),
        ("cortex-m33+nodsp", "compiled for cortex-m4: this processor lacks instructions"),
        ("cortex-m3", "compiled for cortex-m4: this processor lacks instructions"),
    ],
)
def test_projects_for_a_processor_that_lacks_instructions_are_refused(
    package: Compile, processor: str, error: str
) -> None:
    header = package("cortex-m4") / "ibert_model.h"
    command = ["arm-none-eabi-gcc", "-mthumb", f"-mcpu={processor}", "-fsyntax-only", str(header)]
    done = run_captured(command)
    assert (done.returncode == 0, error in done.stderr) == (not error, True), done.stderr
    assert run_captured([*command, "-DIBERT_ANY_PROCESSOR"]).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "flags"),
    examples(
        [
            ("cortex-m0", "-O2"),
            ("cortex-m4", "-O2"),
            ("cortex-m4", "-Os -flto"),
            ("cortex-m4", "-O2 -DIBERT_PLAIN_C"),
            ("cortex-m55", "-O2"),
            ("rv32imc", "-O2"),
        ],
        ("cortex-m4", "-O2"),
        unpack=True,
    ),
)
def test_c_sources_are_bit_exact(package: Compile, tmp_path: Path, target: str, flags: str) -> None:
    needs("make")
    folder = shutil.copytree(package(target, "c"), tmp_path / "package")
    archiver = find_linker(get_target(target))[0] + "-ar"  # knows of link-time optimisation
    command = ["make", "-C", str(folder), f"CFLAGS={flags} -Wextra -Werror", f"AR={archiver}"]
    subprocess.run(command, check=True, capture_output=True)
    elf = link_package(folder, tmp_path)
    quantized = small_bert()
    inputs = inputs_for(quantized.input_names, SEQ_LEN, 7, VOCABULARY, 20)
    run = run_package(folder, elf, inputs, tmp_path)
    assert_bit_exact(quantized, inputs, run.outputs)


_LEVELS = ("-O2", "-Os", "-O1", "-O3", "-Og", "-O0", "-O2 -fno-inline")


@pytest.mark.slow_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(("target", "emit"), [("cortex-m4", "c"), ("rv32imc", "c")])
def test_the_stack_of_c_sources_is_bounded_at_any_level(
    package: Compile, tmp_path: Path, target: str, emit: str
) -> None:
    """Along the whole chain of calls, or a function that takes more is refused."""
    folder = shutil.copytree(package(target, emit), tmp_path / "package")
    facts, description = document(folder), get_target(target)
    compiler = find_linker(description)
    sources = sorted(path.name for path in folder.iterdir() if path.suffix in (".c", ".S"))
    entries = [*(f["symbol"] for f in facts["functions"]), "ibert_run", "ibert_init"]
    refused = []
    for level in _LEVELS:
        flags = [*level.split(), "-std=c99", "-ffreestanding", "-fno-strict-aliasing"]
        done = run_captured([*compiler, *flags, "-fno-jump-tables", "-c", *sources], cwd=folder)
        if done.returncode != 0:
            assert "-Werror=stack-usage=" in done.stderr
            refused.append(level)
            continue
        assert done.stderr == ""
        objects = sorted(folder.glob("*.o"))
        found = verify_package(objects, folder / "ibert_model.o", entries, folder, description)
        assert found.stack.total <= facts["memory"]["ram"]["stack"], level
    assert refused == ["-O0"]
    kernels = [*compiler, "-std=c99", "-ffreestanding", "-c", "ibert_kernels.c"]
    assert run_captured([*kernels, "-O0", "-DIBERT_ANY_STACK"], cwd=folder).stderr == ""
    assert (
        "#error IBERT_STACK_BYTES holds for GCC: measure the stack, and define IBERT_ANY_STACK"
        in run_captured([*kernels, "-O2", "-D__clang__"], cwd=folder).stderr
    )


@pytest.mark.slow
def test_c99_in_big_endian_order(package: Compile, tmp_path: Path) -> None:
    needs("arm-none-eabi-gcc", "qemu-armeb")
    folder, program = package("c99", "c-arrays"), tmp_path / "program"
    sources = [str(path) for path in (*folder.glob("*.c"), HARNESS.with_name("big_endian.c"))]
    flags = ["-mbig-endian", "-Wl,--be8", "-mcpu=cortex-a7", "-marm", "-mfloat-abi=soft", "-O2"]
    flags += ["-std=gnu99", "-ffreestanding", "-fno-strict-aliasing", "-nostdlib", f"-I{folder}"]
    command = ["arm-none-eabi-gcc", *flags, *sources, "-o", str(program)]
    subprocess.run(command, check=True)
    quantized = small_bert()
    inputs = inputs_for(quantized.input_names, SEQ_LEN, 8, VOCABULARY)
    data = b"".join(inputs[name].astype(">i4").tobytes() for name in quantized.input_names)
    done = subprocess.run(["qemu-armeb", str(program)], input=data, capture_output=True, check=True)
    (expected,) = reference(quantized, inputs)
    assert done.stdout == expected.astype(expected.dtype.newbyteorder(">")).tobytes()


def test_the_example_firmware_prints_outputs(package: Compile, tmp_path: Path) -> None:
    needs("make")
    ids = [101, 205, 310, 102]
    command = ["make", "-C", str(FIRMWARE), "TARGET=cortex-m4", f"PACKAGE={package('cortex-m4')}"]
    command += [f"BUILD={tmp_path}", f"TOKENS={' '.join(map(str, ids))}", "run"]
    done = run_captured(command)
    assert done.returncode == 0, done.stderr
    quantized = small_bert()
    inputs = inputs_for(quantized.input_names, SEQ_LEN, 0, VOCABULARY, len(ids))
    inputs["input_ids"][0, : len(ids)] = ids
    inputs["token_type_ids"][:] = 0
    (expected,) = reference(quantized, inputs)
    first = " ".join(map(str, expected.reshape(-1)[:8]))
    assert re.search(
        rf"^sentence_embedding: 128 integers, scale \S+, "
        rf"crc32 {binascii.crc32(expected.tobytes()):#010x}: {first} \.\.\.$",
        done.stdout,
        re.MULTILINE,
    ), done.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_code_is_smaller_than_64_kb(package: Compile, target: str) -> None:
    flash = document(package(target))["memory"]["flash"]
    assert flash["code"] + flash["constants"] < 64 * 1024


@pytest.mark.slow_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_no_floating_point_in_the_linked_firmware(
    package: Compile, tmp_path: Path, target: str
) -> None:
    """The whole image, start-up code and the compiler's helpers with it."""
    elf = link_package(package(target), tmp_path)
    functions = list(parse(disassemble([elf], board(target))))
    has_vectors = "+mve" in get_target(target).llvm_features
    found = [
        f"{function.name}: {one.mnemonic}"
        for function in functions
        for one in function.instructions
        if computes_floats(one, board(target))
    ]
    assert found == []
    assert {"ibert_run", "Reset_Handler"} <= {function.name for function in functions}
    # The disassembler knows vector instructions.
    names = {one.mnemonic for function in functions for one in function.instructions}
    assert any(name.startswith("vml") for name in names) == has_vectors


def test_the_archive_needs_nothing_but_integer_helpers(package: Compile) -> None:
    folder = package("cortex-m4")
    names = run_captured(["arm-none-eabi-nm", str(folder / "libibert_model.a")], check=True).stdout
    defined = set(re.findall(r"^[0-9a-f]+ [A-Za-z] (\S+)$", names, re.MULTILINE))
    undefined = set(re.findall(r"^ +[Uwv] (\S+)$", names, re.MULTILINE)) - defined
    helpers = {"__divdi3", "__udivdi3", "__aeabi_ldivmod", "__aeabi_uldivmod"}
    assert undefined <= helpers
    assert not re.findall(r"^ +[wv] ", names, re.MULTILINE)
    assert not re.search(r"TVM|malloc|printf", names)


def test_the_header_and_the_document_agree(package: Compile) -> None:
    folder = package("cortex-m4")
    memory = document(folder)["memory"]
    header = (folder / "ibert_model.h").read_text()
    values = dict(re.findall(r"^#define (IBERT_\w+_BYTES) (\d+)", header, re.MULTILINE))
    assert int(values["IBERT_STACK_BYTES"]) == memory["ram"]["stack"]
    assert int(values["IBERT_ARENA_BYTES"]) == memory["ram"]["arena"]
    assert int(values["IBERT_RAM_BYTES"]) == memory["ram"]["total"] < RAM
    assert int(values["IBERT_FLASH_BYTES"]) == memory["flash"]["total"] < FLASH
    assert memory["ram"]["data"] == 0


def _earlier_package(folder: Path) -> Path:
    output = folder / "out"
    output.mkdir()
    (output / "ibert_model.json").write_text(json.dumps({"kind": "ibert bare-metal package"}))
    (output / "old").write_text("of an earlier version")
    write_manifest(output)
    (output / "old.o").write_text("what make left")
    return output


@pytest.mark.slow
def test_a_package_is_replaced_and_nothing_else_is_left(artefact: Path, tmp_path: Path) -> None:
    from ibert_tvm.cli import main

    board("cortex-m4")
    output = _earlier_package(tmp_path)
    arguments = ["compile", str(artefact), "-o", str(output), "--target", "cortex-m4"]
    assert main([*arguments, "--seq-len", "8"]) == 0
    assert sorted(path.name for path in output.iterdir()) == [
        "README.md",
        "ibert_model.json",
        "libsmall_model.a",
        "manifest.json",
        "small_model.h",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_too_little_ram_is_refused_with_numbers(
    artefact: Path, tmp_path: Path, ibert: Ibert
) -> None:
    board("cortex-m4")
    output = _earlier_package(tmp_path)
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    arguments = ["compile", str(artefact), "-o", str(output), "--target", "cortex-m4"]
    outcome = ibert(*arguments, "--seq-len", "32", "--ram", "16K", "--flash", "100K")
    assert outcome.code == 4
    text = outcome.stderr
    assert text.startswith(
        "error: the model needs more flash and RAM than there is\n"
        "  where: target 'cortex-m4', --flash 102400 --ram 16384\n"
        "  why: flash: "
    )
    assert re.search(
        r"RAM: \d+ bytes are needed, \d+ more than the 16384 there are: \d+ arena, \d+ stack, "
        r"0 variables; the arena is fullest in layer encoder\.layer\.[01]\.\S+ at batch 1, "
        r"32 tokens: \d+ ",
        text,
    ), text
    (advised,) = re.findall(r"shorter sequences \(--seq-len (\d+)\)", text)
    # What was there stays whole.
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert ibert(*arguments, "--seq-len", advised, "--ram", "16K").code == 0


@pytest.mark.parametrize("convention", ["soft", "softfp", "hard"])
def test_projects_of_either_floating_point_convention_link(
    package: Compile, tmp_path: Path, convention: str
) -> None:
    folder = package("cortex-m4")
    (tmp_path / "main.c").write_text(
        '#include "ibert_model.h"\n'
        "float real(float scale, int32_t value) { return scale * (float)value; }\n"
        "int main(void) { return ibert_run(0, 1, 32, 0, 0, 0, 0) + (int)real(2.0f, 1); }\n"
    )
    command = ["arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb", f"-mfloat-abi={convention}"]
    if convention != "soft":
        command.append("-mfpu=fpv4-sp-d16")
    command += ["-nostdlib", f"-I{folder}", str(tmp_path / "main.c"), f"-L{folder}"]
    command += ["-libert_model", "-lgcc", "-Wl,-emain", "-o", str(tmp_path / "main.elf")]
    done = run_captured(command)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_two_packages_link_into_one_program(
    package: Compile, artefact: Path, tmp_path: Path
) -> None:
    """Nothing of one takes the place of the other's; what both may share is there once."""
    from ibert_tvm.cli import main

    first, second = package("cortex-m4"), tmp_path / "second"
    arguments = ["compile", str(artefact), "-o", str(second), "--target", "cortex-m4"]
    assert main([*arguments, "--seq-len", "16"]) == 0
    (tmp_path / "main.c").write_text(
        '#include "ibert_model.h"\n#include "small_model.h"\n'
        "int main(void) {\n"
        "  return ibert_run(0, 1, 32, 0, 0, 0, 0) + small_run(0, 1, 16, 0, 0, 0, 0) +\n"
        "         (IBERT_FINGERPRINT == SMALL_FINGERPRINT);\n}\n"
    )
    command = ["arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb", "-nostdlib"]
    command += [f"-I{first}", f"-I{second}", str(tmp_path / "main.c"), f"-L{first}", f"-L{second}"]
    command += ["-libert_model", "-lsmall_model", "-lgcc", "-Wl,-emain"]
    done = run_captured([*command, "-o", str(tmp_path / "main.elf")])
    assert done.returncode == 0, done.stderr
    listed = run_captured(["arm-none-eabi-nm", str(tmp_path / "main.elf")], check=True).stdout
    names = {"ibert_weight_0", "small_weight_0", "ibert_run_b1_s32", "small_run_b1_s16"}
    assert names <= {*listed.split()}


_INTERRUPTED = """
import sys, time
import ibert_tvm.compiler as module
import ibert_tvm.targets.bare_metal.package as package
from ibert_tvm.cli import main
from ibert_tvm.targets import get_target

def compile(*arguments, **options):
    return module.CompiledModel(None, {}, {}, get_target("cortex-m4"), {}, bare=object())

def write_package(bare, metadata, description, folder, options):
    (folder / "libibert_model.a").write_bytes(b"half")
    print("writing", file=sys.stderr, flush=True)
    time.sleep(60)

module.compile, package.write_package = compile, write_package
arguments = ["compile", sys.argv[1], "-o", sys.argv[2], "--target", "cortex-m4"]
sys.exit(main([*arguments, "--seq-len", "32"]))
"""


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_behind(artefact: Path, tmp_path: Path) -> None:
    board("cortex-m4")
    output = _earlier_package(tmp_path)
    before = sorted(path.name for path in output.iterdir())
    arguments = [sys.executable, "-c", _INTERRUPTED, str(artefact), str(output)]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=without_torch())
    assert process.stderr is not None
    assert "writing\n" in iter(process.stderr.readline, "")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert sorted(path.name for path in output.iterdir()) == before
