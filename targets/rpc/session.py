"""A session with a board: what runs in the worker process, on TVM's RPC.

Values that come in and go out are plain (numbers, text, bytes, NumPy arrays), because they cross a
process boundary.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ibert_tvm.common.errors import TargetError

_CPU = 1  # kDLCPU
_POOLED_ALLOCATOR = 2
_DESCRIPTION_BYTES = 16384
_FLUSH = "cache_flush_cpu_non_first_arg"
_MOST_CALLS, _KEPT_CALLS = 500, 10
_CONTEXT_BYTES = 256  # of the plain C interface: docs/c-api.md
Kinds = Sequence[tuple[tuple[int, ...], str]]
"""Shapes and dtypes of arrays."""
Arrays = Sequence[np.ndarray]


class SessionError(TargetError):
    """Something that the session refuses; the text says why."""


class Session:
    """An open session. Without an address it is with this process: the same calls, no network.

    Parameters
    ----------
    kind
        ``"server"``, ``"tracker"``, or ``"local"``.
    host, port, key
        Where the server or the tracker is.
    lifetime
        Seconds after which the server ends the session, whatever it is doing.
    """

    def __init__(self, kind: str, host: str, port: int, key: str, lifetime: float) -> None:
        from tvm import rpc

        if kind == "local":
            self.remote = rpc.LocalSession()
        elif kind == "tracker":
            tracker = rpc.connect_tracker(host, port)
            self.remote = tracker.request(key, session_timeout=lifetime, max_retry=1)
            tracker.close()
        else:
            self.remote = rpc.connect(host, port, key, session_timeout=lifetime)
        self.device = self.remote.cpu(0)
        self.files: list[str] = []
        self.module: Any = None
        self.machine: Any = None
        self.results: dict[str, int] = {}
        self.call: Any = None
        self.plain: dict[str, tuple[int, int, list[Any]]] = {}
        self.memory: list[Any] = []

    # -- the library --------------------------------------------------------------------------

    def upload(self, path: str) -> str:
        """Send a library and load it.

        Each upload has a name of its own: to overwrite a library that is loaded ends the server.
        """
        name = f"ibert-{uuid.uuid4().hex}.so"
        self.files.append(name)
        self.remote.upload(bytearray(Path(path).read_bytes()), name)
        self.module = self.remote.load_module(name)
        return name

    def describe(self) -> tuple[str, str]:
        """What the library that was uploaded says about the machine; and the version of TVM there.

        Raises
        ------
        SessionError
            If the library cannot describe a machine.
        """
        tell = self._function("ibert_board")
        text = self._empty((_DESCRIPTION_BYTES,), "uint8")
        length = int(tell(text))
        if length < 0:
            raise SessionError("the library could not describe the board")
        told = text.numpy()[:length].tobytes().decode("utf-8", "replace")
        return told, self._tvm_version(told)

    def _tvm_version(self, told: str) -> str:
        """Version of TVM there, by the Python package round its runtime; empty if there is none."""
        found = re.search(r"^runtime (/.*)/lib/libtvm_runtime\.so$", told, re.MULTILINE)
        if found is None:
            return ""
        try:
            text = bytes(self.remote.download(f"{found[1]}/_version.py")).decode()
        except Exception:  # a runtime without Python package
            return ""
        version = re.search(r"^__version__.*= *['\"]([^'\"]+)", text, re.MULTILINE)
        return version[1] if version else ""

    def prepare(
        self,
        functions: Sequence[str],
        weights: Sequence[tuple[str, tuple[int, ...], int]],
        results: Mapping[str, int],
        threads: int,
    ) -> None:
        """Make the virtual machine, and bind the parameters of its functions.

        Parameters
        ----------
        functions
            Names.
        weights
            dtype, shape and offset in the library's section of weights, of each parameter. They
            are used where the board mapped the library: nothing is sent.
        results
            Number of results of each function.
        threads
            Threads that kernels use.
        """
        self._function("ibert_threads")(threads)
        base = int(self._function("ibert_parameters")())
        parameters = [self._mapped(base + offset, s, dtype) for dtype, s, offset in weights]
        self.machine = self.module["vm_load_executable"]()
        self.machine["vm_initialization"](_CPU, 0, _POOLED_ALLOCATOR)
        save = self.machine["save_function"]
        for name in functions:
            # The board keeps the parameters, which are the last arguments, with the function.
            save(name, f"{name}.bound", 1, *parameters)
        self.results = dict(results)

    def prepare_plain(
        self, functions: Mapping[str, tuple[int, int, Kinds]], arena_bytes: int, threads: int
    ) -> None:
        """Allocate what calls of a library with the plain C interface need there.

        Parameters
        ----------
        functions
            By name: batch, sequence length, and the kinds of outputs.
        arena_bytes
            What the largest of them needs.
        threads
            Threads that kernels use.
        """
        self._function("ibert_threads")(threads)
        self.call = self._function("ibert_call")
        sizes = (_CONTEXT_BYTES, max(arena_bytes, 1))
        self.memory = [self._empty((size,), "uint8") for size in sizes]
        self.plain = {
            name: (batch, seq_len, [self._empty(*kind) for kind in kinds])
            for name, (batch, seq_len, kinds) in functions.items()
        }

    def _plain_call(self, function: str, arrays: Arrays) -> tuple[list[Any], list[Any]]:
        """Arguments of ``ibert_call`` for inputs that are sent, and where outputs will be."""
        batch, seq_len, outputs = self.plain[function]
        sent = self._send(arrays)
        return [batch, seq_len, len(sent), *self.memory, *sent, *outputs], outputs

    def _mapped(self, address: int, shape: tuple[int, ...], dtype: str) -> Any:
        import ctypes

        import tvm_ffi

        if 0 in shape:
            return self._empty(shape, dtype)
        view = tvm_ffi.get_global_func("tvm.rpc.TensorFromRemoteOpaqueHandle")
        template = tvm_ffi.from_dlpack(np.broadcast_to(np.zeros(1, dtype), shape).copy())
        pointer = ctypes.c_void_p(address)
        return view(self.remote._sess, pointer, template, self.device, ctypes.c_void_p(None))

    def _function(self, name: str) -> Any:
        try:
            return self.module[name]
        except Exception as error:
            raise SessionError(
                f"the library has no function {name!r}: it was compiled by an earlier version"
            ) from error

    # -- running ------------------------------------------------------------------------------

    def _empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        import tvm

        return tvm.runtime.empty(shape, dtype, self.device)

    def _send(self, arrays: Arrays) -> list[Any]:
        sent = []
        for array in arrays:
            tensor = self._empty(array.shape, str(array.dtype))
            if array.size:
                tensor.copyfrom(np.ascontiguousarray(array))
            sent.append(tensor)
        return sent

    def run(self, function: str, arrays: Arrays) -> list[np.ndarray]:
        """Call a function of the library on inputs; give its results.

        Raises
        ------
        SessionError
            If the library refuses the call.
        """
        if function in self.plain:
            arguments, outputs = self._plain_call(function, arrays)
            status = int(self.call(*arguments))
            if status != 0:
                raise SessionError(f"the library refused a call (status {status}, docs/c-api.md)")
            return [output.numpy() for output in outputs]
        result = self.machine[f"{function}.bound"](*self._send(arrays))
        count = self.results[function]
        if count == 1 and hasattr(result, "numpy"):
            return [result.numpy()]
        item = self.remote.get_function("ffi.ArrayGetItem")
        return [item(result, index).numpy() for index in range(count)]

    def time(self, function: str, arrays: Arrays, runs: int) -> list[float]:
        """Seconds of so many calls of a function, after one that does not count."""
        if function in self.plain:
            self.run(function, arrays)  # says what is wrong, where something is
            arguments, _ = self._plain_call(function, arrays)
            module, name = self.module, "ibert_call"
        else:
            arguments, module, name = self._send(arrays), self.machine, f"{function}.bound"
        evaluate = module.time_evaluator(name, self.device, number=1, repeat=runs)
        return [float(seconds) for seconds in evaluate(*arguments).results]

    # -- single kernels -----------------------------------------------------------------------

    def measure(
        self, kernel: str, arrays: Arrays, expected: Arrays, milliseconds: float, threads: int
    ) -> list[float]:
        """Check a kernel of the library that was uploaded on its inputs, and time it.

        Before every call everything but its first argument, the activations, leaves the caches: in
        a model the weights of a kernel come from memory, or from the last cache, too.

        Parameters
        ----------
        kernel
            Name.
        arrays
            Its inputs.
        expected
            The results that it must give.
        milliseconds
            How long to measure, about.
        threads
            Threads that it uses.

        Returns
        -------
        list of float
            Seconds of the fastest calls, at most ten.

        Raises
        ------
        SessionError
            If a result differs.
        """
        self.remote.get_function("runtime.config_threadpool")(1, threads)
        # What no store reaches keeps a value that no result has by accident.
        poisoned = [np.full_like(array, 0x5A) for array in expected]
        arguments = self._send([*arrays, *poisoned])
        self.module[kernel](*arguments)
        for index, array in enumerate(expected):
            got = arguments[len(arrays) + index].numpy()
            wrong = int((got != array).sum())
            if wrong:
                raise SessionError(f"wrong result: {wrong} of {array.size} entries differ")

        def time(calls: int) -> list[float]:
            evaluate = self.module.time_evaluator(
                kernel, self.device, number=1, repeat=calls, f_preproc=_FLUSH
            )
            return sorted(float(seconds) for seconds in evaluate(*arguments).results)

        calls = int(np.clip(milliseconds * 1e-3 / time(3)[0], 5, _MOST_CALLS))
        return time(calls)[:_KEPT_CALLS]

    def close(self) -> None:
        """Remove the files from the board and end the session."""
        for name in self.files:
            try:
                self.remote.remove(name)
            except Exception:  # the session is over anyway, and its folder with it
                break
        self.machine = self.module = self.call = None
        close = getattr(self.remote, "_sess", None)
        if close is not None and self.remote.__class__.__name__ != "LocalSession":
            close.get_function("CloseRPCConnection")()
