"""Which targets this processor can run, if need be in another encoding."""

from __future__ import annotations

import ctypes
import functools
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from ibert_tvm.targets import TargetDescription, cpu_features, get_target, missing_features
from ibert_tvm.targets.linking import Tools
from ibert_tvm.targets.microkernels import write_microkernels
from ibert_tvm.targets.processors.x86 import X86_64_V3, X86_AMX, X86_AVX512_VNNI

_EVEX = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")


def runnable_target(name: str) -> TargetDescription:
    """The target of that name, or what runs its kernels here; skips the test if nothing does.

    AVX-VNNI and AVX512-VNNI with AVX512-VL have the same instruction on 256-bit registers in two
    encodings. A processor that has the second only runs the very same kernels compiled for it,
    told to keep to 256 bits. Tiles of AMX are done in plain C.
    """
    target = get_target(name)
    features = cpu_features()
    missing = missing_features(target, features)
    if not missing:
        return target
    if target is X86_AMX:
        twin = tiles_in_plain_c()
        missing = missing_features(twin, features)
        if not missing:
            _load_microkernels()
            return twin
    if missing == ("avx_vnni",) and features.issuperset(_EVEX):
        attributes = ["+avx512f", "+avx512bw", "+avx512dq", "+avx512vl", "+avx512vnni"]
        tvm_target = {**target.tvm_target, "mattr": [*attributes, "+prefer-256-bit"]}
        required = (*X86_64_V3.required_features, *_EVEX)
        return replace(target, tvm_target=tvm_target, required_features=required)
    pytest.skip(f"this processor lacks {', '.join(missing)}, needed by {name}")


def tiles_in_plain_c() -> TargetDescription:
    """x86-amx with operations on tiles in plain C, and all else for AVX-512 or AVX2."""
    near = X86_64_V3 if missing_features(X86_AVX512_VNNI, cpu_features()) else X86_AVX512_VNNI
    return replace(
        X86_AMX,
        name="x86-amx-in-c",
        tvm_target=near.tvm_target,
        vector_lanes=near.vector_lanes,
        q15_multiply=near.q15_multiply,
        required_features=near.required_features,
        microkernel_flags=("-DIBERT_PLAIN_C",),
    )


@functools.cache
def _load_microkernels() -> None:
    """Let kernels that are compiled in memory find them: as functions of this process."""
    twin = tiles_in_plain_c()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        objects = write_microkernels(twin, folder)
        library = folder / "microkernels.so"
        Tools(twin).compile(["-shared", "-o", str(library), *objects], folder, "cannot link")
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
