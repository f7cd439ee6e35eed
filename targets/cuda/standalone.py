"""Programs for a GPU that need the driver's library only: no runtime of TVM's, nothing of CUDA's.

They have the C interface of `ibert_tvm.targets.aot`. In the place of kernels in C there are machine
code for the GPU and tables of launches, which ``device.c.in`` puts into a graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import ir, tirx

from ibert_tvm.common.errors import TargetError

from ..aot.c_text import prefixed, rendered, shape_suffix
from ..aot.compile import Program, driver_text, fingerprint
from ..aot.graph import PlacedGraph, place_values, read_function
from ..aot.header import Sizes, header_text
from ..aot.interface import Interface
from ..aot.model import (
    ArenaPeak,
    BareCall,
    BareFunction,
    BareModel,
    DeviceProgram,
    TextSources,
)
from ..description import TargetDescription
from ..nodes import calls_of, nodes_of
from ..weights import Weight, weight_rows
from . import compile as device_code
from .compile import kernel_roles, source_modules
from .launches import Launch, add_rows, token_records
from .pipeline import gpu_pipeline
from .workspaces import LiftWorkspaces

_TEMPLATE = Path(__file__).with_name("device.c.in")
# Of device memory, and of each value in it.
_ALIGNMENT = 256
_IN_WEIGHTS = 1 << 63
_LAUNCH = "tirx.call_ffi_kernel"
_BEFORE = "tirx.MakePackedAPI"


@dataclass(frozen=True)
class DeviceCall:
    """One launch of a kernel of several: the device kernel, and which arguments it takes.

    Attributes
    ----------
    kernel
        Name of the device kernel.
    arguments
        Positions among the arguments of the whole kernel.
    """

    kernel: str
    arguments: tuple[int, ...]


def device_calls(function: tirx.PrimFunc) -> list[DeviceCall]:
    """The launches of a host function, in order.

    Parameters
    ----------
    function
        Split from its device kernels, with buffers as parameters.

    Raises
    ------
    TargetError
        If launches depend on anything, or take anything but buffers.
    """
    places = {var: index for index, var in enumerate(function.params)}
    for declared in nodes_of(function.body, tirx.DeclBuffer, order="pre"):
        places[declared.buffer] = places[_buffer_of(declared.data)]
    if nodes_of(function.body, tirx.For, tirx.IfThenElse):
        raise _unexpected("launches in a loop, or under a condition")
    calls = []
    for call in calls_of(function.body, _LAUNCH):
        name, *arguments = call.args
        arguments = arguments[: len(arguments) - len(call.attrs.launch_params)]
        taken = tuple(places[_buffer_of(argument)] for argument in arguments)
        calls.append(DeviceCall(str(name.value), taken))
    return calls


def _buffer_of(data: tirx.Expr) -> tirx.Var:
    if not isinstance(data, ir.Call) or getattr(data.op, "name", "") != "tirx.buffer_data":
        raise _unexpected(f"an argument that is no buffer: {data}")
    return data.args[0]


def _unexpected(found: str) -> TargetError:
    return TargetError(
        what=f"a kernel has {found}",
        where="--runtime none for a GPU",
        why="its launches are a table, without code of their own",
        todo="report this model; `--runtime tvm` may serve it meanwhile",
    )


@tvm.ir.instrument.pass_instrument
class _Observer:
    """Notes the launches of host functions before they become functions for TVM's runtime."""

    def __init__(self) -> None:
        self.calls: dict[str, list[DeviceCall]] = {}

    def run_before_pass(self, module: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        if info.name != _BEFORE:
            return
        for var, function in module.functions_items():
            if calls_of(function.body, _LAUNCH):
                self.calls[var.name_hint] = device_calls(function)


def compile_for_driver(
    module: tvm.IRModule,
    parameters: Mapping[str, np.ndarray],
    description: TargetDescription,
    interface: Interface,
    text: TextSources | None = None,
    dump: Path | None = None,
) -> BareModel:
    """Compile a scheduled module for a GPU to a program that the driver's library runs.

    Parameters
    ----------
    module
        Lowered and scheduled, with threads; otherwise as `ibert_tvm.targets.aot.compile_bare`
        takes it.
    parameters
        Integer arrays in the order of the functions' parameters.
    description
        Target with a GPU.
    interface
        Signature; its functions are those of the module that are compiled.
    text
        Its tokenizer.
    dump
        Folder that receives the device code's source and disassembly.

    Raises
    ------
    TargetError
        If the CUDA compiler is missing or fails, the audit refuses its code, or the module holds
        anything but kernel calls.
    """
    module = tvm.transform.Sequential([LiftWorkspaces()])(module)
    graphs = [read_function(shape.name, module[shape.name]) for shape in interface.functions]
    names = dict.fromkeys(call.kernel for graph in graphs for call in graph.calls)
    observer = _Observer()
    launches: dict[str, Launch] = {}
    current = tvm.transform.PassContext.current()
    with (
        source_modules(),
        tvm.transform.PassContext(
            opt_level=current.opt_level,
            config=dict(current.config),
            instruments=[*current.instruments, observer],
        ),
    ):
        executable = tvm.compile(
            tvm.IRModule({name: module[name].with_attr("global_symbol", name) for name in names}),
            target=tvm.target.Target(dict(description.tvm_target)),
            tir_pipeline=gpu_pipeline(description, launches),
        )
    add_rows(launches, module)
    tokens = token_records(module, launches)
    code = device_code.compile_device_code(
        executable, description, kernel_roles(module), launches, dump
    )
    placed = [place_values(graph, dict.fromkeys(names, 0), _ALIGNMENT) for graph in graphs]
    alignment = description.machine.system.alignment
    weights, weight_bytes = weight_rows(parameters, alignment, interface.prefix)
    memory = _Memory(placed, weights)
    arena = dict.fromkeys(((f.batch, f.seq_len) for f in interface.functions), alignment)
    sizes = Sizes(
        alignment,
        arena,
        weight_bytes,
        fingerprint(interface, alignment, arena, parameters, "", None),
    )
    title = f"An integer-only model, compiled for {description.name}."
    tables = _tables(placed, observer.calls, launches, memory)
    source = rendered(
        _TEMPLATE,
        prefix=interface.prefix,
        weight_bytes=weight_bytes,
        needed_cuda=1000 * code.needed.cuda[0] + 10 * code.needed.cuda[1],
        needed_driver=str(code.needed),
        architectures=", ".join(description.gpu.architectures) if description.gpu else "",
        memory_bytes=memory.nbytes,
        host_bytes=memory.host_bytes,
        **_token_tables(interface, tokens),
        **tables,
    )
    return BareModel(
        interface=interface,
        target_name=description.name,
        alignment=alignment,
        kernels=(),
        functions=_functions(interface, placed, alignment),
        weights=weights,
        weight_bytes=weight_bytes,
        parameters=parameters,
        support={},
        support_sources=(),
        threads=False,
        header=header_text(
            interface, sizes, title, declarations=text.declarations if text else "", device=True
        ),
        driver_c=driver_text(Program(interface, tuple(placed), {}, weights, device=True)),
        lowered=tvm.IRModule(),
        text=text,
        device=DeviceProgram(
            prefixed(source, interface.prefix),
            code.image,
            {**code.report, "storage_bytes": memory.nbytes},
            tokens,
        ),
    )


class _Memory:
    """Where everything lies in the memory of a GPU, which all shapes share: nothing runs at once.

    Inputs and outputs come first, in the order in which the host has them; what kernels compute
    between them lies behind.
    """

    def __init__(self, placed: list[PlacedGraph], weights: tuple[Weight, ...]) -> None:
        self.weights = weights
        self.tensors = [_tensor_places(one) for one in placed]
        self.host_bytes = max(end for _, _, end in self.tensors)
        self.nbytes = self.host_bytes + max(one.arena.nbytes for one in placed)

    def address(self, shape: int, one: PlacedGraph, value: int) -> int:
        """Place of a value of a shape, as ``device.c.in`` has it."""
        place = one.places[value]
        if place.kind == "weight":
            return _IN_WEIGHTS | self.weights[place.position].offset
        if place.kind == "arena":
            return self.host_bytes + place.position
        inputs, outputs, _ = self.tensors[shape]
        return (inputs if place.kind == "input" else outputs)[place.position]


def _tensor_places(one: PlacedGraph) -> tuple[list[int], list[int], int]:
    """Offsets of the inputs and of the outputs of a function, and where they end."""
    values = one.graph.values
    kinds = (range(one.graph.num_inputs), one.graph.results)
    sizes = [values[value].nbytes for kind in kinds for value in kind]
    padded = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
    *offsets, end = itertools.accumulate(padded, initial=0)
    return offsets[: one.graph.num_inputs], offsets[one.graph.num_inputs :], end


def _tables(
    placed: list[PlacedGraph],
    calls: Mapping[str, list[DeviceCall]],
    launches: Mapping[str, Launch],
    memory: _Memory,
) -> dict[str, object]:
    """What ``device.c.in`` is filled with: kernels, launches and their arguments, and shapes."""
    used = dict.fromkeys(
        each.kernel for one in placed for call in one.graph.calls for each in calls[call.kernel]
    )
    numbers = {kernel: number for number, kernel in enumerate(used)}
    places: list[int] = []
    rows: list[tuple[int, int, int, int]] = []
    shapes = []
    for shape, one in enumerate(placed):
        for step, call in enumerate(one.graph.calls, 1):
            values = (*call.reads, *call.writes)
            own = calls[call.kernel]
            for index, each in enumerate(own, 1):
                done = step if index == len(own) else 0
                rows.append((numbers[each.kernel], len(places), len(each.arguments), done))
                places += [memory.address(shape, one, values[i]) for i in each.arguments]
        inputs, outputs, _ = memory.tensors[shape]
        sources = [
            *inputs,
            *(memory.address(shape, one, value) for value in one.graph.results),
        ]
        sizes = [
            one.graph.values[value].nbytes
            for value in (*range(one.graph.num_inputs), *one.graph.results)
        ]
        tensors = zip(map(_literal, sources), (*inputs, *outputs), sizes, strict=True)
        shapes.append({"tensors": list(tensors), "end": len(rows)})
    return {
        "kernels": [{"name": kernel, "launch": launches[kernel]} for kernel in used],
        "most_arguments": max(count for _, _, count, _ in rows),
        "places": [_literal(place) for place in places],
        "launches": rows,
        "shapes": shapes,
    }


def _token_tables(
    interface: Interface, records: Mapping[str, Mapping[str, Any]]
) -> dict[str, object]:
    """What ``device.c.in`` is filled with about tokens: graphs of each shape, and how to count."""
    rows, kept = [], []
    for shape in interface.functions:
        record = records.get(shape.name, {"mask": -1, "kept": [], "buckets": [0]})
        rows.append((record["mask"], shape.batch, shape.seq_len, record["buckets"]))
        kept = record["kept"]  # the same in all, which are of one model
    return {
        "token_rows": rows,
        "kept": [*kept, -1],
        "most_buckets": max(len(buckets) for *_, buckets in rows),
    }


def _literal(place: int) -> str:
    return f"IN_WEIGHTS | {place ^ _IN_WEIGHTS}" if place & _IN_WEIGHTS else str(place)


def _functions(
    interface: Interface, placed: list[PlacedGraph], arena_bytes: int
) -> tuple[BareFunction, ...]:
    return tuple(
        BareFunction(
            name=shape.name,
            symbol=f"{interface.prefix}_run_{shape_suffix(shape.batch, shape.seq_len)}",
            batch=shape.batch,
            seq_len=shape.seq_len,
            arena_bytes=arena_bytes,
            lower_bound=0,
            peak=ArenaPeak("", 0, ()),
            calls=tuple(BareCall(call.kernel, call.layer) for call in one.graph.calls),
        )
        for shape, one in zip(interface.functions, placed, strict=True)
    )
