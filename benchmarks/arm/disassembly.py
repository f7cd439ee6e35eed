"""Instructions and symbols of an ELF program, as LLVM's disassembler shows them."""

from __future__ import annotations

import bisect
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from ibert_tvm.targets import TargetDescription

from .errors import CountingError

__all__ = ["Instruction", "Program", "read_program"]

_DISASSEMBLERS = ("llvm-objdump", *(f"llvm-objdump-{version}" for version in range(22, 13, -1)))
_LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*?)\s*$")
# bl and blx with the conditions that they may carry (blt, ble and bls are branches that call
# nothing), and RISC-V's jal and jalr.
_CONDITIONS = "eq|ne|cs|hs|cc|lo|mi|pl|vs|vc|hi|ls|ge|lt|gt|le|al"
_CALL = re.compile(rf"^(?:blx?(?:{_CONDITIONS})?(?:\.w)?|blr(?:aa|ab|aaz|abz)?|blxns|bl|jalr?)$")
# Which instructions the disassembler may meet, where the target names no processor. What a program
# says of itself is not enough: compilers leave the DSP instructions of microcontrollers out.
_FEATURES = {"EM_AARCH64": "+v8.6a,+dotprod,+i8mm,+bf16,+fullfp16", "EM_ARM": "+dsp"}


@dataclass(frozen=True)
class Instruction:
    """One instruction of a program.

    Attributes
    ----------
    address
        Where it lies.
    mnemonic, operands
        As the disassembler writes them.
    """

    address: int
    mnemonic: str
    operands: str

    @property
    def is_call(self) -> bool:
        """Whether it is a call that returns to the next instruction."""
        return _CALL.match(self.mnemonic) is not None


@dataclass(frozen=True)
class Program:
    """What is known of a program without running it.

    Attributes
    ----------
    path
        The file.
    machine
        ``e_machine`` of the ELF header, for example "EM_ARM".
    symbols
        Addresses of functions and labels by name, without the bit that marks Thumb code.
    functions
        Those of them that are functions.
    instructions
        All instructions, by address in ascending order.
    """

    path: Path
    machine: str
    symbols: dict[str, int]
    functions: frozenset[str]
    instructions: tuple[Instruction, ...]

    def address(self, name: str) -> int:
        """Address of a symbol.

        Raises
        ------
        CountingError
            If the program has no symbol of that name.
        """
        if name not in self.symbols:
            raise CountingError(
                what=f"no symbol {name!r}",
                where=str(self.path),
                why="it was not linked in, was dropped, or the symbol table was stripped",
                todo="look at what `nm` lists, and link without -s and --gc-sections",
            )
        return self.symbols[name]

    def calls(self) -> Iterator[tuple[int, int]]:
        """Address of every call instruction, and the address that it returns to."""
        for instruction, behind in zip(self.instructions, self.instructions[1:], strict=False):
            if instruction.is_call:
                yield instruction.address, behind.address

    def run(self, address: int, length: int) -> tuple[Instruction, ...]:
        """`length` instructions from `address` on; empty where that is no known instruction."""
        keys = self._addresses
        first = bisect.bisect_left(keys, address)
        if first == len(keys) or keys[first] != address:
            return ()
        return self.instructions[first : first + length]

    def symbol_at(self, address: int) -> str:
        """Name of the function that holds an address; "?" before the first one."""
        starts, names = self._starts
        index = bisect.bisect_right(starts, address)
        return names[index - 1] if index else "?"

    @cached_property
    def _addresses(self) -> list[int]:
        return [instruction.address for instruction in self.instructions]

    @cached_property
    def _starts(self) -> tuple[list[int], list[str]]:
        pairs = sorted((self.symbols[name], name) for name in self.functions)
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def read_program(path: Path, description: TargetDescription) -> Program:
    """Read the symbols of an executable and disassemble it.

    Parameters
    ----------
    path
        The file.
    description
        Target that it was compiled for: which instructions to expect.

    Raises
    ------
    CountingError
        If it is no ELF program at fixed addresses, or there is no disassembler.
    """
    try:
        with path.open("rb") as stream:
            elf = ELFFile(stream)
            kind, machine = elf.header["e_type"], str(elf.header["e_machine"])
            symbols, functions = _symbols(elf, machine)
    except (OSError, ELFError) as error:
        raise CountingError(
            what=f"cannot read {path}",
            where="the program whose instructions are counted",
            why=str(error),
            todo="give an ELF executable of the target",
        ) from error
    if kind != "ET_EXEC":
        raise CountingError(
            what=f"{path.name} has no fixed addresses",
            where="the program whose instructions are counted",
            why=f"its ELF type is {kind}, so that its symbols say nothing about where it runs",
            todo="link it with -static -no-pie",
        )
    return Program(
        path, machine, symbols, functions, tuple(_disassemble(path, machine, description))
    )


def _symbols(elf: ELFFile, machine: str) -> tuple[dict[str, int], frozenset[str]]:
    table = elf.get_section_by_name(".symtab")
    symbols: dict[str, int] = {}
    functions = set()
    for symbol in table.iter_symbols() if table is not None else ():
        kind, value = symbol["st_info"]["type"], symbol["st_value"]
        if kind not in ("STT_FUNC", "STT_NOTYPE") or symbol["st_shndx"] == "SHN_UNDEF":
            continue
        if not symbol.name or symbol.name.startswith("$"):  # $t, $d: code and data of ARM
            continue
        if kind == "STT_FUNC":
            functions.add(symbol.name)
            value &= ~1 if machine == "EM_ARM" else -1
        symbols[symbol.name] = value
    return symbols, frozenset(functions)


def _disassemble(path: Path, machine: str, description: TargetDescription) -> Iterator[Instruction]:
    program = next((found for name in _DISASSEMBLERS if (found := shutil.which(name))), None)
    if program is None:
        raise CountingError(
            what="no disassembler",
            where="counting instructions",
            why="llvm-objdump is not installed",
            todo="install the Debian package llvm",
        )
    features = [_FEATURES.get(machine, ""), *map(str, description.tvm_target.get("mattr", ()))]
    listed = ",".join(name for name in features if name and name != "+soft-float")
    options = ["-d", "--no-show-raw-insn", "--no-leading-headers", f"--mattr={listed}"]
    named = (flag.partition("-mcpu=")[2] for flag in description.compiler_flags)
    # The compiler's name: LLVM 14 knows no Cortex-M85 either.
    if processor := next(filter(None, named), description.tvm_target.get("mcpu")):
        options.append(f"--mcpu={processor}")
    done = subprocess.run(
        [program, *options, str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise CountingError(
            what=f"cannot disassemble {path.name}",
            where=program,
            why=done.stderr.strip()[-1000:] or f"exit status {done.returncode}",
            todo="check that the file is an executable of the target",
        )
    for line in done.stdout.splitlines():
        if found := _LINE.match(line):
            yield Instruction(int(found[1], 16), found[2], found[3])
