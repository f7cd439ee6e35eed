"""A finished package, looked at again: the image that all its objects link to."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ibert_tvm.common.errors import TargetError
from ibert_tvm.common.strict_json import JsonObject

from ..aot.library import declared_functions, text_functions, weight_functions
from ..description import TargetDescription
from ..linking import Tools
from .document import FileNames, package_files
from .options import C_SOURCES, OBJECTS
from .package import compile_sources
from .verification import PackageError, verify_package

_SOURCES = (".c", ".S")


@dataclass(frozen=True)
class PackageAudit:
    """What was found.

    Attributes
    ----------
    objects
        Files: as they are in the package, or compiled from its sources.
    instructions
        Of the image; 0 if there is none.
    findings
        Floating point, with function, layer and address; and what else `verify_package` refuses.
    outside
        What was not looked at.
    """

    objects: tuple[Path, ...]
    instructions: int
    findings: tuple[str, ...]
    outside: tuple[str, ...]


def audit_package(
    folder: Path, document: JsonObject, description: TargetDescription, work: Path
) -> PackageAudit:
    """Link the objects of a package with the compiler's library, and check the image.

    Parameters
    ----------
    folder
        The package, whose digests were checked.
    document
        Its ``ibert_model.json``.
    description
        Its target.
    work
        An empty folder, where objects and image are left.

    Raises
    ------
    TargetError
        If a tool is missing or fails.
    """
    names = FileNames(str(document["prefix"]))
    outside = ["the program that calls it, and the C library if that has one"]
    objects = package_objects(folder, document, description, work)
    if document["emit"] != OBJECTS:
        outside.append("what another compiler, or other flags, make of the sources")
        if document["emit"] == C_SOURCES:
            outside.append("assembly that other compilers take")
    layers = {k["symbol"]: k["layer"] for f in document["functions"] for k in f["kernels"]}
    findings: list[str] = []
    instructions = 0
    try:
        driver = (work / names.driver).with_suffix(".o")
        if driver not in objects:
            raise PackageError(f"the library has no {driver.name}")
        entries = declared_functions(
            str(document["prefix"]),
            (str(f["symbol"]) for f in document["functions"]),
            (
                *text_functions(document.get("text")),
                *weight_functions(str(document.get("external", ""))),
            ),
        )
        linked = verify_package(objects, driver, entries, work, description, layers)
        instructions, stated = linked.instructions, int(document["memory"]["ram"]["stack"])
        if linked.stack.total > stated and document["emit"] == OBJECTS:
            findings.append(
                f"the stack reaches {linked.stack.total} bytes; the package says {stated}"
            )
    except PackageError as error:
        one_line = ": ".join(filter(None, (error.what, error.where, error.why)))
        findings += error.findings or (one_line,)
    except TargetError as error:
        findings.append(f"the package cannot be linked: {error.what}: {error.why}")
    return PackageAudit(objects, instructions, tuple(findings), tuple(outside))


def package_objects(
    folder: Path, document: JsonObject, description: TargetDescription, work: Path
) -> tuple[Path, ...]:
    """Unpack the objects of a package, or compile its sources.

    Parameters
    ----------
    folder
        The package, whose digests were checked.
    document
        Its ``ibert_model.json``.
    description
        Its target.
    work
        An empty folder, where they are left.

    Returns
    -------
    tuple of pathlib.Path
        The objects, by name.

    Raises
    ------
    TargetError
        If a tool is missing or fails.
    """
    if document["emit"] == OBJECTS:
        library = FileNames(str(document["prefix"])).library
        shutil.copyfile(folder / library, work / library)
        tools = Tools(description)
        tools.run([tools.binary("ar"), "x", library], work, "cannot unpack the library")
    else:
        for name in package_files(folder):
            if name.endswith((*_SOURCES, ".h", ".bin")) and "/" not in name:
                shutil.copyfile(folder / name, work / name)
        sources = sorted(path for path in work.iterdir() if path.suffix in _SOURCES)
        compile_sources(sources, work, description)
    return tuple(sorted(work.glob("*.o")))
