"""The programs that assemble and link, and the files that they leave."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ibert_tvm.common.errors import TargetError
from ibert_tvm.common.file_seal import seal_digest
from ibert_tvm.common.files import OutputKind, check_replaceable, store, workspace

from .description import TargetDescription
from .programs import output_of, run
from .toolchain import find_linker

LIBRARY = OutputKind("a library that `ibert compile` wrote", seal_digest)

# Code in pages of its own, which hold nothing else and cannot be written; a stack without code;
# symbols in a table whose size is known.
PROTECTED = ("-Wl,-z,separate-code", "-Wl,-z,noexecstack", "-Wl,--hash-style=gnu")

# Of C: the audit follows no jump through a table of addresses.
PLAIN_BRANCHES = ("-fno-jump-tables",)

PARALLEL = Path(__file__).with_name("parallel.c")
BOARD = Path(__file__).with_name("board.c")
"""Sources of the threads that run kernels, and of what a library tells a program on another
machine about the one that it is on; how they are compiled, and the functions of the first."""
THREAD_FLAGS = ("-O2", "-fPIC", "-pthread", "-ffunction-sections", *PLAIN_BRANCHES)
THREAD_FUNCTIONS = ("ibert_parallel_launch", "ibert_set_threads", "ibert_started_threads")

_TODO = "check that the C toolchain works for this target; see `ibert doctor`"


@dataclass(frozen=True)
class Tools:
    """The toolchain of a target: its C compiler, which assembles and links too, and its binutils.

    A missing program is a TargetError that names the Debian package; so is one that fails, with its
    own words.
    """

    description: TargetDescription

    @cached_property
    def compiler(self) -> tuple[str, ...]:
        """Command of the compiler, see `find_linker`."""
        return find_linker(self.description)

    def binary(self, name: str) -> str:
        """Path of a program of binutils, such as ``objdump``, that belongs to the compiler."""
        path = shutil.which(_asked(self.compiler, name) or name)
        if path is None:
            toolchain = self.description.toolchain
            raise TargetError(
                what=f"no {name} for target {self.description.name!r}",
                where=f"PATH (asked {self.compiler[0]})",
                why="programs are put together, and checked, with the toolchain's own tools",
                todo="install it (Debian: apt-get install "
                f"{toolchain.package if toolchain else 'binutils'})",
            )
        return path

    def run(
        self,
        command: Sequence[str],
        folder: Path | None,
        what: str,
        todo: str = _TODO,
        error: type[TargetError] = TargetError,
    ) -> str:
        """Run a program inside a folder; return what it printed.

        Parameters
        ----------
        command
            Program and arguments.
        folder
            Working directory.
        what
            What failed if it fails.
        todo, error
            What the user can do then, and the class of the error.
        """
        where = f"target {self.description.name!r}, command: {' '.join(command[:4])} ..."
        return output_of(command, what=what, where=where, todo=todo, folder=folder, error=error)

    def compile(self, arguments: Sequence[str], folder: Path, what: str) -> None:
        """Run the compiler."""
        self.run([*self.compiler, *arguments], folder, what)


@functools.cache
def _asked(compiler: tuple[str, ...], name: str) -> str:
    """What the compiler answers: a path, or the name where it knows none."""
    return run([*compiler, f"-print-prog-name={name}"]).stdout.strip()


def unwritable(path: Path, error: OSError) -> TargetError:
    """Error for an output file whose folder cannot be written."""
    return TargetError(
        what=f"cannot write {path}",
        where=f"directory {path.parent}",
        why=error.strerror or str(error),
        todo="choose an output path in a directory that exists, is writable and has space",
    )


@contextmanager
def replacing(path: Path, name: str, kind: OutputKind = LIBRARY) -> Iterator[Path]:
    """Make a file in a folder of its own, then put it in its place in one step.

    The tools run inside the folder and get names without a directory: an assembler, and the commas
    of ``-Wl,``, would trip over what a user's path may contain.

    Parameters
    ----------
    path
        Output file; replaced once the body has ended without an error.
    name
        Name that the body gives the file in the folder.
    kind
        What of an earlier output is replaced.

    Yields
    ------
    pathlib.Path
        The folder, beside `path`, removed in the end.

    Raises
    ------
    TargetError
        If the folder cannot be made, or the file cannot be put in its place.
    OutputError
        If something else is in its place.
    """
    check_replaceable(path, kind)
    with ExitStack() as stack:
        try:
            work = stack.enter_context(workspace(path.parent)).resolve()
        except OSError as error:
            raise unwritable(path, error) from error
        yield work
        try:
            store(work / name)
            os.replace(work / name, path)
            store(path.parent)
        except OSError as error:
            raise TargetError(
                what=f"cannot write {path}",
                where=str(path),
                why=error.strerror or str(error),
                todo="choose another output path",
            ) from error


@contextmanager
def kept_in_memory(*paths: Path) -> Iterator[None]:
    """Let paths be written to memory: LLVM ends the process where a disk is full.

    Parameters
    ----------
    paths
        Files that are not there. In the block they are links to memory, and what is written to
        them can be read by the processes that it starts.
    """
    with ExitStack() as stack:
        for path in paths:
            descriptor = os.memfd_create(path.name)
            stack.callback(os.close, descriptor)
            path.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
            stack.callback(path.unlink, missing_ok=True)
        yield
