"""What a compiled library says about itself: the records that its section of metadata holds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..common.schema import FLAG, OBJECT, SCALE, STRING, either, integer, one_of, schema_of
from ..common.strict_json import JsonDict, JsonObject
from ..model.model_info import ModelInfo

_EXTENT = integer(1, 2**31 - 1)
_SIZE = integer(0, 2**62)
_AXIS = either(_EXTENT, one_of("batch", "seq_len"))
_DTYPE = one_of("int8", "uint8", "int16", "int32", "int64")


@dataclass(frozen=True)
class KernelRecord:
    """One kernel call of a function.

    Attributes
    ----------
    name
        The kernel's name in the library.
    kind
        What it is built around: `linear`, `attention`, `layer_norm` ...
    layer
        Canonical name of the layer.
    macs
        Multiply-accumulates of its matrix products; 0 for a row operation.
    num_bytes
        What its arguments and results take, each once; 0 in libraries of earlier versions.
    """

    name: str
    kind: str
    layer: str
    macs: int
    num_bytes: int = field(default=0, metadata={"key": "bytes"})


@dataclass(frozen=True)
class TokenRecord:
    """How a packed function on a GPU counts its tokens, and what it has graphs for.

    Attributes
    ----------
    mask
        Number of the input that is not 0 where a token counts.
    kept
        Positions whose tokens are computed whatever it says.
    buckets
        Tokens that each graph has room for, ascending.
    """

    mask: int
    kept: tuple[int, ...]
    buckets: tuple[int, ...]


@dataclass(frozen=True)
class FunctionRecord:
    """One compiled shape: its function in the library, rows and tokens per row, its kernels.

    The kernels are in order of execution; libraries of earlier versions list none. A packed
    function computes the tokens that the attention mask keeps, and no padding; on a GPU, `tokens`
    says more of them. In a library without runtime, `symbol` is its C function and `arena_bytes`
    the memory that a call needs.
    """

    name: str
    batch: int
    seq_len: int
    kernels: tuple[KernelRecord, ...] = ()
    packed: bool = False
    symbol: str = ""
    arena_bytes: int = 0
    tokens: TokenRecord | None = None

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all matrix products; 0 where no kernels are listed."""
        return sum(kernel.macs for kernel in self.kernels)


@dataclass(frozen=True)
class InputRecord:
    """One input of every function.

    Its shape is [batch, seq_len], or that of images or features behind the batch. Those are real
    on the caller's side, and come to the library as ``clamp(round(x / scale) + zero_point, low,
    high)``; `scale` is 0 for tokens, which are integers anyway.
    """

    name: str
    dtype: str
    scale: float = 0.0
    zero_point: int = 0
    low: int = 0
    high: int = 0

    def to_json(self) -> dict[str, object]:
        """Return the record as a JSON-serialisable dictionary; tokens have no quantisation."""
        return asdict(self) if self.scale else {"name": self.name, "dtype": self.dtype}


@dataclass(frozen=True)
class ParameterRecord:
    """One integer parameter: where it lies in the weights section, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class OutputRecord:
    """One output: `value = integer * scale`; `shape` names the axes `batch` and `seq_len`."""

    name: str
    dtype: str
    scale: float
    kind: str
    shape: tuple[int | str, ...]

    @property
    def per_token(self) -> bool:
        """Whether one axis counts tokens."""
        return "seq_len" in self.shape


SCHEMA = {
    "target": {"name": STRING},
    "required_cpu_features": [STRING],
    "functions": [
        schema_of(
            FunctionRecord,
            batch=_EXTENT,
            seq_len=_EXTENT,
            arena_bytes=_SIZE,
            kernels=[schema_of(KernelRecord, macs=_SIZE, bytes=_SIZE)],
            tokens=schema_of(TokenRecord, mask=_SIZE, kept=[_SIZE], buckets=[_EXTENT]),
        )
    ],
    "inputs": [schema_of(InputRecord, dtype=_DTYPE, scale=either(SCALE, one_of(0, 0.0)))],
    "outputs": [schema_of(OutputRecord, dtype=_DTYPE, scale=SCALE, shape=[_AXIS])],
    "parameters": [schema_of(ParameterRecord, dtype=_DTYPE, shape=[_SIZE], offset=_SIZE)],
    "versions": {"*": STRING},
    "source_sha256": STRING,
    "runtime?": one_of("tvm", "none"),
    "threads?": FLAG,
    "prefix?": (
        lambda value: isinstance(value, str) and re.fullmatch(r"[a-z0-9_]{1,32}", value),
        "the beginning of C names",
    ),
    "tokenizer?": either(OBJECT, one_of(None)),
    "cuda?": {
        "architectures?": [STRING],
        "launches?": {"*": {"blocks": [_EXTENT], "rows?": [_EXTENT]}},
    },
}
"""What the section of metadata holds, for `ibert_tvm.common.schema.check`."""

_Record = TypeVar("_Record")


def read_record(kind: type[_Record], document: JsonObject) -> _Record:
    """Read a record from a JSON object.

    Parameters
    ----------
    kind
        One of the records of this module; fields with a default may be missing.
    document
        The object.

    Returns
    -------
    object
        The record.

    Raises
    ------
    KeyError, TypeError, ValueError
        If a field is missing or holds something else.
    """
    values = {}
    for item in fields(kind):  # type: ignore[arg-type]
        key = item.metadata.get("key", item.name)
        if key in document or item.default is MISSING:
            values[item.name] = _READERS[str(item.type)](document[key])
    return kind(**values)


_READERS: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "float": float,
    "int": int,
    "str": str,
    "TokenRecord | None": lambda row: read_record(TokenRecord, row),
    "tuple[KernelRecord, ...]": lambda rows: tuple(read_record(KernelRecord, r) for r in rows),
    "tuple[int, ...]": lambda sizes: tuple(map(int, sizes)),
    "tuple[int | str, ...]": lambda axes: tuple(a if isinstance(a, str) else int(a) for a in axes),
}
"""By the types that fields are declared with."""


@dataclass(frozen=True)
class LibraryMetadata:
    """Everything a library says about itself.

    Attributes
    ----------
    path
        The library.
    target
        What it was compiled for.
    required_cpu_features
        Processor flags, as in /proc/cpuinfo, without which it would fault.
    functions
        The compiled shapes.
    inputs, parameters, outputs
        The signature of every function: inputs, then parameters; and what it returns.
    info
        The model.
    versions
        Of TVM and of this project at compile time.
    source_sha256
        Hash of the source model.
    tokenizer
        Tokenizer files, zlib and base64; empty if there are none.
    file_bytes, weight_bytes
        Sizes of the file and of its weights section.
    runtime
        What runs it: ``"tvm"``, or ``"none"`` where it is plain C functions.
    threads
        Whether kernels can run on several threads.
    prefix
        What the names of its C functions begin with, where it is plain C functions.
    architectures
        Architectures of NVIDIA's GPUs that it has code for, for example ``sm_75``, and
        ``compute_75`` for code that the driver compiles; empty where kernels run on the processor.
    digest
        SHA-256 in the file's seal, which stands for all that the library holds.
    """

    path: Path
    target: JsonObject
    required_cpu_features: tuple[str, ...]
    functions: tuple[FunctionRecord, ...]
    inputs: tuple[InputRecord, ...]
    parameters: tuple[ParameterRecord, ...]
    outputs: tuple[OutputRecord, ...]
    info: ModelInfo
    versions: Mapping[str, str]
    source_sha256: str
    tokenizer: Mapping[str, str]
    file_bytes: int
    weight_bytes: int
    runtime: str = "tvm"
    architectures: tuple[str, ...] = ()
    device_code: JsonObject = field(default_factory=dict)
    threads: bool = True
    prefix: str = "ibert"
    digest: str = ""

    @property
    def device(self) -> str:
        """What kernels run on: ``"cpu"`` or ``"cuda"``."""
        return "cuda" if self.architectures else "cpu"

    def document(self) -> JsonDict:
        """What `ibert inspect` says: all but the content of the tokenizer's files."""
        return {
            "kind": "compiled library",
            "path": str(self.path),
            "digest": self.digest,
            "bytes": self.file_bytes,
            "weight_bytes": self.weight_bytes,
            "target": dict(self.target),
            "runtime": self.runtime,
            "required_cpu_features": list(self.required_cpu_features),
            **({"device_code": self._device_document()} if self.device_code else {}),
            "device": self.device,
            "architectures": list(self.architectures),
            "functions": [
                {
                    "name": f.name,
                    "batch": f.batch,
                    "seq_len": f.seq_len,
                    **({"symbol": f.symbol, "arena_bytes": f.arena_bytes} if f.symbol else {}),
                }
                for f in self.functions
            ],
            "inputs": [i.to_json() for i in self.inputs],
            "outputs": [asdict(output) for output in self.outputs],
            "parameters": [
                {"name": p.name, "dtype": p.dtype, "shape": list(p.shape)} for p in self.parameters
            ],
            "info": self.info.to_json(),
            "versions": dict(self.versions),
            "source_sha256": self.source_sha256,
            "tokenizer": sorted(self.tokenizer),
        }

    def _device_document(self) -> JsonDict:
        """Device code, with kernels in the order in which they run."""
        calls = [kernel.name for function in self.functions for kernel in function.kernels]
        order = {name: place for place, name in reversed(list(enumerate(calls)))}
        kernels = sorted(
            self.device_code.get("kernels", ()),
            key=lambda kernel: (order.get(kernel["kernel"], len(calls)), kernel["name"]),
        )
        return {**self.device_code, "kernels": kernels}

    @cached_property
    def max_seq_len(self) -> int:
        """Longest compiled sequence."""
        return max(function.seq_len for function in self.functions)

    def input_kinds(self, function: FunctionRecord) -> list[tuple[tuple[int, ...], str]]:
        """Shape and dtype of every input of a function, in its order."""
        shape = (function.batch, *(self.info.image_size or (function.seq_len,)))
        return [(shape, record.dtype) for record in self.inputs]

    def output_kinds(self, function: FunctionRecord) -> list[tuple[tuple[int, ...], str]]:
        """Shape and dtype of every output of a function, in its order."""
        extents: dict[int | str, int] = {"batch": function.batch, "seq_len": function.seq_len}
        return [
            (tuple(int(extents.get(axis, axis)) for axis in record.shape), record.dtype)
            for record in self.outputs
        ]
