"""Run a compiled model on token ids with Python's standard library alone.

    ibert compile minilm.ibert --prefix ibert -o model.so --seq-len 32,128
    python examples/python_ctypes/embed.py model.so 101 7592 2088 102

Neither ibert_tvm nor TVM nor NumPy is needed: the library is plain C. With ibert_tvm installed,
`ibert run model.so --text "..."` does the same, with a tokenizer.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

ABI_VERSION = 3
OK = 0
BATCH, SEQ_LEN = -1, -2
TYPES = {
    1: ctypes.c_int8,
    2: ctypes.c_uint8,
    3: ctypes.c_int16,
    4: ctypes.c_int32,
    5: ctypes.c_int64,
}
ALIGNMENT = 64
PAD_TOKEN_ID = 0  # of BERT; the header says it of every model


class Context(ctypes.Structure):
    """`ibert_context`: private, only its size matters. There is room for later versions."""

    _fields_ = (("members", ctypes.c_uint64 * 16),)


class Tensor(ctypes.Structure):
    """`ibert_tensor`: one input or output."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("scale", ctypes.c_char_p),
        ("scale_multiplier", ctypes.c_int32),
        ("scale_shift", ctypes.c_int32),
        ("zero_point", ctypes.c_int32),
        ("low", ctypes.c_int32),
        ("high", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int32 * 4),
    )


class Shape(ctypes.Structure):
    """`ibert_shape`: one compiled shape."""

    _fields_ = (
        ("batch", ctypes.c_int32),
        ("seq_len", ctypes.c_int32),
        ("arena_bytes", ctypes.c_size_t),
        ("num_kernels", ctypes.c_int32),
    )


def addresses(arrays: list[Any]) -> Any:
    """Array of pointers, as the interface takes them."""
    return (ctypes.c_void_p * len(arrays))(*map(ctypes.addressof, arrays))


def sizes(arrays: list[Any]) -> Any:
    """Array of the bytes of each."""
    return (ctypes.c_size_t * len(arrays))(*map(ctypes.sizeof, arrays))


class Model:
    """A library for this machine's processor, with a context of its own."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path if "/" in path else f"./{path}")
        self.library.ibert_strerror.restype = ctypes.c_char_p
        self.library.ibert_init.argtypes = [
            ctypes.c_void_p,
            ctypes.c_uint32,
            ctypes.c_uint64,
            ctypes.c_void_p,
            ctypes.c_size_t,
        ]
        self.library.ibert_fingerprint.restype = ctypes.c_uint64
        for name in ("ibert_input", "ibert_output"):
            getattr(self.library, name).restype = ctypes.POINTER(Tensor)
        shapes = [Shape() for _ in range(self.library.ibert_num_shapes())]
        for index, shape in enumerate(shapes):
            self.check(self.library.ibert_get_shape(index, ctypes.byref(shape)))
        nbytes = max(shape.arena_bytes for shape in shapes)
        self.memory = ctypes.create_string_buffer(nbytes + ALIGNMENT)
        start = ctypes.addressof(self.memory)
        start += -start % ALIGNMENT
        self.context = Context()
        model = self.library.ibert_fingerprint()
        context = ctypes.byref(self.context)
        self.check(self.library.ibert_init(context, ABI_VERSION, model, start, nbytes))
        self.inputs = self.tensors("ibert_input")
        self.outputs = self.tensors("ibert_output")

    def check(self, status: int) -> None:
        """Raise the library's own words for anything but success."""
        if status != OK:
            raise RuntimeError(self.library.ibert_strerror(status).decode())

    def tensors(self, function: str) -> list[Tensor]:
        """All inputs, or all outputs."""
        found: list[Tensor] = []
        while pointer := getattr(self.library, function)(len(found)):
            found.append(pointer.contents)
        return found

    def array(self, tensor: Tensor, shape: Shape) -> Any:
        """Zeros for an input or output of a compiled shape."""
        sizes = {BATCH: shape.batch, SEQ_LEN: shape.seq_len}
        count = 1
        for size in tensor.shape[: tensor.rank]:
            count *= sizes.get(size, size)
        return (TYPES[tensor.type] * count)()

    def __call__(self, ids: list[int]) -> dict[str, list[float]]:
        """Outputs for one text, as real numbers."""
        shape = Shape()
        self.check(self.library.ibert_find_shape(1, len(ids), ctypes.byref(shape)))
        inputs = [self.array(tensor, shape) for tensor in self.inputs]
        for tensor, array in zip(self.inputs, inputs, strict=True):
            if tensor.name == b"input_ids":
                array[:] = ids + [PAD_TOKEN_ID] * (len(array) - len(ids))
            elif tensor.name == b"attention_mask":
                array[: len(ids)] = [1] * len(ids)
        outputs = [self.array(tensor, shape) for tensor in self.outputs]
        self.check(
            self.library.ibert_run(
                ctypes.byref(self.context),
                shape.batch,
                shape.seq_len,
                *(given(group) for group in (inputs, outputs) for given in (addresses, sizes)),
            )
        )
        return {
            tensor.name.decode(): [value * float(tensor.scale) for value in array]
            for tensor, array in zip(self.outputs, outputs, strict=True)
        }


def main() -> int:
    """Print the first numbers of every output."""
    if len(sys.argv) < 3:
        print(f"usage: {sys.argv[0]} LIBRARY ID [ID ...]", file=sys.stderr)
        return 2
    model = Model(sys.argv[1])
    for name, values in model([int(text) for text in sys.argv[2:]]).items():
        print(f"{name}: {len(values)} entries")
        print("  " + ", ".join(f"{value:.5f}" for value in values[:8]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
