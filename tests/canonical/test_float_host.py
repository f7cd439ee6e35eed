"""The target of float execution: what the processor has, not what its name promises."""

import platform

import pytest
import tvm
from tvm.target import codegen

from ibert_tvm.relay_passes.canonical.float_execution import host_target, target_of
from ibert_tvm.relay_passes.canonical.float_kernels import tile_for
from ibert_tvm.targets import cpu_features

X86 = "x86_64-linux-gnu"


def test_a_hidden_feature_is_not_used():
    hidden = {name: False for name in ("avx512f", "avx512vl", "avx512bw", "avx512vnni")}
    target = target_of(X86, "znver4", {**hidden, "avx2": True})
    features = codegen.llvm_get_cpu_features(target)
    assert "avx2" in features
    assert not any(name.startswith("avx512") for name in features)
    assert tile_for(target).lanes == 8


def test_a_feature_beyond_the_name_is_used():
    assert "avx2" in codegen.llvm_get_cpu_features(target_of(X86, "x86-64", {"avx2": True}))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compares names of x86-64 features")
def test_the_host_is_what_the_kernel_says_it_is():
    features = codegen.llvm_get_cpu_features(host_target())
    told = cpu_features()
    for name in ("avx", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"):
        assert (name in features) == (name in told), name


@pytest.mark.parametrize(
    ("triple", "processor", "lanes", "rows"),
    [
        (X86, "x86-64", 4, 6),
        (X86, "x86-64-v3", 8, 6),
        (X86, "cascadelake", 16, 12),
        ("aarch64-linux-gnu", "cortex-a72", 4, 12),
    ],
)
def test_tiles_fit_the_registers(triple, processor, lanes, rows):
    tile = tile_for(tvm.target.Target({"kind": "llvm", "mtriple": triple, "mcpu": processor}))
    assert (tile.lanes, tile.rows) == (lanes, rows)
