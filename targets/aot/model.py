"""What compiling without runtime leaves: objects, sources, weights, and their sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tvm

from ibert_tvm.common.strict_json import JsonObject

from ..weights import Weight
from .c_text import c_type
from .interface import Interface, item_size


@dataclass(frozen=True)
class KernelParameter:
    """One argument of a kernel.

    Attributes
    ----------
    dtype
        Type of its entries.
    elements
        Number of entries.
    written
        Whether the kernel writes it: results come last.
    alignment
        Bytes that its address is always a multiple of.
    """

    dtype: str
    elements: int
    written: bool
    alignment: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * item_size(self.dtype)


@dataclass(frozen=True)
class BareKernel:
    """One kernel: ``int32_t symbol(T0 *a0, ..., uint8_t *workspace)``, which returns 0.

    Attributes
    ----------
    symbol
        Name in the object file.
    name
        Name in the module.
    kind, layer, macs
        What it is built around, the canonical name of its layer, and the multiply-accumulates of
        its matrix products.
    parameters
        Its arguments without the last, the workspace.
    workspace_bytes
        What it needs of the workspace.
    object_file
        Relocatable object that holds the kernel and nothing else.
    code_bytes
        What that adds to a program.
    undefined
        Functions that it calls: memory functions and integer helpers of the compiler.
    in_place
        Positions of the arguments that may share bytes: results that lie over an argument, and
        these. All others are apart from everything.
    """

    symbol: str
    name: str
    kind: str
    layer: str
    macs: int
    parameters: tuple[KernelParameter, ...]
    workspace_bytes: int
    object_file: bytes
    code_bytes: int
    undefined: tuple[str, ...]
    in_place: tuple[int, ...] = ()

    def declared_parameters(self, qualifier: str = "") -> str:
        """Parameters before the workspace, as C declares them, each with a comma behind it.

        `qualifier` is of those only that share no bytes.
        """
        return "".join(
            f"{'' if one.written else 'const '}{c_type(one.dtype)} *"
            f"{'' if index in self.in_place else qualifier}a{index}, "
            for index, one in enumerate(self.parameters)
        )


@dataclass(frozen=True)
class ArenaPeak:
    """The kernel call at which a function needs most of its arena.

    Attributes
    ----------
    layer
        Canonical name of the layer that the kernel serves.
    nbytes
        Bytes in use at that call.
    parts
        (what, bytes) of everything that lies in the arena then, largest first: outputs of layers,
        and the kernel's workspace.
    """

    layer: str
    nbytes: int
    parts: tuple[tuple[str, int], ...]

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON-serialisable dictionary."""
        return {
            "layer": self.layer,
            "bytes": self.nbytes,
            "parts": [{"what": what, "bytes": nbytes} for what, nbytes in self.parts],
        }


@dataclass(frozen=True)
class BareCall:
    """One call of a kernel: its symbol, and the canonical name of the layer that it serves."""

    symbol: str
    layer: str


@dataclass(frozen=True)
class BareFunction:
    """One compiled shape.

    Attributes
    ----------
    name
        Its name in the module.
    symbol
        Its C function.
    batch, seq_len
        Its shape.
    arena_bytes
        Memory that a call needs.
    lower_bound
        The most that any of its steps needs: no placing could need less.
    peak
        The call at which the arena is fullest, and what fills it.
    calls
        Kernels in order of execution.
    """

    name: str
    symbol: str
    batch: int
    seq_len: int
    arena_bytes: int
    lower_bound: int
    peak: ArenaPeak
    calls: tuple[BareCall, ...]


@dataclass(frozen=True)
class TextSources:
    """C that turns text into the inputs of a model: its tokenizer.

    Attributes
    ----------
    declarations
        For the header, with names that begin with ``ibert``.
    sources
        By file name; they include the header, and their names begin with the model's prefix.
    report
        Its sizes, and what was checked, for people.
    """

    declarations: str
    sources: Mapping[str, str]
    report: Mapping[str, object]


@dataclass(frozen=True)
class DeviceProgram:
    """What a GPU runs in the place of kernels in C.

    Attributes
    ----------
    source
        C that launches it; includes the header, and its names begin with the model's prefix.
    image
        Machine code, under the symbol ``ibert_device_code``.
    report
        What the library says of it, as of `ibert_tvm.targets.build.GpuBuild`.
    tokens
        And of the tokens of each function, likewise.
    """

    source: str
    image: bytes = field(repr=False)
    report: JsonObject
    tokens: Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class BareModel:
    """A program without runtime, ready to be linked.

    Attributes
    ----------
    interface
        Its signature.
    target_name
        What it was compiled for.
    alignment
        Of the arena, of every value in it and of every weight, in bytes.
    kernels
        In order of first use.
    functions
        One per shape.
    weights
        In the order of `parameters`.
    weight_bytes
        Of all weights in the program, each padded to the alignment.
    parameters
        Values of the weights by name.
    support
        Object files that the kernels call, by name: microkernels of the target.
    support_sources
        Their C sources, for whoever compiles the kernels from C.
    threads
        Whether its kernels can run on several threads.
    header
        Text of ``ibert_model.h``.
    driver_c
        Text of the C source that includes it: portable C99, without libc.
    lowered
        The kernels as TIR with their final signature: what `c_source.kernels_source` writes.
    text
        Its tokenizer; None if it takes token ids only.
    external
        Which weights the program gives an address for, of `bare_metal.options.EXTERNAL`; none if
        empty.
    external_content
        The file of these weights.
    fetch_buffer
        Bytes of weights that may be fetched at once, as was asked for; None for few.
    largest_fetch
        Bytes of the largest piece of weights that is fetched; 0 if none are.
    device
        What runs on a GPU; None where kernels run on the processor.
    arena_at
        Bytes of the arena of one sequence, by its tokens; None where nothing can tell.
    """

    interface: Interface
    target_name: str
    alignment: int
    kernels: tuple[BareKernel, ...]
    functions: tuple[BareFunction, ...]
    weights: tuple[Weight, ...]
    weight_bytes: int
    parameters: Mapping[str, np.ndarray]
    support: Mapping[str, bytes]
    support_sources: tuple[Path, ...]
    threads: bool
    header: str
    driver_c: str
    lowered: tvm.IRModule = field(repr=False)
    text: TextSources | None = None
    external: str = ""
    external_content: bytes = field(default=b"", repr=False)
    fetch_buffer: int | None = None
    largest_fetch: int = 0
    device: DeviceProgram | None = None
    arena_at: Callable[[int], int] | None = field(default=None, repr=False, compare=False)

    @property
    def linked(self) -> list[Weight]:
        """Weights in the program."""
        return [weight for weight in self.weights if not weight.external]

    @property
    def objects(self) -> dict[str, bytes]:
        """Object file of each kernel, by symbol."""
        return {kernel.symbol: kernel.object_file for kernel in self.kernels}

    @property
    def report(self) -> dict[str, object]:
        """Sizes for people, in bytes but for the number of kernels; of arenas by function."""
        return {
            "arena_bytes": {function.name: function.arena_bytes for function in self.functions},
            "largest_workspace_bytes": max(
                (kernel.workspace_bytes for kernel in self.kernels), default=0
            ),
            "kernels": len(self.kernels),
            "kernel_code_bytes": sum(kernel.code_bytes for kernel in self.kernels),
            "weight_bytes": self.weight_bytes,
        }

    @property
    def arena_bytes(self) -> dict[tuple[int, int], int]:
        """Memory that a call needs, by (batch, sequence length)."""
        return {(f.batch, f.seq_len): f.arena_bytes for f in self.functions}
