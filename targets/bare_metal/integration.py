"""Files by which build systems take a package: a folder of templates for each system.

A template is written to its own place, with the prefix of the model in its name, and once for every
source where it is called ``SOURCE``. One that has nothing to say makes no file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ibert_tvm.common.errors import UsageError, check_choice
from ibert_tvm.common.strict_json import JsonObject

from ..aot.c_text import rendered
from .document import FileNames
from .options import BUILD_SYSTEMS, C_ARRAYS, TEMPLATES

_EACH = "SOURCE"
# The arena's bytes change their type; tables of addresses are not followed by the checks.
_FLAGS = ("-fno-strict-aliasing",)


def check_build_system(name: str, emit: str) -> None:
    """Refuse a build system that there is not, or that cannot take a form; a `UsageError`."""
    check_choice("build system", name, BUILD_SYSTEMS, "there are no files for it")
    if emit != C_ARRAYS and any((TEMPLATES / name).rglob(f"{_EACH}.in")):
        raise UsageError(
            f"a package for {name} is asked for as {emit}",
            why="it compiles C sources alone",
            todo=f"add --emit {C_ARRAYS}",
        )


def write_integration(
    folder: Path, name: str, document: JsonObject, sources: Sequence[str]
) -> None:
    """Write the files of a build system into a package.

    Parameters
    ----------
    folder
        The package.
    name
        Of `BUILD_SYSTEMS`.
    document
        Its ``ibert_model.json``.
    sources
        Names of its C and assembly files; none where it has a library.

    Raises
    ------
    OSError
        If they cannot be written.
    """
    prefix = str(document["prefix"])
    number = re.match(r"\d+\.\d+(\.\d+)?", str(document["versions"]["ibert_tvm"]))
    values = {
        "prefix": prefix,
        "names": FileNames(prefix),
        "sources": sources,
        "arrays": document["emit"] == C_ARRAYS,
        "flags": _FLAGS,
        "version": number[0] if number and number[1] else f"{number[0] if number else 0}.0",
        "description": f"Integer-only transformer {prefix} for {document['target']['name']}",
    }
    for template in sorted((TEMPLATES / name).rglob("*.in")):
        place = template.relative_to(TEMPLATES / name).with_suffix("")
        for source in sources if place.name == _EACH else ("",):
            own = source or place.name.replace("PREFIX", prefix)
            text = rendered(template, **values, source=source)
            if text.strip():
                path = folder / place.with_name(own)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
