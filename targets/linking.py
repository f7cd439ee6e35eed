"""Running the tools that assemble and link, and checking what they leave."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ibert_tvm.common.errors import TargetError
from ibert_tvm.common.files import store, workspace

from .description import TargetDescription
from .programs import output_of


def run_tool(
    command: Sequence[str],
    folder: Path | None,
    what: str,
    description: TargetDescription,
    todo: str = "check that the C toolchain works for this target; see `ibert doctor`",
    error: type[TargetError] = TargetError,
) -> str:
    """Run a tool of the toolchain inside a folder; return what it printed.

    Parameters
    ----------
    command
        Program and arguments.
    folder
        Working directory.
    what
        What failed if it fails, for the error.
    description
        The target, for the error.
    todo, error
        What the user can do, and the class of the error.

    Raises
    ------
    TargetError
        With the tool's own words, if it ends with another status than 0.
    """
    where = f"target {description.name!r}, command: {' '.join(command[:4])} ..."
    return output_of(command, what=what, where=where, todo=todo, folder=folder, error=error)


def unwritable(path: Path, error: OSError) -> TargetError:
    """Error for an output file whose folder cannot be written."""
    return TargetError(
        what=f"cannot write {path}",
        where=f"directory {path.parent}",
        why=error.strerror or str(error),
        todo="choose an output path in a directory that exists, is writable and has space",
    )


@contextmanager
def replacing(path: Path, name: str) -> Iterator[Path]:
    """Make a file in a folder of its own, then put it in its place in one step.

    The tools run inside the folder and get names without a directory: an assembler, and the commas
    of ``-Wl,``, would trip over what a user's path may contain.

    Parameters
    ----------
    path
        Output file; replaced once the body has ended without an error.
    name
        Name that the body gives the file in the folder.

    Yields
    ------
    pathlib.Path
        The folder, beside `path`, removed in the end.

    Raises
    ------
    TargetError
        If the folder cannot be made, or the file cannot be put in its place.
    """
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
