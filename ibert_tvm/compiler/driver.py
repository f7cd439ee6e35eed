"""From a quantised model to a compiled library.

compiled = compile(quantized, target="host", shapes=[(1, 128), (8, 128)])
compiled.export("model.so")
"""

from __future__ import annotations

import base64
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.errors import OutputError, UsageError, check_choice
from ..common.extras import require
from ..common.files import OutputKind, check_replaceable, write_folder
from ..common.strict_json import JsonDict, JsonObject
from ..common.types import Array
from ..common.version import __version__
from ..model.shapes import check_shapes
from ..runtime.library_file import FORMAT
from ..runtime.metadata import InputRecord, read_record
from .layer_widths import scalar_loops, wide_values

if TYPE_CHECKING:
    import tvm
    from tvm import relax

    from ibert_tvm.relay_passes.passes import IntegerProgram
    from ibert_tvm.targets import TargetDescription
    from ibert_tvm.targets.aot import BareModel, Interface
    from ibert_tvm.targets.bare_metal import PackageOptions
    from ibert_tvm.targets.cuda.compile import DeviceCode
    from ibert_tvm.targets.library_check import LibraryCheck

    from ..model.artefact import QuantizedModel
    from ..model.model_info import ModelInfo

# The kernels of a compiled function, for the metadata that `ibert bench` reads.


def kernel_table(module: tvm.IRModule) -> dict[str, list[JsonDict]]:
    """List the kernels that each function of a lowered module calls, in order.

    Parameters
    ----------
    module
        Relax functions that call kernels marked with ``ibert.kernel``.

    Returns
    -------
    dict of str to list of dict
        By function: ``name`` of the kernel in the library, ``kind`` (``linear``, ``attention``,
        ``layer_norm`` ...), ``layer`` (the canonical name of the one that the call serves),
        ``macs`` (the multiply-accumulates of its matrix products), ``bytes`` (what its arguments
        and results take, each once: a table that is looked up counts whole).
    """
    from tvm import relax

    return {
        var.name_hint: _calls(module, function)
        for var, function in module.functions_items()
        if isinstance(function, relax.Function)
    }


def _calls(module: tvm.IRModule, function: Any) -> list[JsonDict]:
    from ibert_tvm.relay_passes.passes.share_kernels import LAYERS, called_kernels

    kernels = called_kernels(function)
    layers = [str(layer) for layer in function.attrs[LAYERS]] if kernels else []
    return [
        {
            "name": var.name_hint,
            "kind": str(module[var].attrs["ibert.kernel"]),
            "layer": layer,
            "macs": int(module[var].attrs.get("ibert.macs", 0)),
            "bytes": sum(_size(param) for param in module[var].params),
        }
        for var, layer in zip(kernels, layers, strict=True)
    ]


def _size(parameter: Any) -> int:
    """Bytes of a buffer of static shape; 0 for a parameter that is a number."""
    shape = getattr(parameter, "shape", None)
    if shape is None:
        return 0
    return math.prod(int(extent) for extent in shape) * np.dtype(str(parameter.dtype)).itemsize


# The signature of a program without runtime, read from what a library says about itself.


def bare_interface(metadata: JsonObject, info: ModelInfo, prefix: str) -> Interface:
    """Describe inputs and outputs for `ibert_tvm.targets.aot.compile_bare`.

    Parameters
    ----------
    metadata
        Of the library: ``functions``, ``inputs`` and ``outputs``.
    info
        The model: how many ids there are, and which one fills up.
    prefix
        What its C names begin with.

    Returns
    -------
    ibert_tvm.targets.aot.Interface
        Ids are limited to the vocabulary, token types to those of the model, masks to 0 and 1, as
        `ibert_tvm.runtime.inputs.check_inputs` does; images to what their quantisation gives.
    """
    from ibert_tvm.targets.aot import Interface, ShapeSpec, TensorSpec

    limits = {
        "input_ids": (0, info.vocab_size - 1),
        "attention_mask": (0, 1),
        "token_type_ids": (0, info.type_vocab_size - 1),
    }
    inputs = []
    for row in metadata["inputs"]:
        scaled = bool(row.get("scale"))
        low, high = (row["low"], row["high"]) if scaled else limits.get(row["name"], (None, None))
        axes = info.image_size or ("seq_len",)
        inputs.append(
            TensorSpec(
                name=row["name"],
                dtype=row["dtype"],
                shape=("batch", *axes),
                scale=float(row.get("scale", 0.0)),
                zero_point=int(row.get("zero_point", 0)),
                low=low,
                high=high,
            )
        )
    outputs = [
        TensorSpec(row["name"], row["dtype"], tuple(row["shape"]), float(row["scale"]))
        for row in metadata["outputs"]
    ]
    return Interface(
        functions=tuple(
            ShapeSpec(row["name"], row["batch"], row["seq_len"]) for row in metadata["functions"]
        ),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        pad_token_id=None if info.image_size else info.pad_token_id,
        source_sha256=str(metadata["source_sha256"]),
        prefix=prefix,
    )


Progress = Callable[[str], None]


@dataclass(frozen=True)
class CompiledModel:
    """A compiled program in memory, ready to be written.

    Attributes
    ----------
    executable
        TVM executable; every function takes the inputs, then all parameters. None if the program
        was compiled without runtime.
    parameters
        Integer arrays in the order of the functions' parameters, laid out as the kernels read them.
    metadata
        What the library will say about itself, without the weight table.
    target
        What it was compiled for.
    report
        ``integer_only`` (what was checked), ``seconds`` per phase, ``weight_bytes``, ``kernels``,
        ``runtime``, ``wide_values`` and ``scalar_loops`` (`ibert_tvm.compiler.layer_widths`);
        without runtime also ``memory``, the sizes of
        `ibert_tvm.targets.aot.BareModel`; for a GPU also ``cuda``, what
        `ibert_tvm.targets.build.GpuBuild` reports of its device code.
    bare
        The program without runtime; None if it was compiled for TVM's.
    device
        Machine code of the kernels; None if they run on the processor.
    """

    executable: relax.VMExecutable | None
    parameters: Mapping[str, Array]
    metadata: JsonObject
    target: TargetDescription
    report: JsonObject
    bare: BareModel | None = None
    device: DeviceCode | None = None

    @property
    def runtime(self) -> str:
        """What runs it: ``"tvm"`` or ``"none"``."""
        return "tvm" if self.bare is None else "none"

    def export(
        self,
        path: str | os.PathLike[str],
        options: PackageOptions | None = None,
        require_load: bool = False,
    ) -> Path:
        """Link the library, or for a microcontroller write the package.

        Parameters
        ----------
        path
            Output file, conventionally ``*.so``; replaced only once the new file is complete. A
            package is a folder.
        options
            Form and limits of a package.
        require_load
            Fail where a library for another machine cannot be loaded under its emulator.

        Returns
        -------
        pathlib.Path
            The file or folder.

        Raises
        ------
        ibert_tvm.targets.TargetError
            If it cannot be written, the C toolchain is missing or fails, or the library cannot be
            used on its target.
        """
        return self.export_checked(path, options, require_load)[0]

    def export_checked(
        self,
        path: str | os.PathLike[str],
        options: PackageOptions | None = None,
        require_load: bool = False,
    ) -> tuple[Path, LibraryCheck | None]:
        """Write it as `export` does, and say whether it was loaded before.

        Parameters
        ----------
        path, options, require_load
            As for `export`, with the same errors.

        Returns
        -------
        path, check
            The file or folder; and what was found out by loading the library as its board will,
            None for a package, and for x86-64 under TVM's runtime.
        """
        target = Path(path).expanduser()
        if self.bare is not None and self.target.system != "linux":
            from ibert_tvm.targets import packages
            from ibert_tvm.targets.bare_metal import PACKAGE

            with write_folder(target, PACKAGE) as folder:
                packages.write(self.bare, self.metadata, self.target, folder, options)
            return target, None
        if self.bare is not None:
            from ibert_tvm.targets.aot.library import export_bare_library

            return target, export_bare_library(
                self.bare, self.metadata, self.target, target, require_load=require_load
            )
        from ibert_tvm.targets.export import export_library

        return target, export_library(
            self.executable,
            self.parameters,
            self.metadata,
            self.target,
            target,
            require_load=require_load,
            device=self.device,
        )


def compile(
    quantized: QuantizedModel,
    target: str = "host",
    shapes: Sequence[tuple[int, int]] | None = None,
    dump_ir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    runtime: str | None = None,
    emit: str = "objects",
    database: str | os.PathLike[str] | None = None,
    prefix: str | None = None,
    tokenizer: bool = False,
    external_weights: str = "",
    fetch_buffer: int | None = None,
) -> CompiledModel:
    """Compile a quantised model for one target and one or several shapes.

    Parameters
    ----------
    quantized
        The integer program.
    target
        Name of a target; `ibert_tvm.targets.target_names` lists them.
    shapes
        (batch, sequence length) pairs; all share one copy of the weights. By default batch 1 and
        128 tokens, or the one length that images become.
    dump_ir
        Folder that receives the module after every phase, numbered, as text.
    progress
        Called with the name of each phase as it starts.
    runtime
        ``"none"``: plain C functions; ``"tvm"``: a library for TVM's runtime. By default what the
        target has, none first: TVM's for a GPU.
    emit
        ``"objects"``, or ``"c"`` for kernels that any C99 compiler translates (without runtime
        only): they use no instruction that C has no word for, and are slower for it.
    database
        Folder of measurements of this target (`ibert_tvm.tuning.tune`), by default one that comes
        with the package, if there is one; kernels that were not measured are scheduled as without
        it.
    prefix
        What C functions, types, macros and files begin with (without runtime only), so that
        several models go into one program: words of small letters and digits, joined by ``_``. By
        default ``ibert``.
    tokenizer
        Add the model's tokenizer in C, so that texts go in (without runtime only).
    external_weights
        For packages of sources or libraries: weights that are a file of their own. ``"all"``, or
        ``"words"`` for the table of words: the program gives an address at run time. ``"fetch"``:
        functions of the program fetch them in pieces while the model runs.
    fetch_buffer
        Bytes of the largest piece that is fetched; by default 16 KiB, or what kernels need at
        least.

    Raises
    ------
    MissingExtraError
        If TVM is not installed.
    UsageError
        If a shape is not positive, or longer than the model's positions; if nothing in C can be
        called by the prefix; or if a tokenizer is asked for where there can be none.
    ModelError
        If the C form does not implement a part of the tokenizer.
    ibert_tvm.targets.TargetError
        If the target is unknown.
    ibert_tvm.relay_passes.errors.CompilerError
        If a pass refuses; the message names the layer.
    ibert_tvm.schedules.tuning.DatabaseError
        If the database is missing, damaged, or of another target.
    """
    require("tvm", to="compiling")
    from ibert_tvm.relay_passes.emit import KernelLayout
    from ibert_tvm.relay_passes.passes import (
        IntegerProgram,
        TargetKind,
        function_name,
        lower_to_kernels,
        phases_of,
    )
    from ibert_tvm.relay_passes.passes.check_integer_only import CheckIntegerOnly
    from ibert_tvm.relay_passes.passes.narrow_inputs import NarrowInputs
    from ibert_tvm.schedules import schedule_module
    from ibert_tvm.targets import check_runtime, get_target
    from ibert_tvm.targets.aot import ShapeSpec, compile_bare, portable_description
    from ibert_tvm.targets.aot.compile import arena_bytes
    from ibert_tvm.targets.build import build_executable, build_for_gpu

    shapes = check_shapes(shapes, quantized)
    description = get_target(target)
    runtime = check_runtime(description, runtime)
    prefix = checked_prefix(prefix, runtime)
    check_tokenizer(tokenizer, runtime)
    if external_weights:
        _check_external(external_weights, description)
    _check_fetch_buffer(fetch_buffer, external_weights)
    if _checked_form(emit, runtime, description) == "c":
        description = portable_description(description)
    layout = KernelLayout.of(description.dot, description.vector_lanes, description.functions)
    from ..tuning import TunedKernels, packaged_database

    database = packaged_database(description) if database is None else database
    tuned = None if database is None else TunedKernels(database, description)
    seconds: dict[str, float] = {}
    dump = _Dump(dump_ir)

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        if progress is not None:
            progress(name)
        started = time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - started

    with phase("lower"):
        program = IntegerProgram(quantized.module, quantized.parameters)
        if runtime == "none":  # a C program has ids of 32 bits
            program = NarrowInputs()(program)
        phases = phases_of(TargetKind.of(description))
        lowered = lower_to_kernels(program, layout, shapes, dump, phases)
    with phase("schedule"):
        module = schedule_module(lowered.program.module, description, tuned)
        dump("schedule", module)
        CheckIntegerOnly().check_module(module)  # what is built is what was checked
    parameters = dict(lowered.program.parameters)
    metadata = _metadata(quantized, program, description, module, shapes)
    tuning = {} if tuned is None else {"tuning": tuned.report()}
    metadata |= tuning
    if emit != "objects":
        metadata["form"] = emit
    executable = bare = device = None
    on_gpu: JsonDict = {}
    tokens: Mapping[str, object] = {}
    with phase("build"):
        if runtime == "none":
            interface = bare_interface(metadata, quantized.info, prefix)
            threads = emit == "objects" and description.machine.system.threads
            text = None
            if tokenizer:
                from ..c_tokenizer.text import text_sources

                text = text_sources(quantized, interface)
            apart = (external_weights, fetch_buffer)
        if runtime == "none" and description.gpu is not None:
            from ibert_tvm.targets.cuda.standalone import compile_for_driver

            on_device = (module, parameters, description, interface, text, dump.folder)
            bare = compile_for_driver(*on_device)
            assert bare.device is not None
            on_gpu = {"cuda": bare.device.report}
            tokens = bare.device.tokens
        elif runtime == "none":
            bare = compile_bare(module, parameters, description, interface, threads, text, *apart)

            def arena_at(tokens: int) -> int:
                shape = (1, tokens)
                again = lower_to_kernels(program, layout, [shape], phases=phases).program.module
                only = replace(interface, functions=(ShapeSpec(function_name(*shape), *shape),))
                scheduled = schedule_module(again, description, tuned)
                return arena_bytes(scheduled, description, only, *apart)

            bare = replace(bare, arena_at=arena_at)
        elif description.gpu is not None:
            built = build_for_gpu(module, description, dump.folder)
            executable, device = built.executable, built.device
            on_gpu = {"cuda": built.report}
            tokens = built.tokens
        else:
            executable = build_executable(module, description)
    metadata |= on_gpu
    for entry in metadata["functions"]:
        if entry["name"] in tokens:
            entry["tokens"] = tokens[entry["name"]]
    report = {
        "integer_only": lowered.checked,
        "seconds": seconds,
        "weight_bytes": sum(array.nbytes for array in parameters.values()),
        "kernels": _count_kernels(module),
        "shapes": [list(shape) for shape in shapes],
        "target": description.name,
        "runtime": runtime,
        "wide_values": wide_values(quantized.program),
        "scalar_loops": scalar_loops(module, kernel_table(module).values()),
        **({} if bare is None else {"memory": dict(bare.report)}),
        **({} if bare is None or bare.text is None else {"text": dict(bare.text.report)}),
        **on_gpu,
        **tuning,
    }
    return CompiledModel(executable, parameters, metadata, description, report, bare, device)


def _checked_form(emit: str, runtime: str, description: TargetDescription) -> str:
    """Form of the kernels; C only where there is a C interface."""
    check_choice("form", emit, ("objects", "c"), "kernels are objects or C")
    if emit == "c" and runtime != "none":
        raise UsageError(
            "kernels as C sources cannot be run by TVM's runtime",
            why="it calls functions of another form",
            todo="compile with runtime none",
        )
    if emit == "c" and description.gpu is not None:
        raise UsageError(
            "kernels of a GPU cannot be written as C sources",
            why=f"{description.name} runs machine code that nvcc makes",
            todo="leave the form out, or compile for a processor",
        )
    return emit


def _check_external(external: str, description: TargetDescription) -> None:
    """Refuse weights at a run-time address where no package has them; a `UsageError`."""
    from ibert_tvm.targets.bare_metal.options import EXTERNAL

    check_choice(
        "external weights", external, EXTERNAL, "a package has all, a table, or fetches them"
    )
    if description.system != "bare-metal":
        raise UsageError(
            f"external weights are asked for: {external!r}",
            why=f"what is compiled for {description.name} has its weights inside",
            todo="leave them out, or compile for a microcontroller or c99",
        )


def _check_fetch_buffer(fetch_buffer: int | None, external: str) -> None:
    """Refuse a buffer that nothing is fetched to; a `UsageError`."""
    from ibert_tvm.targets.weights import FETCH

    if fetch_buffer is not None and (external != FETCH or fetch_buffer < 1):
        raise UsageError(
            f"a buffer of {fetch_buffer} bytes for weights is given",
            why="no weights are fetched" if external != FETCH else "it holds none",
            todo="fetch them (--external-weights fetch), or leave it out",
        )


def checked_prefix(prefix: str | None, runtime: str) -> str:
    """Return what C names begin with.

    Parameters
    ----------
    prefix
        What the caller gave.
    runtime
        ``"tvm"`` or ``"none"``.

    Raises
    ------
    UsageError
        If a library for TVM's runtime is given one, or it cannot begin names.
    """
    from ibert_tvm.targets.aot.c_text import PREFIX, is_prefix

    if prefix is None:
        return PREFIX
    if runtime != "none":
        raise UsageError(
            f"a prefix of C names is given: {prefix!r}",
            why="a library for TVM's runtime has no C names",
            todo="compile with runtime none, or leave it out",
        )
    if not is_prefix(prefix):
        raise UsageError(
            f"C names cannot begin with {prefix!r}",
            why="a prefix is one to 32 small letters, digits and single underscores between them, "
            "and does not begin with ibert_",
            todo="give another, for example minilm",
        )
    return prefix


def check_tokenizer(wanted: bool, runtime: str) -> None:
    """Refuse a tokenizer in C where nothing else is C; a `UsageError`."""
    if wanted and runtime != "none":
        raise UsageError(
            "a tokenizer in C is asked for",
            why="a library for TVM's runtime has no C interface, and keeps the tokenizer as it is",
            todo="compile with runtime none, or leave it out",
        )


_DUMPED = "# dumped by ibert_tvm\n"
DUMP = OutputKind(
    "a folder of IR that ibert_tvm dumped",
    lambda folder: (folder / "00_integer.py").read_text("utf-8").startswith(_DUMPED),
    folder=True,
)


class _Dump:
    """Writes the module after every phase, numbered in order."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self.folder = None if folder is None else Path(folder).expanduser()
        self.count = 0
        if self.folder is not None:
            check_replaceable(self.folder, DUMP)
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise self._refused(error) from error

    def __call__(self, phase: str, module: tvm.IRModule) -> None:
        if self.folder is not None:
            path = self.folder / f"{self.count:02d}_{phase}.py"
            try:
                path.write_text(_DUMPED + module.script(show_meta=False), encoding="utf-8")
            except OSError as error:
                raise self._refused(error) from error
            self.count += 1

    def _refused(self, error: OSError) -> OutputError:
        return OutputError(
            f"cannot write the IR to {self.folder}",
            why=error.strerror or str(error),
            todo="choose another folder for --dump-ir",
        )


def _count_kernels(module: tvm.IRModule) -> int:
    from tvm import tirx

    return sum(isinstance(function, tirx.PrimFunc) for function in module.functions.values())


def _metadata(
    quantized: QuantizedModel,
    program: IntegerProgram,
    description: TargetDescription,
    module: tvm.IRModule,
    shapes: Sequence[tuple[int, int]],
) -> JsonDict:
    import tvm

    from ibert_tvm.relay_passes.passes import function_name
    from ibert_tvm.relay_passes.passes.pack_tokens import PACKED

    kernels = kernel_table(module)
    function = program.module["main"]
    scales = {entry["name"]: entry for entry in quantized.quantization.get("inputs", ())}
    inputs = [
        read_record(
            InputRecord, {"name": var.name, "dtype": str(var.ty.dtype), **scales.get(var.name, {})}
        ).to_json()
        for var in function.params[: int(function.attrs["num_input"])]
    ]
    return {
        "format": FORMAT,
        "target": {"name": description.name, **description.tvm_target},
        "required_cpu_features": list(description.required_features),
        "functions": [
            {
                "name": function_name(batch, seq_len),
                "batch": batch,
                "seq_len": seq_len,
                "kernels": kernels.get(function_name(batch, seq_len), []),
                "packed": PACKED in module[function_name(batch, seq_len)].attrs,
            }
            for batch, seq_len in shapes
        ],
        "inputs": inputs,
        "outputs": _outputs(quantized),
        "info": quantized.info.to_json(),
        "preset": quantized.preset,
        "versions": {"tvm": tvm.__version__, "ibert_tvm": __version__, "numpy": np.__version__},
        "source_sha256": quantized.info.source_sha256,
        "tokenizer": {
            name: base64.b64encode(zlib.compress(content)).decode("ascii")
            for name, content in quantized.tokenizer.items()
        },
    }


def _outputs(quantized: QuantizedModel) -> list[JsonDict]:
    """Name, type, scale and symbolic shape of every output, in the function's order."""
    types = {step.name: step.type for step in quantized.program.steps}
    kinds = [types[name] for name in quantized.program.outputs]
    scales = quantized.quantization["outputs"]
    return [
        {
            "name": info.name,
            "kind": info.kind,
            "dtype": tensor.dtype,
            "scale": float(scale["scale"]),
            "shape": [size if isinstance(size, int) else str(size) for size in tensor.shape],
        }
        for info, tensor, scale in zip(quantized.info.outputs, kinds, scales, strict=True)
    ]
