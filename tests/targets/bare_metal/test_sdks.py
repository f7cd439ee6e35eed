"""Packages in the real build systems of others, on machines that have these.

What each needs is named by a variable of the environment, and compilers and Python are those of the
path, as that system sets them up. docs/bare-metal.md says with which versions this was last done.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.compiler import CompiledModel
from ibert_tvm.targets.bare_metal import PackageOptions
from ibert_tvm.targets.bare_metal.options import BUILD_SYSTEMS
from tests.arm.packages import VOCABULARY, inputs_for, reference, small_bert
from tests.arm.tools import needs
from tests.processes import run_captured
from tests.targets.bare_metal.arduino_recipes import Core

pytestmark = pytest.mark.record

Package = Callable[[str, str], Path]
_RUN = """\
#include <string.h>
#include "tiny_model.h"
static TINY_ALIGNED uint8_t arena[TINY_ARENA_BYTES];
static tiny_context context;
static int32_t output[sizeof expected / sizeof *expected];
static const char *run(void) {
    int32_t status = tiny_init(&context, TINY_ABI_VERSION, TINY_FINGERPRINT, arena, sizeof arena);
    if (status == TINY_OK)
        status = tiny_run_b1_s8(&context, input_ids, sizeof input_ids, attention_mask,
                                sizeof attention_mask, token_type_ids, sizeof token_type_ids,
                                output, sizeof output);
    if (status != TINY_OK) return tiny_strerror(status);
    return memcmp(output, expected, sizeof expected) ? "outputs differ" : "outputs equal";
}
"""


def _needed(name: str, what: str) -> Path:
    """The folder or file that a variable of the environment names; skip the test without it."""
    value = os.environ.get(name)
    if not value:
        pytest.skip(f"set {name}: {what}")
    return Path(value)


def _run(*command: object, **environment: str) -> str:
    done = run_captured([*map(str, command)], env={**os.environ, **environment})
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def model() -> ibert.QuantizedModel:
    """One layer, which fits into 496 KB of flash with a program round it."""
    return small_bert(1)


@pytest.fixture(scope="module")
def program(model: ibert.QuantizedModel) -> str:
    """Functions in C that run the model on a text and compare its output."""
    inputs = inputs_for(["input_ids", "attention_mask", "token_type_ids"], 8, 5, VOCABULARY)
    (output,) = reference(model, inputs)
    arrays = {**inputs, "expected": output.astype(np.int32)}
    assert output.dtype == np.int32
    lines = [
        f"static const int32_t {name}[] = {{{', '.join(map(str, array.ravel()))}}};"
        for name, array in arrays.items()
    ]
    return "\n".join(["#include <stdint.h>", *lines, _RUN])


@pytest.fixture(scope="module")
def package(model: ibert.QuantizedModel, tmp_path_factory: pytest.TempPathFactory) -> Package:
    @functools.cache
    def compiled(target: str, kernels: str) -> CompiledModel:
        return ibert.compile(model, target=target, shapes=[(1, 8)], prefix="tiny", emit=kernels)

    @functools.cache
    def build(target: str, emit: str) -> Path:
        systems = [name for name in BUILD_SYSTEMS if emit == "c-arrays" or name != "arduino"]
        options = PackageOptions(emit, build_systems=tuple(systems))
        bare = compiled(target, "objects" if emit == "objects" else "c")
        return bare.export(tmp_path_factory.mktemp("package") / "tiny", options)

    return build


_FORMS = [("cortex-m3", "objects"), ("cortex-m3", "c"), ("c99", "c-arrays")]


@pytest.mark.parametrize(("target", "emit"), _FORMS)
def test_zephyr(package: Package, program: str, tmp_path: Path, target: str, emit: str) -> None:
    _needed("ZEPHYR_BASE", "a Zephyr workspace, with west on the path and a toolchain set")
    needs("cmake", "ninja", "dtc", "qemu-system-arm")
    source, build = tmp_path / "app", tmp_path / "build"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\n"
        "find_package(Zephyr REQUIRED HINTS $ENV{ZEPHYR_BASE})\n"
        "project(app)\ntarget_sources(app PRIVATE main.c)\n"
    )
    (source / "prj.conf").write_text("CONFIG_TINY_MODEL=y\nCONFIG_MAIN_STACK_SIZE=4096\n")
    (source / "main.c").write_text(
        "#if __has_include(<zephyr/kernel.h>)\n#include <zephyr/kernel.h>\n#else\n"
        "#include <zephyr.h>\n#include <sys/printk.h>\n#endif\n"
        f'{program}\nvoid main(void) {{ printk("%s\\n", run()); k_busy_wait(1); }}\n'
    )
    module = package(target, emit)
    _run("cmake", "-GNinja", "-S", source, "-B", build, "-DBOARD=mps2_an385",
         f"-DZEPHYR_EXTRA_MODULES={module}")  # fmt: skip
    said = _run("ninja", "-C", build)
    assert not re.findall(r".*ibert.*orphan.*|.*orphan.*ibert.*|.*tiny_\w+\.[cSh]:.*", said)
    command = ["qemu-system-arm", "-machine", "mps2-an385", "-nographic", "-vga", "none"]
    ran = run_captured(["timeout", "20", *command, "-kernel", f"{build}/zephyr/zephyr.elf"])
    assert "outputs equal" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.parametrize("emit", ["objects", "c", "c-arrays"])
def test_esp_idf(package: Package, program: str, tmp_path: Path, emit: str) -> None:
    """Component and program compile for the ESP32-C3, and weights have a place in flash."""
    _needed("IDF_PATH", "ESP-IDF, with what its export.sh sets")
    needs("cmake", "ninja")
    component = package("rv32imc", emit)
    source, build = tmp_path / "app", tmp_path / "build"
    (source / "main").mkdir(parents=True)
    (source / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.22)\nset(EXTRA_COMPONENT_DIRS {component})\n"
        "include($ENV{IDF_PATH}/tools/cmake/project.cmake)\n"
        "idf_build_set_property(MINIMAL_BUILD ON)\nproject(app)\n"
    )
    (source / "main" / "CMakeLists.txt").write_text(
        "idf_component_register(SRCS main.c PRIV_REQUIRES tiny)\n"
    )
    main = f"#include <stdio.h>\n{program}\nvoid app_main(void) {{ puts(run()); }}\n"
    (source / "main" / "main.c").write_text(main)
    python = Path(os.environ.get("IDF_PYTHON_ENV_PATH", "/usr")) / "bin" / "python"
    _run("cmake", "-GNinja", "-S", source, "-B", build, "-DIDF_TARGET=esp32c3",
         "-DPYTHON_DEPS_CHECKED=1", f"-DPYTHON={python}")  # fmt: skip
    script = build / "esp-idf/esp_system/ld/sections.ld"
    _run("ninja", "-C", build, script)  # which compiles all that is linked, and runs ldgen.py
    archive = (
        component / "libtiny_model.a" if emit == "objects" else build / "esp-idf/tiny/libtiny.a"
    )
    sections = _run("riscv32-esp-elf-objdump", "-h", archive)
    constants = re.search(r"\.flash\.rodata :.*?> flash_rodata_seg", script.read_text(), re.DOTALL)
    assert constants and ("(.ibert.weights" in constants[0]) == (emit != "c-arrays")
    assert (".ibert.weights" in sections) == (emit != "c-arrays")


@pytest.mark.parametrize("target", ["cortex-m4", "c99"])
def test_arduino(package: Package, program: str, tmp_path: Path, target: str) -> None:
    """A sketch for the Metro M4 (SAMD51) links without a warning, with weights in flash."""
    core = _needed("ARDUINO_CORE", "the folder of Adafruit's core for SAMD")
    tools = _needed("ARDUINO_TOOLS", "the folder of its tools, as NAME/VERSION")
    needs("arm-none-eabi-gcc")
    library = package(target, "c-arrays")
    sketch, build = tmp_path / "sketch", tmp_path / "build"
    sketch.mkdir()
    build.mkdir()
    (sketch / "sketch.ino.cpp").write_text(
        f"#include <Arduino.h>\n{program}\nvoid setup() {{ Serial.println(run()); }}\n"
        "void loop() {}\n"
    )
    linked, warnings = Core(core, tools, "adafruit_metro_m4", build).build_sketch(sketch, library)
    assert not warnings
    sizes = dict(re.findall(r"^(\.\w+)\s+(\d+)", _run("arm-none-eabi-size", "-A", linked), re.M))
    assert int(sizes[".text"]) > 300_000 and int(sizes[".data"]) < 1_000


@pytest.mark.parametrize("target", ["cortex-m4", "c99"])
def test_platformio(package: Package, tmp_path: Path, target: str) -> None:
    """PlatformIO reads both descriptions of the library, and packs what they name."""
    needs("platformio")
    library = package(target, "c-arrays")
    packed = tmp_path / "library.tar.gz"
    _run("platformio", "pkg", "pack", "-o", packed, library, HOME=str(tmp_path))
    names = _run("tar", "tzf", packed).split()
    assert {"library.json", "library.properties", "src/tiny_model.h", "tiny_model.h"} <= {*names}
    (library / "library.json").rename(tmp_path / "library.json")
    try:
        _run("platformio", "pkg", "pack", "-o", packed, library, HOME=str(tmp_path))
    finally:
        (tmp_path / "library.json").rename(library / "library.json")


@pytest.mark.parametrize(
    ("target", "emit"), [("c99", "c-arrays"), ("cortex-m4", "objects"), ("cortex-m4", "c")]
)
def test_cmsis_pack(package: Package, target: str, emit: str) -> None:
    schema = _needed("CMSIS_PACK_SCHEMA", "PACK.xsd of Open-CMSIS-Pack-Spec")
    needs("xmllint")
    (description,) = package(target, emit).glob("*.pdsc")
    _run("xmllint", "--noout", "--schema", schema, description)
