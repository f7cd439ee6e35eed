"""What a board says about itself, and whether it can run a library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import BoardError

# Bits of the auxiliary vector, of its first and its second word of capabilities, by the names that
# /proc/cpuinfo gives them: arch/arm64/include/uapi/asm/hwcap.h and arch/arm/include/uapi/asm/
# hwcap.h of Linux. /proc/cpuinfo itself is the host's under an emulator.
_AARCH64 = {
    (0, 0): "fp",
    (0, 1): "asimd",
    (0, 3): "aes",
    (0, 7): "crc32",
    (0, 8): "atomics",
    (0, 9): "fphp",
    (0, 10): "asimdhp",
    (0, 12): "asimdrdm",
    (0, 20): "asimddp",
    (0, 22): "sve",
    (1, 1): "sve2",
    (1, 13): "i8mm",
    (1, 14): "bf16",
}
_ARM = {
    (0, 5): "fastmult",
    (0, 6): "vfp",
    (0, 7): "edsp",
    (0, 12): "neon",
    (0, 13): "vfpv3",
    (0, 16): "vfpv4",
    (0, 17): "idiva",
    (0, 18): "idivt",
}
# e_machine of the ELF specification, and the architectures of `uname -m` whose processors run it.
_MACHINES = {
    "EM_X86_64": ("x86_64", "amd64"),
    "EM_AARCH64": ("aarch64", "arm64"),
    "EM_ARM": ("armv6l", "armv7l", "armv8l", "aarch64"),
}


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
    if machine in ("x86_64", "amd64"):
        for line in cpuinfo.splitlines():
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
        return frozenset()
    bits = _AARCH64 if machine in ("aarch64", "arm64") else _ARM
    return frozenset(name for (word, bit), name in bits.items() if words[word] >> bit & 1)


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
    if board.machine not in _MACHINES.get(elf_machine, ()):
        raise BoardError(
            what="the library does not run on the board",
            where=f"target {target!r}",
            why=f"it was compiled for {elf_machine}; the board is {board.machine or 'unknown'}",
            todo="compile it for the board's architecture; `ibert targets` lists them",
        )
    # 32-bit programs see other capabilities on a 64-bit processor, which has all of NEON.
    names = board.features | ({"neon"} if "asimd" in board.features else set())
    missing = [name for name in required if name not in names]
    if missing:
        listed = ", ".join(sorted(board.features)) or "none"
        raise BoardError(
            what="the library does not run on the board's processor",
            where=f"target {target!r}, a board with {board.machine}",
            why=f"it needs {', '.join(missing)}; the board has: {listed}",
            todo="compile it for a target that needs no more than that; `ibert targets` lists them",
        )
