"""What the compiler must know about a processor: data, not code.

A target is one :class:`TargetDescription`. Passes, emission and schedules ask it for *capabilities*
(which operands the dot-product instruction takes, how wide a vector is), never for its name, so
that adding a processor means adding one description.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .machines.record import Emulator, Machine, Toolchain


@dataclass(frozen=True)
class DotInstruction:
    """The instruction that multiplies 8-bit vectors and accumulates in 32 bits, exactly.

    Attributes
    ----------
    name
        Name of the tensor intrinsic in ``ibert_tvm.schedules.intrinsics``, or ``"none"`` where the
        compiler's own vectoriser does the work.
    lhs_dtype
        Type of the broadcast (activation) operand: ``"uint8"``, ``"int8"``, or ``"int16"`` or
        ``"int32"`` where the instruction takes activations widened beforehand.
    rhs_dtype
        Type of the vector (weight) operand; ``"int16"`` where the kernel widens weights as well, a
        few columns at a time. They are stored as int8 in any case.
    lanes
        Number of 32-bit accumulators one instruction updates.
    depth
        Number of products that one instruction adds to each accumulator.
    tile_rows, tile_vectors
        Rows and accumulator vectors of the default register tile; their product plus the operands
        must fit the vector register file.
    groups
        Groups of `depth` products that the tensor intrinsic takes at once, at most, a power of two:
        as many as fill a register with activations, of which each instruction then uses a part.
    rows
        Rows of activations that one instruction multiplies: 2 for a product of matrices, which
        takes one group.
    full_range
        Name of the intrinsic for operands that may both be -128, where this one adds products in 16
        bits; empty where it is exact for all operands.
    short
        Name of the intrinsic that takes a vector operand of 16 bits as it is, beside activations of
        16 bits; empty where there is none.
    unroll
        Steps of the depth that are written out by default, at most; a power of two.
    either_sign
        Whether activations may be bytes of either signedness; `lhs_dtype` is what linear layers
        use.
    sets
        Whether the microkernel of whole tiles has a second function that stores sums instead of
        adding to what is there.
    """

    name: str
    lhs_dtype: str
    rhs_dtype: str
    lanes: int
    depth: int
    tile_rows: int
    tile_vectors: int
    groups: int = 1
    rows: int = 1
    full_range: str = ""
    short: str = ""
    unroll: int = 1
    either_sign: bool = False
    sets: bool = False

    def __post_init__(self) -> None:
        for label in ("lanes", "depth", "tile_rows", "tile_vectors", "groups", "rows", "unroll"):
            if getattr(self, label) < 1:
                raise ValueError(f"dot instruction {self.name}: {label} must be at least 1")
        if self.tile_rows % self.rows:
            raise ValueError(
                f"dot instruction {self.name}: tile_rows must be a multiple of {self.rows}"
            )
        if self.lhs_dtype not in ("int8", "uint8", "int16", "int32"):
            raise ValueError(f"dot instruction {self.name}: lhs_dtype {self.lhs_dtype!r}")
        if self.rhs_dtype not in ("int8", "uint8", "int16"):
            raise ValueError(f"dot instruction {self.name}: rhs_dtype {self.rhs_dtype!r}")


@dataclass(frozen=True)
class Gpu:
    """The graphics processor that kernels run on.

    Attributes
    ----------
    architectures
        What the device code is compiled for, for example ``("sm_75",)``, in ascending order.
    multiprocessors
        How many work at a time: so many blocks keep the device busy.
    shared_bytes
        Shared memory that one block may have, at most.
    ptx
        Whether portable code of the newest architecture goes with the machine code, which a driver
        compiles for GPUs that are newer still; no audit sees what it makes of it.
    """

    architectures: tuple[str, ...]
    multiprocessors: int
    shared_bytes: int
    ptx: bool = False

    @property
    def capability(self) -> int:
        """Compute capability that all architectures have, for example 75."""
        return min(int(name.removeprefix("sm_")) for name in self.architectures)


@dataclass(frozen=True)
class TargetDescription:
    """One thing that can be compiled for.

    Attributes
    ----------
    name
        What the user writes after ``--target``.
    description
        One line for ``ibert targets``.
    tvm_target
        The TVM target as its JSON dictionary.
    dot
        The 8-bit dot product that matrix kernels are built on.
    vector_lanes
        Entries that row operations and epilogues take at once: the 32-bit lanes of a vector
        register, or a multiple, so that 16 or 8 bits of each fill a register.
    machine
        The processor architecture, and the system on it.
    required_features
        Processor features, as named in ``/proc/cpuinfo``, without which the code would fault.
    q15_multiply
        LLVM intrinsics of the rounding high product of 16-bit integers, by number of lanes. Other
        numbers of lanes take 32-bit arithmetic.
    high_product
        LLVM intrinsics of the upper half of the product of 32-bit integers, by number of lanes;
        their third argument is 0.
    prefetches_weights
        Whether matrix kernels request weights ahead; worth its instructions where several levels of
        cache lie between a core and memory.
    whole_vectors
        Whether vectors must have a power of two of lanes: LLVM's code generator for MVE fails on
        others.
    retry_options
        Options of LLVM with which a kernel is compiled again of which its code generator died; with
        some, kernels are compiled in a process of their own. That for MVE dies when it hoists some
        shuffles with constants.
    explicit_row_sums
        Whether schedules vectorise sums over a row, because the compiler does it badly.
    microkernels
        Files in ``targets/microkernels`` whose functions the kernels of `dot` call.
    scalar_dot
        Product of kernels that are written in C, and its microkernels, where `dot` takes vectors;
        None where nothing beats plain loops.
    microkernel_flags
        Flags that the compiler takes for these files besides `compiler_flags`.
    stack_alignment
        Bytes that kernels' buffers on the stack are aligned to, at least; more than 16 only where
        its rows would otherwise lie in two cache lines each.
    scalar_instructions
        LLVM intrinsics of instructions on single numbers, by what they do: ``"multiply_add"`` (a b
        + c of 16-bit factors), ``"saturate"`` (to so many bits), ``"positive"`` (maximum with 0, as
        one of `functions`). Without one, arithmetic is used.
    float_abi
        ``"hard"`` or ``"soft"``: how the machine passes floating-point arguments, which linked
        objects must agree on although nothing here passes any; empty where it has one way only.
    compiler_flags
        Options by which the machine's cross-compiler compiles for this processor.
    emulated
        Processor that the machine's emulator stands in for: it has what the target has, and nothing
        more. Empty where none is needed.
    emulated_board
        Board around it; empty where single programs are emulated.
    functions
        Functions that the target has. Of single numbers, where the specification is written for
        registers of one: ``"square_root"``, ``"floor_log2"``, ``"normalised_reciprocal"``,
        ``"minimum"`` and ``"positive"``; of vectors without numbers of 64 bits:
        ``"high_product"``; of vectors whose lanes shift by one amount: ``"uniform_shift"``.
    gpu
        The graphics processor; None where kernels run on the processor itself.
    runs_on
        Preprocessor condition that holds where a compiler is told of a processor that runs the
        code, of those of the machine; empty where all do.
    also
        Processors that run the same code, whose names select this target as well.
    """

    name: str
    description: str
    machine: Machine
    tvm_target: dict[str, object]
    dot: DotInstruction
    vector_lanes: int
    required_features: tuple[str, ...] = ()
    q15_multiply: tuple[tuple[int, str], ...] = ()
    high_product: tuple[tuple[int, str], ...] = ()
    scalar_instructions: tuple[tuple[str, str], ...] = ()
    prefetches_weights: bool = False
    whole_vectors: bool = False
    retry_options: tuple[str, ...] = ()
    explicit_row_sums: bool = False
    microkernels: tuple[str, ...] = ()
    scalar_dot: tuple[DotInstruction, tuple[str, ...]] | None = None
    microkernel_flags: tuple[str, ...] = ()
    stack_alignment: int = 16
    float_abi: str = ""
    compiler_flags: tuple[str, ...] = ()
    emulated: str = ""
    emulated_board: str = ""
    functions: tuple[str, ...] = ()
    gpu: Gpu | None = None
    runs_on: str = ""
    also: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        processor = self.tvm_target.get("host", self.tvm_target)
        triple = processor.get("mtriple") if isinstance(processor, dict) else None
        family = str(triple).partition("-")[0]
        if triple is not None and not self.machine.triples.match(family):
            why = f"tvm_target is for {triple}, machine is {self.machine.name}"
        elif self.float_abi not in self.machine.float_abis:
            known = ", ".join(map(repr, self.machine.float_abis))
            why = f"float_abi is {self.float_abi!r}, machine {self.machine.name} has {known}"
        elif self.emulated and self.machine.emulator is None:
            why = f"machine {self.machine.name} has no emulator for {self.emulated}"
        else:
            return
        raise ValueError(f"target {self.name!r}: {why}")

    @property
    def elf_machine(self) -> str:
        """Value of ``e_machine`` that a linked library must have."""
        return self.machine.elf_machine

    @property
    def system(self) -> str:
        """``"linux"``, or ``"bare-metal"`` where there is no operating system."""
        return self.machine.system.kind

    @property
    def runtimes(self) -> tuple[str, ...]:
        """What a compiled model can be run by, the default first; see `Linux.runtimes`."""
        return self.machine.runtimes if self.gpu is None else ("tvm", "none")

    @property
    def toolchain(self) -> Toolchain | None:
        """Compiler to cross-compile with; None where the host's own compiler serves."""
        chosen = self.machine.toolchains.get(self.float_abi)
        return chosen and replace(chosen, flags=self.compiler_flags)

    @property
    def emulator(self) -> Emulator | None:
        """What runs the result on a machine of another kind; None where none is needed."""
        if self.machine.emulator is None or not self.emulated:
            return None
        libraries = ""
        if not self.emulated_board and self.toolchain is not None:
            libraries = f"/usr/{self.toolchain.machine}"
        return replace(
            self.machine.emulator,
            processor=self.emulated,
            board=self.emulated_board,
            libraries=libraries,
        )

    @property
    def llvm_features(self) -> tuple[str, ...]:
        """Features of LLVM that the target switches on or off: ``"+mve"``."""
        features = self.tvm_target.get("mattr")
        return tuple(map(str, features)) if isinstance(features, (list, tuple)) else ()

    @property
    def has_float_registers(self) -> bool:
        """Whether there are registers of floats, which may hold vectors of integers."""
        vectors = self.machine.integer_vectors.intersection(self.llvm_features)
        return self.float_abi != "soft" or bool(vectors)
