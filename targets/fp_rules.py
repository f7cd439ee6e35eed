"""Which instructions and library functions compute with floating-point numbers.

Integer data lives in vector registers too, so what counts is what an instruction does, not which
registers it names: moves, logic, shuffles, selections, loads and stores are benign under any name.
Rules are functions of an instruction's text as GNU's, LLVM's and NVIDIA's disassemblers write it;
they serve disassembly and the counting of executed instructions alike.
"""

from __future__ import annotations

import re

# -- x86 -----------------------------------------------------------------------------------------

_X86_TYPE = r"(?:[sp][sdh]|nepbf16|pbf16)"
_X86 = re.compile(
    # arithmetic, comparison, minimum, square root, rounding, fused multiply-add
    r"v?(?:add|sub|mul|div|sqrt|rsqrt(?:14|28)?|rcp(?:14|28)?|min|max|cmp\w*|u?comi|round|rndscale"
    r"|reduce|range|fixupimm|getexp|getmant|scalef|addsub|hadd|hsub|dp|exp2|fpclass"
    rf"|fn?m(?:add|sub|addsub|subadd)\d*|fc?m(?:add|ul)c){_X86_TYPE}"
    # conversions from, to and between floats; dot products of bfloat16
    r"|v?cvt\w+|vdpbf16ps|vdpphps"
    # x87, whose mnemonics all begin with f; and its saved state
    r"|f(?!xsave|xrstor|emms)\w+"
)

# -- 64-bit ARM ----------------------------------------------------------------------------------

_AARCH64 = re.compile(
    # every mnemonic of scalar and vector floating point begins with f, conversions to it with
    # scvtf and ucvtf; bfloat16's with bf, as do three that insert and clear bits (bfi, bfxil, bfc)
    r"f\w+|[su]cvtf|bf(?:add|sub|mul|ml|dot|mmla|cvt|max|min|clamp|scale)\w*"
)

# -- 32-bit ARM ----------------------------------------------------------------------------------

_ARM_CONDITION = r"(?:eq|ne|cs|hs|cc|lo|mi|pl|vs|vc|hi|ls|ge|lt|gt|le|al|t|e)?"
_ARM_TYPED = re.compile(r"v\w+(?:\.\w+)*\.(?:f16|f32|f64|bf16)(?:\.\w+)*")
_ARM_UNTYPED = re.compile(r"v(?:cvt|jcvt|rint)\w*(?:\.\w+)*")
_ARM_BENIGN = re.compile(
    rf"v(?:mov|movx|ins|sel(?:eq|vs|ge|gt)|ldr|str|ldm\w*|stm\w*|push|pop|swp|dup|psel"
    rf"|ld\d|st\d|ext|rev\d\d|trn|uzp|zip|tbl|tbx|bsl|bit|bif|mrs|msr){_ARM_CONDITION}(?:\..*)?"
)
# Without a floating-point unit there are no such registers to move either.
_ARM_UNIT = re.compile(r"v\w+(?:\..*)?|f(?:ld|st)m\w+")
_ARM_COPROCESSOR = re.compile(rf"(?:cdp2?|mcrr?2?|mrrc2?|mrc2?|(?:ldc|stc)2?l?){_ARM_CONDITION}")
_ARM_UNIT_NUMBER = re.compile(r"\s*(?:p|cp)?1[01]\s*,")

# -- NVIDIA GPUs (SASS; CUDA Binary Utilities, "Instruction Set Reference") -----------------------

_CUDA = re.compile(
    # Arithmetic, comparison, selection, rounding and conversion of 32 bits begin with f, on the
    # uniform path with uf, except the search for the leading one (flo) and a fence.
    r"u?f(?!lo$|ence$)\w+"
    # 16 bits (h), 64 bits (d), 8 bits (q)
    r"|v?h\w+|d(?:add|fma|mul|setp?|mma|mnmx)|q(?!spc$)\w+"
    # conversions from integers, reciprocals and roots, matrix products of short floats
    r"|u?i2fp?|u?mufu|omma|utc\w*[fhoq]mma"
)
# Atomics and reductions name the type of their operands as a modifier.
_CUDA_TYPE = re.compile(r"(?:b?f(?:16|32|64)\w*|tf32|e[2345]m\w+|ftz)")

# -- library functions ---------------------------------------------------------------------------

_HELPER = re.compile(
    r"__aeabi_(?:[fd]\w+|u?[il]2[fd]|h2[fd]\w*|c[fd]\w+)"
    r"|__(?:float|fix|extend|trunc)\w*[sdthx]f\w*"
    r"|__(?:add|sub|mul|div|neg|cmp|unord|eq|ne|lt|le|gt|ge|pow[id]|mulc|divc)[sdthx][fc]\w*"
    r"|__(?:gnu_[fhd]2[fhd]\w*|bb_\w+f)"
    r"|(?:exp|exp2|expm1|log|log2|log10|log1p|pow|sqrt|cbrt|a?sinh?|a?cosh?|a?tanh?|atan2|erfc?"
    r"|floor|ceil|round|rint|trunc|fabs|fm(?:in|ax|a|od)|ldexp|frexp|modf|hypot|l?lrint|l?lround"
    r"|nearbyint|copysign|tgamma|lgamma)[fl]?"
)


def is_floating_point(
    machine: str, mnemonic: str, operands: str = "", has_fpu: bool = True
) -> bool:
    """Tell whether an instruction computes with floating-point numbers.

    Parameters
    ----------
    machine
        ELF machine: ``EM_X86_64``, ``EM_AARCH64``, ``EM_ARM`` or ``EM_CUDA``.
    mnemonic
        Without prefixes such as ``rep``; with the types that 32-bit ARM's has, ``vadd.f32``, and
        all modifiers of a GPU's.
    operands
        The rest of the instruction's text.
    has_fpu
        False for a 32-bit ARM without a floating-point unit and without vectors, where even a move
        of its registers is one instruction too many. A Cortex-M55 that computes with integer
        vectors only has vector registers: True.

    Returns
    -------
    bool

    Raises
    ------
    ValueError
        If there are no rules for the machine.
    """
    name = mnemonic.lower()
    if machine == "EM_X86_64":
        return _X86.fullmatch(name) is not None
    if machine == "EM_AARCH64":
        return _aarch64(name, operands)
    if machine == "EM_ARM":
        return _arm(name, operands, has_fpu)
    if machine == "EM_CUDA":
        return _cuda(name)
    raise ValueError(f"no rules to find floating point in code for {machine}")


def is_float_helper(symbol: str) -> bool:
    """Tell whether a symbol is a library function that computes with floating-point numbers.

    Parameters
    ----------
    symbol
        Name, with or without its version: those of the compilers' run-time libraries, of the ARM
        ABI, and of the C library's mathematics.

    Returns
    -------
    bool
    """
    return _HELPER.fullmatch(symbol.partition("@")[0]) is not None


def _aarch64(name: str, operands: str) -> bool:
    if name == "fmov":  # between registers it moves bits; of a constant it makes a float
        return "#" in operands
    return _AARCH64.fullmatch(name) is not None


def _cuda(name: str) -> bool:
    opcode, *modifiers = name.split(".")
    return _CUDA.fullmatch(opcode) is not None or any(map(_CUDA_TYPE.fullmatch, modifiers))


def _arm(name: str, operands: str, has_fpu: bool) -> bool:
    name = re.sub(r"\.[nw]$", "", name)  # the width of a Thumb encoding
    if not has_fpu:
        if _ARM_UNIT.fullmatch(name):
            return True
        return bool(_ARM_COPROCESSOR.fullmatch(name) and _ARM_UNIT_NUMBER.match(operands))
    if _ARM_COPROCESSOR.fullmatch(name):  # a disassembler that does not know the unit's own names
        return name.startswith("cdp") and bool(_ARM_UNIT_NUMBER.match(operands))
    if _ARM_BENIGN.fullmatch(name):
        return False
    return bool(_ARM_TYPED.fullmatch(name) or _ARM_UNTYPED.fullmatch(name))
