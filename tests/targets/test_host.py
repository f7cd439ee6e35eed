"""Host detection from the text of /proc/cpuinfo."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest

from ibert_tvm.targets import TargetError, cpu_features, get_target, host_target, missing_features
from ibert_tvm.targets.host import advised_target, permitted
from ibert_tvm.targets.machines.x86_64 import X86_64
from ibert_tvm.targets.processors.x86 import X86_64_V3, X86_AVX512_VNNI
from tests.snapshots import Messages

CPUINFO = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Some Processor
{line}
vmx flags\t: vnmi preemption_timer avx512_vnni
bugs\t\t: spectre_v1

processor\t: 1
flags\t\t: another processor's
"""
V2 = "fpu sse sse2 ht cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"
V3 = f"{V2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
VNNI = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni"
ARM = "Features\t: fp asimd evtstrm crc32 atomics asimddp"


def cpuinfo(folder: Path, line: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(CPUINFO.format(line=line), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("flags", "detected"),
    [
        (VNNI, "x86-avx512-vnni"),
        (VNNI.replace(" avx512_vnni", ""), "x86-64-v3"),
        (VNNI.replace(" avx512vl", ""), "x86-64-v3"),
        (f"{VNNI} amx_tile amx_int8 amx_bf16", "x86-amx"),
        (f"{VNNI} amx_int8", "x86-avx512-vnni"),
        (f"{V3} avx_vnni", "x86-avx-vnni"),
        (f"{VNNI} avx_vnni", "x86-avx512-vnni"),
        (V3, "x86-64-v3"),
        (V3.replace(" fma", ""), "x86-64"),
        (V2, "x86-64"),
        ("", "x86-64"),
    ],
    ids=[
        "vnni",
        "avx512",
        "vnni without vl",
        "amx",
        "amx without tiles",
        "avx-vnni",
        "both",
        "avx2",
        "avx2 without fma",
        "sse4",
        "none",
    ],
)
def test_the_best_description_that_fits_is_taken(tmp_path: Path, flags: str, detected: str) -> None:
    features = cpu_features(cpuinfo(tmp_path, f"flags\t\t: {flags}"))
    assert features == frozenset(flags.split())
    target = host_target(features, "x86_64")
    named = get_target(detected)
    assert target.name == "host"
    assert target.description == f"this machine, detected: {detected}"
    assert (target.dot, target.tvm_target) == (named.dot, named.tvm_target)
    assert missing_features(target, features) == ()


def test_features_are_those_of_the_first_processor_in_either_spelling(tmp_path: Path) -> None:
    assert cpu_features(cpuinfo(tmp_path, "flags\t\t: fpu avx2")) == {"fpu", "avx2"}
    assert "asimddp" in cpu_features(cpuinfo(tmp_path, ARM))


def test_without_a_list_of_features_only_plain_code_is_safe(tmp_path: Path) -> None:
    assert cpu_features(tmp_path / "missing") == frozenset()
    other = tmp_path / "cpuinfo"
    other.write_bytes(b"processor : 0\nmodel name : \xff\xfe\n")
    assert cpu_features(other) == frozenset()
    assert host_target(frozenset(), "x86_64").description.endswith("x86-64")


# The first lines of /proc/cpuinfo of a Raspberry Pi 4, a Raspberry Pi 5 and a Graviton 3.
PI_4 = "fp asimd evtstrm crc32 cpuid"
PI_5 = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop "
    "asimddp"
)
GRAVITON_3 = f"{PI_5} jscvt fcma sha3 sm3 sm4 sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs i8mm"


@pytest.mark.parametrize(
    ("flags", "detected"),
    [
        (PI_4, "rpi4"),
        (PI_5, "aarch64-dotprod"),
        (GRAVITON_3, "aarch64-i8mm"),
        # One without the other is no processor that exists, and still safe.
        (f"{PI_4} i8mm", "rpi4"),
    ],
    ids=["pi 4", "pi 5", "graviton 3", "i8mm alone"],
)
@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_the_best_arm_description_that_fits_is_taken(
    tmp_path: Path, flags: str, detected: str, machine: str
) -> None:
    features = cpu_features(cpuinfo(tmp_path, f"Features\t: {flags}"))
    assert features == frozenset(flags.split())
    target = host_target(features, machine)
    named = get_target(detected)
    assert target.name == "host"
    assert target.description == f"this machine, detected: {detected}"
    assert (target.dot, target.tvm_target) == (named.dot, named.tvm_target)
    assert (target.elf_machine, target.toolchain) == ("EM_AARCH64", named.toolchain)
    assert missing_features(target, features) == ()


def test_an_arm_machine_that_lists_nothing_is_refused(messages: Messages) -> None:
    with messages.raises(TargetError):
        host_target(frozenset(), "aarch64")


def test_what_the_kernel_tells_a_process_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under an emulator /proc/cpuinfo is that of the machine below."""
    words = {16: 1 << 1 | 1 << 20, 26: 0}  # asimd, asimddp; not i8mm

    class Function:
        def __call__(self, word: int) -> int:
            return words[word]

    process = type("Process", (), {"getauxval": Function()})
    monkeypatch.setattr("ctypes.CDLL", lambda _name: process)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert cpu_features() >= {"asimd", "asimddp"}
    assert "i8mm" not in cpu_features()
    words[26] = 1 << 13
    assert cpu_features() >= {"asimd", "asimddp", "i8mm"}
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert "asimd" not in cpu_features()


@pytest.mark.parametrize("machine", ["armv7l", "riscv64"])
def test_another_machine_is_refused(machine: str, messages: Messages) -> None:
    with messages.raises(TargetError):
        host_target(frozenset({"neon"}), machine)


@pytest.mark.parametrize(
    ("machine", "features", "advised"),
    [
        ("x86_64", "", "host"),
        ("aarch64", PI_4, "host"),
        ("riscv64", "i m a f d c v", "rv64gcv"),
        ("riscv64", "i m a f d c", "rv64gc"),
        ("riscv64", "i m a", "c99"),
        ("armv7l", "neon idiva", "armv7-neon"),
        ("armv6l", "vfp", "armv6-softfloat"),
        ("ppc64le", "", "c99"),
    ],
)
def test_the_advised_target_is_one_for_the_machine(
    machine: str, features: str, advised: str
) -> None:
    """The compiler does not run on all machines that its libraries run on."""
    assert advised_target(machine, frozenset(features.split())) == advised


def test_windows_spelling_of_the_machine_is_known() -> None:
    assert host_target(frozenset(V3.split()), "AMD64").dot == X86_64_V3.dot


def test_missing_features_come_in_the_descriptions_order() -> None:
    features = frozenset(VNNI.split()) - {"avx512_vnni", "avx2", "cx16"}
    assert missing_features(X86_AVX512_VNNI, features) == ("cx16", "avx2", "avx512_vnni")
    assert missing_features(X86_AVX512_VNNI, frozenset()) == X86_AVX512_VNNI.required_features


def test_what_the_kernel_does_not_permit_is_no_feature() -> None:
    features = frozenset({*VNNI.split(), "amx_tile", "amx_int8"})
    refused = replace(X86_64.system, permits=lambda feature: feature != "amx_tile")
    assert permitted(features, refused) == features - {"amx_tile"}
    assert permitted(features, replace(refused, permits=None)) == features
    assert permitted(features, None) == features
    assert host_target(permitted(features, refused), "x86_64").dot == X86_AVX512_VNNI.dot


def test_tiles_are_asked_for_once_per_process_and_never_where_there_are_none() -> None:
    if platform.machine() != "x86_64":
        pytest.skip(f"a system call of x86-64, this is {platform.machine()}")
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    assert X86_64.system.permits("avx2")
    if "amx_tile" not in flags:
        assert not X86_64.system.permits("amx_tile")
    assert X86_64.system.permits("amx_tile") == ("amx_tile" in cpu_features())


def test_this_machine_is_detected_by_default() -> None:
    if platform.machine() != "x86_64":
        pytest.skip(f"host detection knows x86-64 only, this is {platform.machine()}")
    assert host_target() == host_target(cpu_features(), "x86_64") == get_target("host")
