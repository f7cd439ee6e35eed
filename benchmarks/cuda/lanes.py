"""The registers of a warp's lanes, with numbers where they are known."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LANES", "Known", "Lanes", "Launch", "Values", "Word", "signed"]

LANES = 32
# Parameters of a kernel start here in constant bank 0 (compute capability 7.5).
_PARAMETERS = 0x160
_CONSTANT = re.compile(r"^(-|~)?c\[0x0\]\[(0x[0-9a-f]+)\]$")

Values = NDArray[np.int64]
Known = NDArray[np.bool_]
Word = tuple[Values, Known]


@dataclass(frozen=True)
class Launch:
    """Which warp of which block is followed, and of how large a launch.

    Attributes
    ----------
    blocks, threads : tuple of int
        The grid, and a block, along x, y and z.
    block : tuple of int
        Number of the block.
    warp : int
        Number of the warp in it.
    """

    blocks: tuple[int, int, int]
    threads: tuple[int, int, int]
    block: tuple[int, int, int] = (0, 0, 0)
    warp: int = 0


def signed(values: Values) -> Values:
    """Numbers of 32 bits without sign as such with one."""
    return (values & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


class Lanes:
    """Registers and predicates of the 32 lanes, and the uniform ones of their warp.

    Parameters
    ----------
    launch : Launch
        Which warp, and of how large a launch.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.registers = np.zeros((257, LANES), np.int64)
        self.known = np.zeros((257, LANES), bool)
        self.uniform: dict[int, int | None] = {}
        self.predicates = np.zeros((8, LANES), bool)
        self.predicates_known = np.zeros((8, LANES), bool)
        self.predicates[7] = self.predicates_known[7] = True
        self.uniform_predicates: dict[int, bool | None] = {7: True}
        x, y, z = launch.threads
        number = launch.warp * LANES + np.arange(LANES)
        self.present = number < x * y * z
        self.special = {
            "SR_TID.X": number % x,
            "SR_TID.Y": number // x % y,
            "SR_TID.Z": number // (x * y),
            "SR_LANEID": np.arange(LANES),
            **{
                f"SR_CTAID.{axis}": np.full(LANES, value)
                for axis, value in zip("XYZ", launch.block, strict=True)
            },
        }

    def predicate(self, text: str) -> tuple[Known, Known]:
        """A predicate such as ``"!P0"``: its values, and which of them are known."""
        negated, name = text.startswith("!"), text.removeprefix("!")
        if name.startswith("U"):
            value = self.uniform_predicates.get(7 if name == "UPT" else int(name[2:]))
            values, known = np.full(LANES, bool(value)), np.full(LANES, value is not None)
        else:
            number = 7 if name == "PT" else int(name[1:])
            values, known = self.predicates[number], self.predicates_known[number]
        return (~values if negated else values), known

    def word(self, text: str) -> Word:
        """An operand of 32 bits: unsigned values, and which of them are known."""
        text = text.removesuffix(".reuse").removesuffix(".ROW").removesuffix(".COL")
        text = text.removesuffix(".reuse")
        every = np.ones(LANES, bool)
        if text.startswith(("0x", "-0x")):
            return np.full(LANES, int(text, 16) & 0xFFFFFFFF), every
        if constant := _CONSTANT.match(text):
            value = self._constant(int(constant[2], 16))
            return self._signed_word(np.full(LANES, value), constant[1] or ""), every
        sign = text[0] if text[0] in "-~|" else ""
        name = text.strip("-~|").partition(".")[0]
        if name == "RZ" or name == "URZ":
            return self._signed_word(np.zeros(LANES, np.int64), sign), every
        if name.startswith("UR"):
            value_or_none = self.uniform.get(int(name[2:]))
            values = np.full(LANES, value_or_none or 0)
            return self._signed_word(values, sign), np.full(LANES, value_or_none is not None)
        if not re.fullmatch(r"R\d+", name):
            return np.zeros(LANES, np.int64), np.zeros(LANES, bool)
        number = int(name[1:])
        return self._signed_word(self.registers[number], sign), self.known[number]

    @staticmethod
    def _signed_word(values: Values, sign: str) -> Values:
        if sign == "-":
            return -values & 0xFFFFFFFF
        if sign == "~":
            return ~values & 0xFFFFFFFF
        if sign == "|":
            return np.abs(signed(values)) & 0xFFFFFFFF
        return values

    def _constant(self, offset: int) -> int:
        """Sizes of the launch, and for parameters addresses far from each other."""
        sizes = (*self.launch.threads, *self.launch.blocks)
        if offset < 4 * len(sizes):
            return sizes[offset // 4]
        if offset < _PARAMETERS:
            return 0
        number, high = divmod(offset - _PARAMETERS, 8)
        return 16 * (number + 1) if high else 0

    def pair(self, text: str) -> Word:
        """An operand of 64 bits, of which only the lower 63 are kept."""
        low, known = self.word(text)
        base = text.removesuffix(".reuse").partition(".")[0]
        if constant := _CONSTANT.match(text):
            high, high_known = np.full(LANES, self._constant(int(constant[2], 16) + 4)), known
        elif re.fullmatch(r"U?R\d+", base):
            kind, number = re.match(r"(U?R)(\d+)", base).groups()  # type: ignore[union-attr]
            high, high_known = self.word(f"{kind}{int(number) + 1}")
        else:
            high, high_known = np.zeros(LANES, np.int64), np.ones(LANES, bool)
        return (high & 0x7FFFFFFF) << 32 | low, known & high_known

    def put(self, text: str, values: Values, known: Known, acting: Known) -> None:
        """Write a register, uniform or not."""
        name = text.partition(".")[0]
        if name in ("RZ", "URZ"):
            return
        values = values & 0xFFFFFFFF
        if name.startswith("UR"):
            sure = bool(known[acting].all())
            self.uniform[int(name[2:])] = int(values[acting][0]) if sure else None
            return
        number = int(name[1:])
        self.registers[number, acting] = values[acting]
        self.known[number, acting] = known[acting]

    def put_pair(self, text: str, values: Values, known: Known, acting: Known) -> None:
        """Write two registers."""
        self.put(text, values, known, acting)
        name = text.partition(".")[0]
        if name not in ("RZ", "URZ"):
            kind, number = re.match(r"(U?R)(\d+)", name).groups()  # type: ignore[union-attr]
            self.put(f"{kind}{int(number) + 1}", values >> 32, known, acting)

    def put_predicate(self, text: str, values: Known, known: Known, acting: Known) -> None:
        """Write a predicate, uniform or not."""
        if text in ("PT", "UPT"):
            return
        if text.startswith("U"):
            sure = bool(known[acting].all())
            self.uniform_predicates[int(text[2:])] = bool(values[acting][0]) if sure else None
            return
        self.predicates[int(text[1:]), acting] = values[acting]
        self.predicates_known[int(text[1:]), acting] = known[acting]
