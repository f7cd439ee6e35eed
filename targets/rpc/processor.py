"""What a board says about itself, and whether it can run a library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..catalogue import CATALOGUE
from ..machines.record import Linux
from .address import BoardError


@dataclass(frozen=True)
class BoardDescription:
    """The machine that a server runs on.

    Attributes
    ----------
    machine
        Architecture, as ``uname -m`` tells.
    processors
        How many are usable.
    features
        Processor features by the names of ``/proc/cpuinfo``.
    tvm_version
        Of the server; empty where it does not tell.
    """

    machine: str
    processors: int
    features: frozenset[str]
    tvm_version: str = ""

    @classmethod
    def parse(cls, text: str, tvm_version: str = "") -> BoardDescription:
        """Read what ``ibert_board`` of a library (``targets/board.c``) wrote.

        Raises
        ------
        BoardError
            If the board says something else.
        """
        fields: dict[str, str] = {}
        head, _, cpuinfo = text.partition("cpuinfo\n")
        for line in head.splitlines():
            name, _, value = line.partition(" ")
            fields[name] = value
        machine = fields.get("machine", "")
        try:
            words = [int(word, 16) for word in fields.get("capabilities", "0 0").split()]
            processors = int(fields.get("processors", "1"))
            features = _features(machine, words, cpuinfo)
        except (ValueError, IndexError) as error:
            raise BoardError(
                what="what the board says about itself cannot be read",
                where="processors, capabilities",
                why=str(error),
                todo="check that a library of ours runs there; compile it again",
            ) from error
        return cls(machine, processors, features, tvm_version)


def _features(machine: str, words: Sequence[int], cpuinfo: str) -> frozenset[str]:
    known = CATALOGUE.running_on(machine)
    if known is not None and isinstance(known.system, Linux) and known.system.capabilities:
        return known.system.features(words)
    for line in cpuinfo.splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def check_board(
    board: BoardDescription, target: str, elf_machine: str, required: Sequence[str]
) -> None:
    """Refuse a library that the board's processor cannot run: it would end in SIGILL.

    Parameters
    ----------
    board
        What the board said.
    target
        Name of the target that the library was compiled for.
    elf_machine
        ``e_machine`` of the library.
    required
        Processor features that it needs.

    Raises
    ------
    BoardError
        With what the board is and what it lacks.
    """
    systems = [
        machine.system
        for machine in CATALOGUE.machines()
        if machine.elf_machine == elf_machine and isinstance(machine.system, Linux)
    ]
    if not any(board.machine in (*system.names, *system.kernels) for system in systems):
        raise BoardError(
            what="the library does not run on the board",
            where=f"target {target!r}",
            why=f"it was compiled for {elf_machine}; the board is {board.machine or 'unknown'}",
            todo="compile it for the board's architecture; `ibert targets` lists them",
        )
    implied = {
        seen for system in systems for has, seen in system.implied.items() if has in board.features
    }
    names = board.features | implied
    missing = [name for name in required if name not in names]
    if missing:
        listed = ", ".join(sorted(board.features)) or "none"
        raise BoardError(
            what="the library does not run on the board's processor",
            where=f"target {target!r}, a board with {board.machine}",
            why=f"it needs {', '.join(missing)}; the board has: {listed}",
            todo="compile it for a target that needs no more than that; `ibert targets` lists them",
        )
