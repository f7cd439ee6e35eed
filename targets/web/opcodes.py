"""Instructions of WebAssembly by their numbers: name, and what stands behind the number.

From the core specification 3.0, 5.4, without references, exceptions and garbage collection, which
compiled models do not use: what is not listed is no instruction that a model may have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .binary import Reader

Immediate = Callable[[Reader], str]


def _none(_reader: Reader) -> str:
    return ""


def _index(reader: Reader) -> str:
    return str(reader.number())


def _two(reader: Reader) -> str:
    return f"{reader.number()} {reader.number()}"


def _block(reader: Reader) -> str:
    return str(reader.number(64))  # a type, or the index of one, which is a signed number


def _table(reader: Reader) -> str:
    return " ".join(str(reader.number()) for _ in range(reader.number() + 1))


def _long(reader: Reader) -> str:
    return str(reader.number(64))


def _byte(reader: Reader) -> str:
    return str(reader.byte())


def _bytes(count: int) -> Immediate:
    return lambda reader: reader.bytes(count).hex()


def _address(reader: Reader) -> str:
    return f"align={1 << (reader.number() & 31)} offset={reader.number()}"


def _lane_of_memory(reader: Reader) -> str:
    return f"{_address(reader)} {reader.byte()}"


def _types(reader: Reader) -> str:
    return " ".join(f"{reader.byte():#x}" for _ in reader.many())


@dataclass(frozen=True)
class _Range:
    """Consecutive instructions with immediates of one kind; "" for numbers that have none."""

    start: int
    immediate: Immediate
    names: str

    def rows(self) -> dict[int, tuple[str, Immediate]]:
        names = enumerate(self.names.split(), self.start)
        return {number: (name, self.immediate) for number, name in names if name != "-"}


_COMPARED = "eq ne lt_s lt_u gt_s gt_u le_s le_u ge_s ge_u"
_INTEGER = "clz ctz popcnt add sub mul div_s div_u rem_s rem_u and or xor shl shr_s shr_u rotl rotr"
_COMPARED_FLOATS = "eq ne lt gt le ge"
_FLOAT = "abs neg ceil floor trunc nearest sqrt add sub mul div min max copysign"


def _of(kind: str, names: str) -> str:
    return " ".join(name if name == "-" else f"{kind}.{name}" for name in names.split())


_PLAIN = (
    _Range(0x00, _none, "unreachable nop"),
    _Range(0x02, _block, "block loop if"),
    _Range(0x05, _none, "else"),
    _Range(0x0B, _none, "end"),
    _Range(0x0C, _index, "br br_if"),
    _Range(0x0E, _table, "br_table"),
    _Range(0x0F, _none, "return"),
    _Range(0x10, _index, "call"),
    _Range(0x11, _two, "call_indirect"),
    _Range(0x1A, _none, "drop select"),
    _Range(0x1C, _types, "select_typed"),
    _Range(0x20, _index, "local.get local.set local.tee global.get global.set"),
    _Range(
        0x28,
        _address,
        "i32.load i64.load f32.load f64.load i32.load8_s i32.load8_u i32.load16_s i32.load16_u "
        "i64.load8_s i64.load8_u i64.load16_s i64.load16_u i64.load32_s i64.load32_u i32.store "
        "i64.store f32.store f64.store i32.store8 i32.store16 i64.store8 i64.store16 i64.store32",
    ),
    _Range(0x3F, _byte, "memory.size memory.grow"),
    _Range(0x41, _index, "i32.const"),
    _Range(0x42, _long, "i64.const"),
    _Range(0x43, _bytes(4), "f32.const"),
    _Range(0x44, _bytes(8), "f64.const"),
    _Range(0x45, _none, _of("i32", f"eqz {_COMPARED}")),
    _Range(0x50, _none, _of("i64", f"eqz {_COMPARED}")),
    _Range(0x5B, _none, _of("f32", _COMPARED_FLOATS)),
    _Range(0x61, _none, _of("f64", _COMPARED_FLOATS)),
    _Range(0x67, _none, _of("i32", _INTEGER)),
    _Range(0x79, _none, _of("i64", _INTEGER)),
    _Range(0x8B, _none, _of("f32", _FLOAT)),
    _Range(0x99, _none, _of("f64", _FLOAT)),
    _Range(
        0xA7,
        _none,
        "i32.wrap_i64 i32.trunc_f32_s i32.trunc_f32_u i32.trunc_f64_s i32.trunc_f64_u "
        "i64.extend_i32_s i64.extend_i32_u i64.trunc_f32_s i64.trunc_f32_u i64.trunc_f64_s "
        "i64.trunc_f64_u f32.convert_i32_s f32.convert_i32_u f32.convert_i64_s f32.convert_i64_u "
        "f32.demote_f64 f64.convert_i32_s f64.convert_i32_u f64.convert_i64_s f64.convert_i64_u "
        "f64.promote_f32 i32.reinterpret_f32 i64.reinterpret_f64 f32.reinterpret_i32 "
        "f64.reinterpret_i64 i32.extend8_s i32.extend16_s i64.extend8_s i64.extend16_s "
        "i64.extend32_s",
    ),
)
_BULK = (
    _Range(
        0,
        _none,
        "i32.trunc_sat_f32_s i32.trunc_sat_f32_u i32.trunc_sat_f64_s i32.trunc_sat_f64_u "
        "i64.trunc_sat_f32_s i64.trunc_sat_f32_u i64.trunc_sat_f64_s i64.trunc_sat_f64_u",
    ),
    _Range(8, _two, "memory.init"),
    _Range(9, _index, "data.drop"),
    _Range(10, _two, "memory.copy"),
    _Range(11, _index, "memory.fill"),
)
_SMALL_COMPARED = "eq ne lt_s lt_u gt_s gt_u le_s le_u ge_s ge_u"
_FLOAT_VECTOR = "abs neg - sqrt add sub mul div min max pmin pmax"
_VECTOR = (
    _Range(
        0x00,
        _address,
        "v128.load v128.load8x8_s v128.load8x8_u v128.load16x4_s v128.load16x4_u v128.load32x2_s "
        "v128.load32x2_u v128.load8_splat v128.load16_splat v128.load32_splat v128.load64_splat "
        "v128.store",
    ),
    _Range(0x0C, _bytes(16), "v128.const i8x16.shuffle"),
    _Range(
        0x0E,
        _none,
        "i8x16.swizzle i8x16.splat i16x8.splat i32x4.splat i64x2.splat f32x4.splat f64x2.splat",
    ),
    _Range(
        0x15,
        _byte,
        "i8x16.extract_lane_s i8x16.extract_lane_u i8x16.replace_lane i16x8.extract_lane_s "
        "i16x8.extract_lane_u i16x8.replace_lane i32x4.extract_lane i32x4.replace_lane "
        "i64x2.extract_lane i64x2.replace_lane f32x4.extract_lane f32x4.replace_lane "
        "f64x2.extract_lane f64x2.replace_lane",
    ),
    _Range(0x23, _none, _of("i8x16", _SMALL_COMPARED)),
    _Range(0x2D, _none, _of("i16x8", _SMALL_COMPARED)),
    _Range(0x37, _none, _of("i32x4", _SMALL_COMPARED)),
    _Range(0x41, _none, _of("f32x4", _COMPARED_FLOATS)),
    _Range(0x47, _none, _of("f64x2", _COMPARED_FLOATS)),
    _Range(
        0x4D,
        _none,
        "v128.not v128.and v128.andnot v128.or v128.xor v128.bitselect v128.any_true",
    ),
    _Range(
        0x54,
        _lane_of_memory,
        "v128.load8_lane v128.load16_lane v128.load32_lane v128.load64_lane v128.store8_lane "
        "v128.store16_lane v128.store32_lane v128.store64_lane",
    ),
    _Range(0x5C, _address, "v128.load32_zero v128.load64_zero"),
    _Range(0x5E, _none, "f32x4.demote_f64x2_zero f64x2.promote_low_f32x4"),
    _Range(
        0x60,
        _none,
        "i8x16.abs i8x16.neg i8x16.popcnt i8x16.all_true i8x16.bitmask i8x16.narrow_i16x8_s "
        "i8x16.narrow_i16x8_u f32x4.ceil f32x4.floor f32x4.trunc f32x4.nearest i8x16.shl "
        "i8x16.shr_s i8x16.shr_u i8x16.add i8x16.add_sat_s i8x16.add_sat_u i8x16.sub "
        "i8x16.sub_sat_s i8x16.sub_sat_u f64x2.ceil f64x2.floor i8x16.min_s i8x16.min_u "
        "i8x16.max_s i8x16.max_u f64x2.trunc i8x16.avgr_u i16x8.extadd_pairwise_i8x16_s "
        "i16x8.extadd_pairwise_i8x16_u i32x4.extadd_pairwise_i16x8_s "
        "i32x4.extadd_pairwise_i16x8_u",
    ),
    _Range(
        0x80,
        _none,
        "i16x8.abs i16x8.neg i16x8.q15mulr_sat_s i16x8.all_true i16x8.bitmask "
        "i16x8.narrow_i32x4_s i16x8.narrow_i32x4_u i16x8.extend_low_i8x16_s "
        "i16x8.extend_high_i8x16_s i16x8.extend_low_i8x16_u i16x8.extend_high_i8x16_u i16x8.shl "
        "i16x8.shr_s i16x8.shr_u i16x8.add i16x8.add_sat_s i16x8.add_sat_u i16x8.sub "
        "i16x8.sub_sat_s i16x8.sub_sat_u f64x2.nearest i16x8.mul i16x8.min_s i16x8.min_u "
        "i16x8.max_s i16x8.max_u - i16x8.avgr_u i16x8.extmul_low_i8x16_s "
        "i16x8.extmul_high_i8x16_s i16x8.extmul_low_i8x16_u i16x8.extmul_high_i8x16_u",
    ),
    _Range(
        0xA0,
        _none,
        "i32x4.abs i32x4.neg - i32x4.all_true i32x4.bitmask - - i32x4.extend_low_i16x8_s "
        "i32x4.extend_high_i16x8_s i32x4.extend_low_i16x8_u i32x4.extend_high_i16x8_u i32x4.shl "
        "i32x4.shr_s i32x4.shr_u i32x4.add - - i32x4.sub - - - i32x4.mul i32x4.min_s i32x4.min_u "
        "i32x4.max_s i32x4.max_u i32x4.dot_i16x8_s - i32x4.extmul_low_i16x8_s "
        "i32x4.extmul_high_i16x8_s i32x4.extmul_low_i16x8_u i32x4.extmul_high_i16x8_u",
    ),
    _Range(
        0xC0,
        _none,
        "i64x2.abs i64x2.neg - i64x2.all_true i64x2.bitmask - - i64x2.extend_low_i32x4_s "
        "i64x2.extend_high_i32x4_s i64x2.extend_low_i32x4_u i64x2.extend_high_i32x4_u i64x2.shl "
        "i64x2.shr_s i64x2.shr_u i64x2.add - - i64x2.sub - - - i64x2.mul i64x2.eq i64x2.ne "
        "i64x2.lt_s i64x2.gt_s i64x2.le_s i64x2.ge_s i64x2.extmul_low_i32x4_s "
        "i64x2.extmul_high_i32x4_s i64x2.extmul_low_i32x4_u i64x2.extmul_high_i32x4_u",
    ),
    _Range(0xE0, _none, _of("f32x4", _FLOAT_VECTOR)),
    _Range(0xEC, _none, _of("f64x2", _FLOAT_VECTOR)),
    _Range(
        0xF8,
        _none,
        "i32x4.trunc_sat_f32x4_s i32x4.trunc_sat_f32x4_u f32x4.convert_i32x4_s "
        "f32x4.convert_i32x4_u i32x4.trunc_sat_f64x2_s_zero i32x4.trunc_sat_f64x2_u_zero "
        "f64x2.convert_low_i32x4_s f64x2.convert_low_i32x4_u",
    ),
)


def _joined(ranges: tuple[_Range, ...]) -> dict[int, tuple[str, Immediate]]:
    return {number: row for one in ranges for number, row in one.rows().items()}


PREFIXES: Mapping[int, Mapping[int, tuple[str, Immediate]]] = {
    0xFC: _joined(_BULK),
    0xFD: _joined(_VECTOR),
}
"""Instructions of two numbers: by the first, then by the second."""
PLAIN: Mapping[int, tuple[str, Immediate]] = _joined(_PLAIN)
"""Instructions of one number."""
