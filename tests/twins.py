"""Which targets this processor can run, if need be in another encoding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ibert_tvm.targets import TargetDescription, cpu_features, get_target, missing_features
from ibert_tvm.targets.processors.x86 import X86_64_V3

_EVEX = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")


def runnable_target(name: str) -> TargetDescription:
    """The target of that name, or what runs its kernels here; skips the test if nothing does.

    AVX-VNNI and AVX512-VNNI with AVX512-VL have the same instruction on 256-bit registers in two
    encodings. A processor that has the second only runs the very same kernels compiled for it,
    told to keep to 256 bits.
    """
    target = get_target(name)
    features = cpu_features()
    missing = missing_features(target, features)
    if not missing:
        return target
    if missing == ("avx_vnni",) and features.issuperset(_EVEX):
        attributes = ["+avx512f", "+avx512bw", "+avx512dq", "+avx512vl", "+avx512vnni"]
        tvm_target = {**target.tvm_target, "mattr": [*attributes, "+prefer-256-bit"]}
        required = (*X86_64_V3.required_features, *_EVEX)
        return replace(target, tvm_target=tvm_target, required_features=required)
    pytest.skip(f"this processor lacks {', '.join(missing)}, needed by {name}")
