"""What differs between processor architectures: one :class:`Machine` each, asked by everybody.

A record is complete or refused: a part that is missing is an error when its module is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ..elf import ELF
from ..object_format import ObjectFormat
from .code import FlowRules, StackRules

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

RUNTIMES = ("tvm", "none")

# Functions of floating point in the compilers' run-time libraries and the C library. This pattern
# and those of machines are compiled when code is audited, not by whoever loads a library.
_FLOAT_FUNCTION = (
    r"__(?:float|fix|extend|trunc)\w*[sdthx]f\w*"
    r"|__(?:add|sub|mul|div|neg|cmp|unord|eq|ne|lt|le|gt|ge|pow[id]|mulc|divc)[sdthx][fc]\w*"
    r"|__(?:gnu_[fhd]2[fhd]\w*|bb_\w+f)"
    r"|(?:exp|exp2|expm1|log|log2|log10|log1p|pow|sqrt|cbrt|a?sinh?|a?cosh?|a?tanh?|atan2|erfc?"
    r"|floor|ceil|round|rint|trunc|fabs|fm(?:in|ax|a|od)|ldexp|frexp|modf|hypot|l?lrint|l?lround"
    r"|nearbyint|copysign|tgamma|lgamma)[fl]?"
)


# What libraries under Linux call: memory, threads, the C runtime's hooks, the processor's features
# and the permission to use them, TVM's runtime. Nothing that changes what is executable, or
# finds functions by their names.
_LIBRARY_CALL = re.compile(
    r"(?:mem(?:set|cpy|move)|open(?:64)?|read|close|str(?:chr|str))|(?:__)?TVM\w+|pthread_\w+"
    r"|__(?:mem(?:set|cpy|move)|read)_chk|__open(?:64)?_2|__stack_chk_\w+|sched_yield|sigfillset"
    r"|uname|sysconf|(?:__)?getauxval|arch_prctl|__tls_get_addr|__register_atfork|__cxa_finalize|_ITM_\w+"
    r"|__gmon_start__|__aeabi_(?:mem\w+|read_tp)"
)


# Functions of the compilers' own libraries (libgcc, compiler-rt) for integers: division where there
# is no instruction of it, and 64-bit arithmetic. None of them computes with floats.
GCC_INTEGER_HELPERS = frozenset(
    {
        *(f"__{name}{size}i3" for name in ("div", "udiv", "mod", "umod") for size in "sd"),
        *(f"__{name}di3" for name in ("mul", "ashl", "ashr", "lshr")),
        "__clzsi2",
        "__clzdi2",
    }
)


@dataclass(frozen=True)
class Toolchain:
    """The C compiler that assembles and links for a target.

    Attributes
    ----------
    machine
        What its command must answer to ``-dumpmachine``.
    package
        Debian packages that have it and the headers of its C library.
    flags
        Which processor to compile for.
    command
        Where it is no ``MACHINE-gcc``.
    """

    machine: str
    package: str
    flags: tuple[str, ...] = ()
    command: str = ""

    @property
    def compiler(self) -> str:
        """Its command, for example ``aarch64-linux-gnu-gcc``."""
        return self.command or f"{self.machine}-gcc"


@dataclass(frozen=True)
class Emulator:
    """The emulator that runs what was compiled, on a machine of another kind.

    Attributes
    ----------
    program
        QEMU's command.
    package
        Debian package that has it.
    processor
        Processor to emulate: it has what the target has, and nothing more.
    board
        Board to emulate; empty where single programs are emulated, and the system is the host's.
    libraries
        Folder of the target's shared libraries; empty on a board.
    options
        What boards of the machine are started with besides.
    """

    program: str
    package: str
    processor: str = ""
    board: str = ""
    libraries: str = ""
    options: tuple[str, ...] = ()

    def on_board(self, firmware: Path, program: str = "", board: str = "") -> list[str]:
        """Command that starts firmware on the board, without display.

        Semihosting gives it console, files and exit status.

        Parameters
        ----------
        firmware
            ELF file.
        program
            Path of the emulator.
        board
            Another board than `board`.
        """
        quiet = ("-nographic", "-monitor", "none", "-serial", "none")
        semihosting = ("-semihosting-config", "enable=on,target=native")
        words = (program or self.program, "-M", board or self.board, *self.options, *quiet)
        return [*words, *semihosting, "-kernel", str(firmware)]


@dataclass(frozen=True)
class FloatUse:
    """What an ELF file says about floats: the convention for arguments, and units that it needs."""

    abi: str = ""
    unit: bool = False
    vectors: bool = False


@dataclass(frozen=True)
class Driver:
    """The part of a library that starts the kernels of a GPU, on this machine's processor.

    Attributes
    ----------
    processor
        TVM's attributes of the least processor that drives GPUs.
    required_features
        What that processor has, as named in ``/proc/cpuinfo``.
    """

    processor: Mapping[str, str]
    required_features: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Linux:
    """A machine under Linux.

    Attributes
    ----------
    names
        What ``uname -m`` says, in lower case, where programs for this machine run.
    kernels
        Further such names that a board may have whose programs these are: 32-bit programs under a
        64-bit kernel.
    runtimes
        What a compiled model can be run by, the default first: ``"none"`` (a plain C ABI) and
        ``"tvm"`` (TVM's runtime, where there are packages of it).
    capabilities
        Features by word and bit of the kernel's auxiliary vector (AT_HWCAP is word 0, AT_HWCAP2
        word 1); empty where ``/proc/cpuinfo`` alone tells them.
    implied
        By a feature of the processor those that 32-bit programs see instead.
    driver
        How it drives a GPU; None where it does not.
    permits
        Asks the kernel whether this process may use what a feature says that the processor has;
        None where it may use everything.
    threads
        Whether kernels without runtime can run on several threads: ``parallel.c`` wants atomics of
        64 bits, and a C library no older than that of the compiler, which boards may not have.
    """

    kind: ClassVar = "linux"
    # Without runtime: of the arena, of weights and of values; a cache line, and the widest vector.
    alignment: ClassVar = 64
    # Larger buffers of kernels go to the workspace: a thread may have been given little stack.
    stack_buffer_bytes: ClassVar = 4096
    # Whether results may lie over arguments: compilers know less of pointers that share bytes.
    in_place: ClassVar = False
    # Microkernels go to shared libraries; nothing there unwinds them.
    object_flags: ClassVar = ("-fPIC", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables")

    names: tuple[str, ...]
    kernels: tuple[str, ...] = ()
    runtimes: tuple[str, ...]
    capabilities: Mapping[tuple[int, int], str] = field(default_factory=dict)
    implied: Mapping[str, str] = field(default_factory=dict)
    driver: Driver | None = None
    permits: Callable[[str], bool] | None = None
    threads: bool = False

    def features(self, words: Sequence[int]) -> frozenset[str]:
        """Names of the capabilities that are set in the words of the auxiliary vector."""
        bits = self.capabilities.items()
        return frozenset(name for (word, bit), name in bits if words[word] >> bit & 1)


@dataclass(frozen=True, kw_only=True)
class BareMetal:
    """A microcontroller.

    Attributes
    ----------
    stack
        How frames and calls are read off its code.
    start_up
        Sources of the example firmware that are the machine's own, in ``examples/firmware``.
    compilers
        Preprocessor condition that holds for compilers of this machine.
    pointer
        Type of the relocation of a word that holds an address.
    neutral
        Section of an object that says how floats are passed, and a function that makes its content
        say that any convention is served; None where no linker asks.
    any_compiler
        Whether its packages are sources for whatever compiler there is, and the machine's own only
        checks them.
    """

    kind: ClassVar = "bare-metal"
    alignment: ClassVar = 16
    stack_buffer_bytes: ClassVar = 64  # there is a kilobyte or two of stack
    in_place: ClassVar = True
    object_flags: ClassVar = ()
    threads: ClassVar = False

    stack: StackRules
    start_up: tuple[str, ...]
    compilers: str
    pointer: int
    neutral: tuple[str, Callable[[bytes], bytes]] | None = None
    any_compiler: bool = False


@dataclass(frozen=True, kw_only=True)
class WebPage:
    """A page in a browser, or a program in Node.js: a module with a memory of its own."""

    kind: ClassVar = "wasm"
    alignment: ClassVar = 16
    stack_buffer_bytes: ClassVar = 4096
    in_place: ClassVar = False
    object_flags: ClassVar = ()
    threads: ClassVar = True


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A processor architecture and the kind of system on it.

    Attributes
    ----------
    name
        Its name; ``/NAME`` chooses the processor that drives a GPU.
    title
        Its name in messages.
    elf_machine, bits
        ``e_machine`` and class of its files, which are little-endian; "" where they are no ELF.
    triples
        Architectures, in LLVM's and GNU's triples, that are this family.
    is_floating_point
        Whether an instruction computes with floating-point numbers: of its mnemonic in lower case
        (without prefixes such as ``rep``; with types, ``vadd.f32``), its operands, and whether the
        processor has registers that floats lie in. Without such registers even a move of one is an
        instruction too many.
    flow
        How control passes through its code.
    objects
        How its relocatable objects are read.
    float_functions
        Library functions of floating point, besides those of all machines.
    float_abis
        Conventions for floating-point arguments: ``"hard"``, ``"soft"``, or only ``""``.
    float_use
        Reads the convention off a file; None where files do not tell.
    disassembler
        Options of objdump, by the feature of LLVM that asks for them; ``""`` is always there.
    code_symbol
        Symbol in front of code by which objdump knows what instructions it may have; empty where
        options tell it.
    integer_vectors
        Features of LLVM that put vectors of integers into the registers of floats.
    general_registers
        Options that keep GCC to general registers; empty where it has none.
    integer_helpers
        Functions of the compiler's own library that code without runtime may call.
    toolchains
        Cross-compilers by convention of floats; empty where the host's own compiler serves.
    emulator
        What runs its code elsewhere; None where nothing has to.
    system
        What is particular to Linux, to its absence, or to a page in a browser.
    """

    name: str
    title: str
    elf_machine: str
    bits: int
    triples: re.Pattern[str]
    is_floating_point: Callable[[str, str, bool], bool]
    flow: FlowRules
    objects: ObjectFormat = ELF
    float_functions: re.Pattern[str] | None = None
    float_abis: tuple[str, ...] = ("",)
    float_use: Callable[[ELFFile], FloatUse] | None = None
    disassembler: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    code_symbol: str = ""
    integer_vectors: frozenset[str] = frozenset()
    general_registers: tuple[str, ...] = ()
    integer_helpers: frozenset[str] = frozenset()
    toolchains: Mapping[str, Toolchain]
    emulator: Emulator | None
    system: Linux | BareMetal | WebPage

    def __repr__(self) -> str:
        # Part of keys that outlive a process, which addresses of functions do not.
        return f"Machine({self.name!r})"

    def __post_init__(self) -> None:
        for part in ("name", "title", "float_abis"):
            self._require(bool(getattr(self, part)), f"{part} is empty")
        elf = self.objects is ELF
        self._require(bool(self.elf_machine) == elf, "elf_machine is of files that are ELF")
        self._require(self.bits in (32, 64), f"bits is {self.bits}, not 32 or 64")
        self._require(callable(self.is_floating_point), "is_floating_point is no function")
        told = self.float_abis == ("",) or self.float_use is not None
        self._require(told, "float_use is missing: nothing tells its float_abis apart")
        if self.toolchains:
            missing = sorted(set(self.float_abis) - set(self.toolchains))
            self._require(not missing, f"toolchains has none for the float ABI {missing}")
        elif self.emulator is not None:
            self._require(False, "an emulator needs the C library of a toolchain, which is missing")
        if isinstance(self.system, Linux):
            names, runtimes = self.system.names, self.system.runtimes
            self._require(all(names) and bool(names), "system.names is empty")
            lower = tuple(name.lower() for name in names)
            self._require(lower == names, "system.names are not in lower case")
            known = bool(runtimes) and set(runtimes) <= set(RUNTIMES)
            self._require(known, f"system.runtimes are {runtimes}, not of {RUNTIMES}")
            return
        self._require(bool(self.toolchains), "what has no Linux needs a toolchain")
        if isinstance(self.system, BareMetal):
            started = bool(self.system.start_up) or self.system.any_compiler
            self._require(started, "system.start_up is empty")
            self._require(bool(self.system.compilers), "system.compilers is empty")

    def _require(self, holds: bool, why: str) -> None:
        if not holds:
            raise ValueError(f"machine {self.name!r}: {why}")

    @property
    def runtimes(self) -> tuple[str, ...]:
        """What a model compiled for it can be run by, the default first."""
        return self.system.runtimes if isinstance(self.system, Linux) else ("none",)

    def runs_on(self, name: str) -> bool:
        """Whether its programs run where ``uname -m`` says `name`."""
        return isinstance(self.system, Linux) and name.lower() in self.system.names

    def is_float_function(self, symbol: str) -> bool:
        """Whether a symbol, with or without its version, is a function of floating point."""
        name = symbol.partition("@")[0]
        own = self.float_functions
        return bool(re.fullmatch(_FLOAT_FUNCTION, name) or (own and own.fullmatch(name)))

    def is_call(self, symbol: str) -> bool:
        """Whether a compiled model may call a function of another library."""
        return symbol in self.integer_helpers or _LIBRARY_CALL.fullmatch(symbol) is not None

    def objdump_options(self, features: Collection[str]) -> list[str]:
        """Options that let objdump know the instructions of a processor with some LLVM features."""
        return [
            option
            for feature, options in self.disassembler.items()
            if not feature or feature in features
            for option in options
        ]
