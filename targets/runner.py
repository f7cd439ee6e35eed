"""Running a library with the plain C interface for a target that may be another machine.

The library is called by a small C program compiled for its target, which reads inputs from files
and writes outputs to files, natively or under the target's emulator. So what is run is the very
file that goes to the board.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.common.errors import TargetError

from .description import TargetDescription
from .emulation import emulator_command, run_program
from .library_check import sysroot_of
from .linking import Tools

_RUNNER = Path(__file__).with_name("runner.c")


class Runner:
    """The C program that calls libraries of one target; compiled once, run once per call.

    Parameters
    ----------
    description
        The target; its system is Linux.
    processor
        Processor to emulate instead of the one that the target's description names.
    seconds
        When a call is given up.

    Raises
    ------
    TargetError
        If the compiler or the emulator is not installed; the message names the package.
    """

    def __init__(
        self, description: TargetDescription, processor: str | None = None, seconds: float = 1800.0
    ) -> None:
        self.description = description
        self.seconds = seconds
        command = emulator_command(description, sysroot_of(description))
        if processor is not None and "-cpu" in command:
            command[command.index("-cpu") + 1] = processor
        self._command = command
        self._folder = tempfile.TemporaryDirectory(prefix="ibert-runner-")
        self._work = Path(self._folder.name)
        (self._work / "runner.c").write_bytes(_RUNNER.read_bytes())
        arguments = ["-O1", "runner.c", "-o", "runner", "-ldl"]
        Tools(description).compile(arguments, self._work, "cannot compile the runner")

    def run(
        self,
        library: Path,
        shape: tuple[int, int],
        inputs: Sequence[NDArray[np.generic]],
        outputs: Sequence[tuple[str, tuple[int, ...]]],
        prefix: str = "ibert",
        threads: int = 1,
    ) -> list[NDArray[np.generic]]:
        """Call the library once.

        Parameters
        ----------
        library
            The file.
        shape
            Batch and sequence length, of those that it was compiled for.
        inputs
            Arrays in the library's order and types.
        outputs
            Type and shape of every output, in the library's order.
        prefix
            What the library's C names begin with.
        threads
            Threads that kernels use; 1 for a library that has none.

        Returns
        -------
        list of numpy.ndarray
            The outputs.

        Raises
        ------
        TargetError
            If it cannot be loaded, refuses the call, or is ended by a signal, as by an instruction
            that its processor lacks.
        """
        with tempfile.TemporaryDirectory(prefix="call-", dir=self._work) as folder:
            words: list[str] = []
            for index, array in enumerate(inputs):
                path = Path(folder) / f"input{index}.bin"
                path.write_bytes(np.ascontiguousarray(array).tobytes())
                words += [str(path), str(path.stat().st_size)]
            paths = [Path(folder) / f"output{index}.bin" for index in range(len(outputs))]
            for path, (dtype, extents) in zip(paths, outputs, strict=True):
                size = int(np.prod(extents, dtype=np.int64)) * np.dtype(dtype).itemsize
                words += [str(path), str(size)]
            numbers = [threads, *shape, len(inputs), len(outputs)]
            command = [*self._command, str(self._work / "runner"), str(library.absolute())]
            done = run_program([*command, prefix, *map(str, numbers), *words], self.seconds)
            if done.returncode != 0:
                raise self._failed(library, done.returncode, done.stderr)
            return [
                np.frombuffer(path.read_bytes(), dtype).reshape(extents).copy()
                for path, (dtype, extents) in zip(paths, outputs, strict=True)
            ]

    def _failed(self, library: Path, status: int, words: str) -> TargetError:
        name, how = self.description.name, " ".join(self._command[:3]) or "this machine"
        # An emulator reports the guest's signal as its own, or as 128 and its number.
        number = -status if status < 0 else status - 128 if status > 128 else 0
        signal = {4: "an illegal instruction (SIGILL)", 11: "a bad address (SIGSEGV)"}.get(number)
        why = words.strip()[-2000:] or f"exit status {status}"
        return TargetError(
            what=f"the library {library} failed",
            where=f"target {name!r}, run on {how}",
            why=f"it was ended by {signal}; {why}" if signal else why,
            todo="check that it was compiled for this target, and what its inputs are; "
            "`ibert inspect` shows both",
        )
