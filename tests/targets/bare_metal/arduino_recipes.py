"""A sketch with one library, built by the recipes of an Arduino core as arduino-cli runs them.

https://arduino.github.io/arduino-cli/latest/platform-specification/ describes the files.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.processes import run_captured

_SUFFIXES = {".c": "c", ".cpp": "cpp", ".S": "S"}
_NAME = re.compile(r"\{([^{}]+)\}")


def read_properties(path: Path) -> dict[str, str]:
    """The ``name=value`` lines of a file such as ``platform.txt``."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


class Core:
    """An Arduino core and one of its boards.

    Parameters
    ----------
    folder
        The core, with ``platform.txt`` and ``boards.txt``.
    tools
        Its tools, as ``NAME/VERSION``; compilers that are not there are taken from the path.
    board
        Name in ``boards.txt``.
    build
        Folder for what is built.
    """

    def __init__(self, folder: Path, tools: Path, board: str, build: Path) -> None:
        own = f"{board}."
        boards = read_properties(folder / "boards.txt")
        self.properties = read_properties(folder / "platform.txt")
        self.properties |= {
            name.removeprefix(own): value for name, value in boards.items() if name.startswith(own)
        }
        variant = folder / "variants" / self.properties["build.variant"]
        self.properties |= {
            "build.path": str(build),
            "build.arch": "SAMD",
            "build.project_name": "sketch.ino",
            "build.variant.path": str(variant),
            "runtime.ide.version": "10607",
            "runtime.platform.path": str(folder),
            "compiler.warning_flags": self.properties["compiler.warning_flags.all"],
            "archive_file": "core.a",
        }
        self.tools, self.build = tools, build
        self.core = folder / "cores" / self.properties["build.core"]
        self.variant = variant

    def _value(self, name: str) -> str:
        """A property; the first choice of a menu where that decides; "" if there is none."""
        tool = re.fullmatch(r"runtime\.tools\.(.+)\.path", name)
        if tool is None:
            choices = (key for key in self.properties if re.fullmatch(rf"menu\..*\.{name}", key))
            return self.properties.get(name, self.properties.get(next(choices, ""), ""))
        folders = [self.tools / tool[1], *self.tools.glob(f"{tool[1]}/*"), *self.tools.glob("*/*")]
        for folder in folders:
            named = (folder.name, folder.parent.name, f"{folder.parent.name}-{folder.name}")
            if folder.is_dir() and tool[1] in named:
                return str(folder)
        found = shutil.which(self.properties["compiler.c.cmd"])
        assert found and tool[1] == self.properties["compiler.c.cmd"], f"no {tool[1]}"
        return str(Path(found).parent.parent)

    def run(self, recipe: str, **values: str) -> str:
        """Run ``recipe.NAME.pattern``; its output."""
        text = self.properties[f"recipe.{recipe}.pattern"]
        while _NAME.search(text):
            text = _NAME.sub(lambda found: values.get(found[1], self._value(found[1])), text)
        done = run_captured(shlex.split(text))
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def _compiled(self, folder: Path, name: str, includes: str) -> Iterator[tuple[str, str]]:
        for source in sorted(folder.rglob("*")):
            if source.suffix in _SUFFIXES:
                made = self.build / name / f"{source.relative_to(folder)}.o"
                made.parent.mkdir(parents=True, exist_ok=True)
                kind = _SUFFIXES[source.suffix]
                values = {"source_file": str(source), "object_file": str(made)}
                yield str(made), self.run(f"{kind}.o", includes=includes, **values)

    def build_sketch(self, sketch: Path, library: Path) -> tuple[Path, str]:
        """Compile and link a folder of sources with a library; the program and all warnings."""
        includes = f'"-I{self.core}" "-I{self.variant}" "-I{library / "src"}"'
        objects, warnings = [], ""
        for folder, name in ((sketch, "sketch"), (library / "src", "libraries")):
            for made, said in self._compiled(folder, name, includes):
                objects.append(made)
                warnings += said
        objects += [made for made, _ in self._compiled(self.variant, "variant", includes)]
        archive = str(self.build / "core.a")
        for made, _ in self._compiled(self.core, "core", includes):
            self.run("ar", archive_file_path=archive, object_file=made)
        warnings += self.run("c.combine", object_files=" ".join(map(shlex.quote, objects)))
        return self.build / f"{self.properties['build.project_name']}.elf", warnings
