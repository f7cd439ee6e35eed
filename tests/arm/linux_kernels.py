"""Single kernels of a Linux board, run under its emulator: one process for all calls."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import tvm
from tvm import tirx

from ibert_tvm.targets import TargetDescription
from ibert_tvm.targets.aot.lower import KernelSignature, lower_kernels
from ibert_tvm.targets.aot.model import KernelParameter
from ibert_tvm.targets.aot.objects import kernel_object
from ibert_tvm.targets.emulation import emulator_command
from ibert_tvm.targets.microkernels import compile_microkernels, microkernel_symbols
from ibert_tvm.targets.toolchain import find_linker
from tests.processes import run_captured

_MAIN = Path(__file__).with_name("linux_kernels.c")


class KernelFault(Exception):
    """The process that runs kernels was ended by a signal.

    Attributes
    ----------
    signal
        Its number: 4 for an instruction that the processor does not have.
    """

    def __init__(self, signal: int, kernel: str) -> None:
        self.signal = signal
        super().__init__(f"signal {signal} in kernel {kernel}")


class BoardKernels:
    """Kernels compiled for a board, with a plain C interface.

    Parameters
    ----------
    functions
        Scheduled kernels by name.
    target
        The board.
    processor
        Processor to emulate instead of the one that the target names.
    """

    def __init__(
        self,
        functions: Mapping[str, tirx.PrimFunc],
        target: TargetDescription,
        processor: str | None = None,
    ) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.target = target
        self.names = list(functions)
        self.parameters = {name: _parameters(func, target) for name, func in functions.items()}
        signatures = {
            name: KernelSignature(name, parameters) for name, parameters in self.parameters.items()
        }
        named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
        lowered = lower_kernels(tvm.IRModule(named), signatures, target)
        self.workspaces = {name: kernel.workspace_bytes for name, kernel in lowered.items()}
        self.folder = tempfile.TemporaryDirectory(prefix="ibert-kernels-")
        self.objects = {
            name: kernel_object(name, kernel.function, target, microkernel_symbols(target))[0]
            for name, kernel in lowered.items()
        }
        self._command = [*emulator_command(target), str(self._link())]
        if processor is not None:
            self.emulate(processor)

    def emulate(self, processor: str) -> None:
        """Run what follows on another processor, where there is an emulator."""
        self._end()
        if "-cpu" in self._command:
            self._command[self._command.index("-cpu") + 1] = processor

    @property
    def program(self) -> Path:
        """The linked program, at fixed addresses."""
        return Path(self.folder.name) / "kernels"

    def _link(self) -> Path:
        folder = Path(self.folder.name)
        listed = " ".join(f"x({name})" for name in self.names)
        (folder / "kernel_names.h").write_text(f"#define KERNELS(x) {listed}\n", encoding="utf-8")
        paths = []
        for name, data in {**self.objects, **compile_microkernels(self.target)}.items():
            paths.append(folder / f"{name}.o")
            paths[-1].write_bytes(data)
        flags = ["-O1", "-std=gnu99", "-static", "-no-pie", f"-I{folder}"]
        command = [*find_linker(self.target), *flags, str(_MAIN), *map(str, paths)]
        done = run_captured([*command, "-o", str(self.program)])
        assert done.returncode == 0, done.stderr
        return self.program

    def __call__(self, name: str, *arrays: np.ndarray) -> np.ndarray:
        """Run a kernel whose last argument is its result; return that."""
        return self.run(name, *arrays)[-1]

    def run(self, name: str, *arrays: np.ndarray) -> list[np.ndarray]:
        """Run a kernel; return all its arguments as they are afterwards.

        Raises
        ------
        KernelFault
            If it is ended by a signal; the next call starts anew.
        """
        expected = [(p.dtype, p.elements) for p in self.parameters[name]]
        given = [(str(array.dtype), array.size) for array in arrays]
        assert given == expected, (name, given, expected)
        workspace = np.full(max(self.workspaces[name], 1), 0xA5, np.uint8)
        sent = [np.ascontiguousarray(array) for array in (*arrays, workspace)]
        words = [np.array([self.names.index(name), len(sent)], "<i4").tobytes()]
        for array in sent:
            words += [np.array([array.nbytes], "<i4").tobytes(), array.tobytes()]
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(b"".join(words))
            process.stdin.flush()
            status = int(np.frombuffer(_read(process.stdout, 4), "<i4")[0])
            answers = [_read(process.stdout, array.nbytes) for array in sent]
        except (BrokenPipeError, EOFError):
            self._process = None
            raise KernelFault(-process.wait(), name) from None
        assert status == 0, (name, status)
        return [
            np.frombuffer(answer, array.dtype).reshape(array.shape)
            for answer, array in zip(answers[:-1], sent, strict=False)
        ]

    def mnemonics(self, name: str) -> set[str]:
        """Instructions that a kernel has."""
        tool = find_linker(self.target)[0].removesuffix("gcc") + "objdump"
        path = Path(self.folder.name) / f"{name}.o"
        done = subprocess.run(
            [tool, "-d", "--no-show-raw-insn", str(path)], check=True, capture_output=True
        )
        lines = (line.split("\t") for line in done.stdout.decode().splitlines())
        return {fields[1].split()[0] for fields in lines if len(fields) > 1}

    def _end(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
        self._process = None

    def __del__(self) -> None:
        self._end()


def run_function(
    target: TargetDescription,
    sources: Sequence[Path],
    symbol: str,
    arguments: Sequence[np.ndarray],
    flags: Sequence[str] = (),
) -> tuple[int, list[np.ndarray]]:
    """Call ``int32_t symbol(void *, ...)`` of C files once; its result, and its arguments then."""
    sent = [np.ascontiguousarray(array) for array in arguments]
    words = [np.array([0, len(sent)], "<i4").tobytes()]
    for array in sent:
        words += [np.array([array.nbytes], "<i4").tobytes(), array.tobytes()]
    with tempfile.TemporaryDirectory(prefix="ibert-kernels-") as folder:
        Path(folder, "kernel_names.h").write_text(f"#define KERNELS(x) x({symbol})\n")
        program = Path(folder, "program")
        options = ["-O1", "-std=gnu99", "-static", "-no-pie", f"-I{folder}", *flags]
        command = [*find_linker(target), *options, str(_MAIN), *map(str, sources)]
        subprocess.run([*command, "-o", str(program)], check=True)
        command = [*emulator_command(target), str(program)]
        done = subprocess.run(command, input=b"".join(words), capture_output=True, check=True)
    data = np.frombuffer(done.stdout, np.uint8)
    ends = np.cumsum([4, *(array.nbytes for array in sent)])
    results = [
        data[start:end].copy().view(array.dtype).reshape(array.shape)
        for array, start, end in zip(sent, ends, ends[1:], strict=False)
    ]
    return int(data[:4].view("<i4")[0]), results


def _read(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise EOFError
    return data


def _parameters(func: tirx.PrimFunc, target: TargetDescription) -> tuple[KernelParameter, ...]:
    """Arguments of a kernel, all aligned as in an arena; the last is its result."""
    kinds = [param.ty for param in func.params]
    sizes = [
        (str(kind.dtype), int(np.prod([int(n) for n in getattr(kind.shape, "values", kind.shape)])))
        for kind in kinds
    ]
    last = len(sizes) - 1
    return tuple(
        KernelParameter(dtype, elements, position == last, target.machine.system.alignment)
        for position, (dtype, elements) in enumerate(sizes)
    )
