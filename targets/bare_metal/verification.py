"""What is proved about a package before it is given out: that it links, and what is in it.

All objects are linked with nothing but the compiler's own run-time library (libgcc: division and
64-bit arithmetic, no C library), into an image that is never run. On that image

* no symbol is left undefined, not even a weak one, which would be a jump to address 0;
* no floating-point instruction and no floating-point library function is left, and control stays
  in the code that was looked at (`ibert_tvm.targets.library_audit`);
* the stack is bounded along the call graph;
* sizes are those of the sections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ibert_tvm.common.errors import TargetError

from ..description import TargetDescription
from ..elf import is_function, is_undefined, opened, symbols
from ..library_audit import audit_library, disassemble, parse
from ..linking import Tools
from ..machines.record import BareMetal
from .stack import StackUse, frame_bytes, stack_use

_SCRIPT = Path(__file__).with_name("verify.ld")
# How names of functions of one shape begin, and of those that call the user's, in the driver that
# `ibert_tvm.targets.aot.compile` writes.
_BODY, _OF_THE_USER = "body_", ("hooked", "fetch_")
# Stack of what compilers call where a source does not: memory functions, divisions of 64 bits.
_HELPERS = 192
_REPORT = "this is a defect of the compiler: please report it"


class PackageError(TargetError):
    """A package that does not have the properties that it must have.

    Attributes
    ----------
    findings
        Of the audit of its code; empty for other errors.
    """

    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verified:
    """What the checks found.

    Attributes
    ----------
    code_bytes
        Instructions and constants between them.
    constant_bytes
        Tables that kernels read; weights are not among them.
    data_bytes
        Variables of the package: 0, since its state is the caller's.
    weight_bytes
        Weights with what aligns them.
    instructions
        Number of instructions that were looked at; none computes with floating-point numbers.
    helpers
        Functions of the compiler's run-time library that the package needs.
    stack
        Bound of the stack of any function of the API, interrupts apart.
    frames
        Bytes of stack of each function itself, by name.
    """

    code_bytes: int
    constant_bytes: int
    data_bytes: int
    weight_bytes: int
    instructions: int
    helpers: tuple[str, ...]
    stack: StackUse
    frames: Mapping[str, int]


def verify_package(
    objects: Sequence[Path],
    driver: Path,
    entries: Sequence[str],
    folder: Path,
    description: TargetDescription,
    layers: Mapping[str, str] | None = None,
) -> Verified:
    """Link objects into an image and check it.

    Parameters
    ----------
    objects
        Relocatable files: kernels, driver, weights, and all else that the package has.
    driver
        That of the driver, which alone calls through pointers: one of its own functions per shape,
        and the user's hook.
    entries
        Functions of its API.
    folder
        Where the image is made.
    description
        The target.
    layers
        By kernel the layer that it computes.

    Raises
    ------
    PackageError
        If a check fails.
    TargetError
        If a tool is missing or fails.
    """
    defined, weak = _symbols(objects)
    if weak:
        raise PackageError(
            what="the package has functions that nothing defines",
            where=f"target {description.name!r}, symbols {', '.join(sorted(weak))}",
            why="they are weak: they link without an error and jump to address 0 when called",
            todo=_REPORT,
        )
    image = _link(objects, folder, description)
    audit = audit_library(image, description, layers)
    if audit.findings:
        raise _refused(audit.findings, description)
    functions = list(parse(disassemble([image], description)))
    rules = bare_metal(description).stack
    sizes, names = _sections_and_functions(image)
    helpers = tuple(sorted(names - defined))
    return Verified(
        code_bytes=sizes[".text"],
        constant_bytes=sizes[".constants"],
        data_bytes=sizes[".data"] + sizes[".bss"],
        weight_bytes=sizes[".weights"],
        instructions=audit.instructions,
        helpers=tuple(name for name in helpers if not name.startswith("$")),
        stack=stack_use(functions, entries, rules, _pointers(driver)),
        frames={function.name: frame_bytes(function, rules) for function in functions},
    )


def bare_metal(description: TargetDescription) -> BareMetal:
    """What is particular to the microcontroller of a target.

    Raises
    ------
    TargetError
        If the target has an operating system.
    """
    system = description.machine.system
    if isinstance(system, BareMetal):
        return system
    raise TargetError(
        what=f"target {description.name!r} is no microcontroller",
        where="--target",
        why="packages are for processors without operating system",
        todo="compile a library instead",
    )


def stack_of_sources(
    objects: Sequence[Path],
    driver: Path,
    entries: Sequence[str],
    folder: Path,
    description: TargetDescription,
    frames: Mapping[str, int],
) -> tuple[StackUse, dict[Path, int]]:
    """Bound the stack of sources at any level of optimisation.

    Calls are longest where nothing is inlined. Each function counts with a limit that its source
    holds it to: what it takes here, and a third of that for other flags, or as much again for
    other processors.

    Parameters
    ----------
    objects, driver, entries, folder, description
        As for `verify_package`, compiled without inlining.
    frames
        Of the functions as they are compiled usually.

    Returns
    -------
    use, limits
        The bound, and by object the most bytes that one of its functions may take.
    """
    rules = bare_metal(description).stack
    share = 1 if bare_metal(description).any_compiler else 3
    functions = list(parse(disassemble([_link(objects, folder, description)], description)))
    frames = dict(frames)
    for function in functions:
        own = frame_bytes(function, rules)
        frames[function.name] = max(own, frames.get(function.name, 0))
    limits: dict[Path, int] = {}
    by_function: dict[str, int] = {}
    for path in objects:
        names = {symbol.name for symbol in symbols(path) if is_function(symbol)}
        largest = max((frames.get(name, 0) for name in names), default=0)
        limits[path] = -(-(largest + max(24, largest // share)) // 8) * 8
        for name in names:
            by_function[name] = max(limits[path], by_function.get(name, 0))
    use = stack_use(functions, entries, rules, _pointers(driver), by_function)
    return replace(use, total=use.total + _HELPERS), limits


def _symbols(objects: Sequence[Path]) -> tuple[set[str], set[str]]:
    """Names that the objects define, and weak ones that they do not."""
    found = [symbol for path in objects for symbol in symbols(path)]
    defined = {symbol.name for symbol in found if not is_undefined(symbol)}
    weak = {symbol.name for symbol in found if symbol["st_info"]["bind"] == "STB_WEAK"}
    return defined, weak - defined


def _pointers(driver: Path) -> dict[str, list[str]]:
    """Functions of the driver, and those of a shape that each may reach through a pointer."""
    names = [symbol.name for symbol in symbols(driver) if is_function(symbol)]
    bodies = [name for name in names if name.startswith(_BODY)]
    return {name: [] if name.startswith(_OF_THE_USER) else bodies for name in names}


def _link(objects: Sequence[Path], folder: Path, description: TargetDescription) -> Path:
    """Link everything with the compiler's run-time library only; errors as PackageError."""
    tools, image = Tools(description), folder / "verify.elf"
    command = [
        *tools.compiler,
        "-nostdlib",
        "-nostartfiles",
        "-T",
        str(_SCRIPT),
        *("-Wl,-e,0x10000", "-Wl,-z,noexecstack", "-Wl,--emit-relocs"),
        *(path.name for path in objects),
        "-lgcc",
        "-o",
        image.name,
    ]
    what = "the package does not link without a C library"
    tools.run(command, folder, what, _REPORT, PackageError)
    return image


def _sections_and_functions(image: Path) -> tuple[dict[str, int], set[str]]:
    """Sizes of the sections of the script, and the names of all functions."""
    sizes = dict.fromkeys((".text", ".constants", ".data", ".bss", ".weights"), 0)
    with opened(image) as elf:
        for section in elf.iter_sections():
            if section.name in sizes:
                sizes[section.name] = int(section["sh_size"])
    functions = filter(is_function, symbols(image))
    return sizes, {one.name for one in functions if one["st_info"]["bind"] != "STB_LOCAL"}


def _refused(findings: tuple[str, ...], description: TargetDescription) -> PackageError:
    """An error with the first findings of an audit; it has all of them."""
    more = f" and {len(findings) - 5} more" if len(findings) > 5 else ""
    error = PackageError(
        what="the code of the package computes with floating-point numbers, or cannot be followed",
        where=f"target {description.name!r}",
        why="; ".join(findings[:5]) + more,
        todo=_REPORT,
    )
    error.findings = findings
    return error
