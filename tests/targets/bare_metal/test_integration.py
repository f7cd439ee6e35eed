"""Packages in the build systems of others, each in its own convention.

CMake and pkg-config are the real ones. Zephyr's and ESP-IDF's functions are stood in for by a few
lines of CMake that do what these do; Arduino and CMSIS-Pack by a build of what their files name.
`test_sdks` does the same with the real ones, where a machine has them.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

import ibert_tvm as ibert
from ibert_tvm.common.errors import LibraryError, UsageError
from ibert_tvm.targets.bare_metal import PackageOptions, read_package
from ibert_tvm.targets.bare_metal.document import FileNames
from ibert_tvm.targets.bare_metal.integration import check_build_system, write_integration
from ibert_tvm.targets.bare_metal.options import BUILD_SYSTEMS
from tests.arm.packages import small_bert
from tests.arm.tools import needs
from tests.processes import run_captured
from tests.small_package import small_package
from tests.snapshots import Messages

_MAIN = """\
#include "tiny_model.h"
static TINY_ALIGNED uint8_t arena[TINY_ARENA_BYTES];
static tiny_context context;
int main(void) {
    int status = tiny_init(&context, TINY_ABI_VERSION, TINY_FINGERPRINT, arena, sizeof arena);
    return status + (tiny_run(0, 1, 8, 0, 0, 0, 0) != TINY_ERROR_NULL_POINTER);
}
"""
# What the functions of the two systems do with their arguments, as far as a package uses them.
_ZEPHYR = Path(__file__).with_name("zephyr.cmake").read_text(encoding="utf-8")
_ESP_IDF = Path(__file__).with_name("esp_idf.cmake").read_text(encoding="utf-8")
_CMAKE = """\
find_package(tiny_model CONFIG REQUIRED PATHS ${PACKAGE})
set(libraries tiny_model::tiny_model)
"""
Package = Callable[[str], Path]
_FORMS = {"c99": "c-arrays", "cortex-m3": "c", "cortex-m4": "objects"}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    made: dict[str, Path] = {}

    def build(target: str) -> Path:
        if target not in made:
            emit = _FORMS[target]
            systems = [name for name in BUILD_SYSTEMS if emit == "c-arrays" or name != "arduino"]
            kernels = "objects" if emit == "objects" else "c"
            compiled = ibert.compile(
                small_bert(), target=target, shapes=[(1, 8)], emit=kernels, prefix="tiny"
            )
            options = PackageOptions(emit, build_systems=tuple(systems))
            made[target] = compiled.export(tmp_path_factory.mktemp(target) / "p", options)
        return made[target]

    return build


def _run(*command: object) -> str:
    done = run_captured([*map(str, command)])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _flags(target: str) -> list[str]:
    """Compiler and flags of a program without start-up code, which is linked and not run."""
    if target == "c99":
        needs("gcc")
        return ["gcc", "-O2", "-Wall", "-Werror"]
    needs("arm-none-eabi-gcc")
    flags = [f"-mcpu={target}", "-mthumb", "-O2", "-Wall", "-Werror"]
    return ["arm-none-eabi-gcc", *flags, "-nostdlib", "-Wl,-emain"]


@pytest.mark.slow
@pytest.mark.parametrize("target", _FORMS)
@pytest.mark.parametrize(
    "convention", [_CMAKE, _ZEPHYR, _ESP_IDF], ids=["cmake", "zephyr", "esp-idf"]
)
def test_a_project_of_cmake(package: Package, tmp_path: Path, target: str, convention: str) -> None:
    needs("cmake", "make")
    compiler, *flags = _flags(target)
    (tmp_path / "main.c").write_text(_MAIN)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(app C ASM)\n"
        f"set(PACKAGE {package(target)})\n{convention}"
        "add_executable(app main.c)\ntarget_link_libraries(app PRIVATE ${libraries})\n"
    )
    board = ["-DCMAKE_SYSTEM_NAME=Generic", "-DCMAKE_C_STANDARD_LIBRARIES=-lgcc"]
    system = [] if target == "c99" else board
    words = " ".join(flags)
    build = tmp_path / "build"
    _run("cmake", "-S", tmp_path, "-B", build, f"-DCMAKE_C_COMPILER={compiler}",
         f"-DCMAKE_C_FLAGS={words}", f"-DCMAKE_ASM_FLAGS={words}", *system)  # fmt: skip
    _run("cmake", "--build", build)
    if target == "c99":
        _run(build / "app")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["c99", "cortex-m4"])
def test_pkg_config(
    package: Package, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("pkg-config", "make")
    folder, compile = package(target), _flags(target)
    if target == "c99":
        _run("make", "-C", folder)
    monkeypatch.setenv("PKG_CONFIG_PATH", str(folder))
    (tmp_path / "main.c").write_text(_MAIN)
    words = _run("pkg-config", "--cflags", "--libs", "tiny_model").split()
    last = [] if target == "c99" else ["-lgcc"]
    _run(*compile, tmp_path / "main.c", *words, *last, "-o", tmp_path / "app")


@pytest.mark.slow
def test_a_library_of_arduino(package: Package, tmp_path: Path) -> None:
    """Arduino and PlatformIO compile every source below src, with that folder to include from."""
    folder, (compiler, *flags) = package("c99"), _flags("c99")
    (tmp_path / "main.c").write_text(_MAIN)
    sources = sorted((folder / "src").rglob("*.c"))
    _run(compiler, *flags, f"-I{folder / 'src'}", tmp_path / "main.c", *sources,
         "-o", tmp_path / "app")  # fmt: skip
    _run(tmp_path / "app")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["c99", "cortex-m4"])
def test_a_component_of_a_cmsis_pack(package: Package, tmp_path: Path, target: str) -> None:
    folder, (compiler, *flags) = package(target), _flags(target)
    (description,) = folder.glob("*.pdsc")
    component = ElementTree.parse(description)
    files = list(component.iter("file"))
    (tmp_path / "main.c").write_text(_MAIN)
    (tmp_path / "Pre_Include.h").write_text(
        component.findtext(".//Pre_Include_Local_Component_h", "")
    )
    includes = [f"-I{folder / file.attrib['name']}" for file in files
                if file.attrib["category"] == "include"]  # fmt: skip
    built = [folder / file.attrib["name"] for file in files
             if file.attrib["category"] in ("sourceC", "library")]  # fmt: skip
    last = [] if target == "c99" else ["-lgcc"]
    _run(compiler, *flags, "-include", tmp_path / "Pre_Include.h", *includes, tmp_path / "main.c",
         *built, *last, "-o", tmp_path / "app")  # fmt: skip


@pytest.mark.parametrize("name", BUILD_SYSTEMS)
def test_files_name_what_there_is(tmp_path: Path, name: str) -> None:
    document = {
        "prefix": "tiny",
        "emit": "c-arrays",
        "versions": {"ibert_tvm": "1.2"},
        "target": {"name": "c99"},
    }
    sources = [FileNames("tiny").driver, FileNames("tiny").kernels]
    write_integration(tmp_path, name, document, sources)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    text = "".join(path.read_text() for path in written)
    assert "PREFIX" not in text and "{{" not in text
    for path in written:
        if path.suffix == ".json":
            assert json.loads(path.read_text())["version"] == "1.2.0"
        if path.suffix == ".pdsc":
            named = {file.attrib["name"] for file in ElementTree.parse(path).iter("file")}
            assert named == {"./", "README.md", "tiny_model.h", *sources}
    assert any(word in text for word in (*sources, "-ltiny_model"))


def test_build_systems_that_there_are_not(messages: Messages) -> None:
    with messages.raises(UsageError):
        check_build_system("bazel", "c-arrays")
    with messages.raises(UsageError):
        check_build_system("arduino", "objects")


@pytest.mark.parametrize(
    "changes",
    [{"build_systems": ["../../web"]}, {"build_systems": 1}, {"external": "none"}],
    ids=str,
)
def test_documents_that_ask_for_others_are_refused(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    assert read_package(small_package(tmp_path / "right", build_systems=["cmake"]))
    with pytest.raises(LibraryError):
        read_package(small_package(tmp_path / "wrong", **changes))
