"""What this environment has: packages, compilers, emulators, the processor and its threads."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from ..common.errors import TargetError
from ..common.extras import BASE, EXTRAS, Extra

if TYPE_CHECKING:
    from ibert_tvm.targets import TargetDescription

# The combination that the constraints pin: with a later ffi, parts of TVM crash the interpreter.
_TVM_VERSION = "0.27.0.post1"
_FFI_SERIES = "0.1.14"
# What this release of TVM is linked against on GPUs; a library without a runtime is not.
_TVM_CUDA = (13, 0)


@dataclass(frozen=True)
class Check:
    """One thing that commands need: `state` is ok, missing (an optional thing), or failed."""

    name: str
    state: str
    found: str
    todo: str = ""
    why: str = ""


def environment() -> list[Check]:
    """Check everything that commands use; optional things that are not there are `missing`."""
    return [
        _python(),
        *map(_package, BASE),
        *([] if EXTRAS["compiler"].missing() else _to_compile()),
        _processor(),
        _threads(),
    ]


def extras() -> list[Check]:
    """Whether each extra is installed; `why` is what it enables."""
    return [_extra(extra) for extra in EXTRAS.values()]


def _python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check("python", "ok", found)


def _extra(extra: Extra) -> Check:
    missing = extra.missing()
    if missing:
        found = f"without {', '.join(dict.fromkeys(missing))}"
        return Check(extra.name, "missing", found, extra.install, extra.enables)
    return Check(extra.name, "ok", "installed", why=extra.enables)


def _to_compile() -> list[Check]:
    """What compiling needs, and boards and GPUs."""
    return [
        _package("apache-tvm"),
        _package("apache-tvm-ffi"),
        _tvm_works(),
        _linker(),
        *_cross_compilers(),
        *_emulators(),
        _cuda_compiler(),
        _gpu(),
    ]


def _package(name: str) -> Check:
    try:
        found = version(name)
    except PackageNotFoundError:
        return Check(name, "failed", "not installed", f"pip install {name}")
    if name == "apache-tvm" and found != _TVM_VERSION:
        return Check(name, "failed", found, f"pip install apache-tvm=={_TVM_VERSION}")
    if name == "apache-tvm-ffi" and not found.startswith(_FFI_SERIES + "."):
        fix = f"pip install 'apache-tvm-ffi=={_FFI_SERIES}.*' (later ones crash this TVM)"
        return Check(name, "failed", found, fix)
    return Check(name, "ok", found)


def _tvm_works() -> Check:
    name = "tvm with LLVM"
    try:
        import tvm

        enabled = tvm.runtime.enabled("llvm")
    except Exception as error:  # whatever a broken installation raises
        why = f"{type(error).__name__}: {error}"
        return Check(name, "failed", "broken", "install the versions of constraints.txt", why)
    if not enabled:
        fix = f"pip install apache-tvm=={_TVM_VERSION}"
        return Check(name, "failed", "built without LLVM", fix)
    from tvm.target import codegen

    return Check(name, "ok", f"LLVM {codegen.llvm_version_major()}")


def _looked_up(
    name: str, find: Callable[[], str], lacking: str = "failed", unfound: str = "not found"
) -> Check:
    """What is found; else whether that is a failure, and why."""
    try:
        return Check(name, "ok", find())
    except TargetError as error:
        return Check(name, lacking, unfound, error.todo, f"{error.what}: {error.why}")


def _linker() -> Check:
    from ibert_tvm.targets import get_target
    from ibert_tvm.targets.toolchain import find_linker

    return _looked_up("C compiler", lambda: " ".join(find_linker(get_target("x86-64"))))


def _descriptions() -> list[TargetDescription]:
    from ibert_tvm.targets import get_target, target_names

    return [get_target(name) for name in target_names()[1:]]  # without "host"


def _cross_compilers() -> list[Check]:
    """One line per cross-compiler, with the targets that need it; all of them are optional."""
    from ibert_tvm.targets.toolchain import find_linker

    def find(target: TargetDescription) -> str:
        return find_linker(target)[0]

    checks: dict[tuple[str, str], Check] = {}
    users: dict[tuple[str, str], list[str]] = {}
    for target in _descriptions():
        if target.toolchain is None:
            continue
        check = _looked_up(target.toolchain.compiler, partial(find, target), "missing")
        key = check.name, check.found
        checks.setdefault(key, check)
        users.setdefault(key, []).append(target.name)
    return [
        replace(check, found=f"{check.found}; for {', '.join(users[key])}")
        for key, check in checks.items()
    ]


def _emulators() -> list[Check]:
    """One line per emulator that runs code of another machine; all of them are optional."""
    from ibert_tvm.targets.emulation import emulator_command, find_emulator, runs_here

    def find(target: TargetDescription) -> str:
        program = find_emulator(target)
        if target.system == "linux":
            emulator_command(target)
        return program

    lacking = "not found; checks libraries before they go to a board"
    checks = [
        _looked_up(target.emulator.program, partial(find, target), "missing", lacking)
        for target in _descriptions()
        if target.emulator is not None and not runs_here(target)
    ]
    return list({(check.name, check.found, check.todo): check for check in checks}.values())


def _cuda_compiler() -> Check:
    """What compiles for NVIDIA's GPUs, whether or not there is one here."""
    from ibert_tvm.targets.cuda.toolchain import find_cuda_toolchain

    return _looked_up("CUDA compiler", lambda: str(find_cuda_toolchain()), "missing")


def _gpu() -> Check:
    """NVIDIA's GPUs and their driver, asked without TVM."""
    from ibert_tvm.targets.cuda.driver import OLDEST_DRIVER, NeededDriver, find_driver

    name = "NVIDIA GPU"
    try:
        driver = find_driver()
    except TargetError as error:
        return Check(name, "missing", "not found", error.todo, error.why)
    listed = ", ".join(map(str, driver.gpus))
    found = f"{listed}; the driver serves CUDA {'.'.join(map(str, driver.cuda))}"
    if driver.cuda < OLDEST_DRIVER.cuda:
        return Check(name, "failed", found, f"install {OLDEST_DRIVER}")
    if driver.cuda < _TVM_CUDA:
        todo = f"install {NeededDriver(_TVM_CUDA)}, or compile with --runtime none"
        return Check(name, "ok", found, todo, "TVM needs a newer driver than this one")
    return Check(name, "ok", found)


def _processor() -> Check:
    from ibert_tvm.targets import get_target

    return _looked_up("processor", lambda: get_target("host").description)


def _threads() -> Check:
    from .threads import default_threads

    count = default_threads()
    return Check("threads per call", "ok", f"{count} (TVM_NUM_THREADS or run --threads change it)")
