"""CUDA 12's compiler as a program with nvcc's options, on the libraries that Python packages have.

For CUDA 12 there is no package with nvcc, only with the libraries NVRTC and nvFatbin. This file is
run as a program, one process per architecture like nvcc, and imports nothing of the project::

    nvrtc.py LIBRARY --version | --list-gpu-code
    nvrtc.py LIBRARY -arch=sm_75 -cubin|-ptx -o FILE [-I FOLDER] [other options] SOURCE
    nvrtc.py LIBRARY --create=FILE --image3=kind=elf|ptx,sm=75,file=FILE ...
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

# What generated code includes, and NVRTC does not bring.
_TYPES = "".join(
    f"typedef {sign}{kind} {short}int{bits}_t;\n"
    for bits, kind in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))
    for sign, short in (("signed ", ""), ("unsigned ", "u"))
)
_INSIDE = "namespace cuda { namespace std {\n"
_TRAITS = (
    *("<class, class> struct is_same", "<class, class> constexpr bool is_same_v = false"),
    *(f"<class> struct is_{kind}" for kind in ("integral", "signed", "unsigned")),
    *("<class> struct is_floating_point", "<bool, class> struct enable_if"),
    "<bool, class, class> struct conditional",
)
_HEADERS = {
    "stdint.h": f"#pragma once\n{_TYPES}typedef unsigned long uintptr_t;\n",
    "cuda/std/cstdint": f"{_INSIDE}{_TYPES}}} }}\n",
    "cuda/std/type_traits": _INSIDE + "".join(f"template {t};\n" for t in _TRAITS) + "} }\n",
}


def _strings(texts: list[str]) -> ctypes.Array:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def _checked(status: int, what: str) -> None:
    if status != 0:
        raise OSError(f"error: {what} fails with status {status}")


def _content(size: Callable[..., int], get: Callable[..., int], handle: ctypes.c_void_p) -> bytes:
    length = ctypes.c_size_t()
    _checked(size(handle, ctypes.byref(length)), "asking for a size")
    content = ctypes.create_string_buffer(length.value)
    _checked(get(handle, content), "asking for the result")
    return content.raw


def _version(library: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _checked(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
    return f"NVRTC, release {major.value}.{minor.value}"


def _architectures(library: ctypes.CDLL) -> str:
    count = ctypes.c_int()
    _checked(library.nvrtcGetNumSupportedArchs(ctypes.byref(count)), "nvrtcGetNumSupportedArchs")
    numbers = (ctypes.c_int * count.value)()
    _checked(library.nvrtcGetSupportedArchs(numbers), "nvrtcGetSupportedArchs")
    return "\n".join(f"sm_{number}" for number in numbers)


def _compile(library: ctypes.CDLL, arguments: list[str]) -> None:
    source, output = Path(arguments[-1]), Path(arguments[arguments.index("-o") + 1])
    options = [text for text in arguments if text.startswith(("-arch=", "-std="))]
    options += [f"-I{arguments[i + 1]}" for i, text in enumerate(arguments) if text == "-I"]
    program = ctypes.c_void_p()
    created = library.nvrtcCreateProgram(
        ctypes.byref(program),
        source.read_bytes(),
        source.name.encode(),
        len(_HEADERS),
        _strings(list(_HEADERS.values())),
        _strings(list(_HEADERS)),
    )
    _checked(created, "nvrtcCreateProgram")
    options.append("-w")
    status = library.nvrtcCompileProgram(program, len(options), _strings(options))
    if status != 0:
        log = _content(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        raise OSError(log.rstrip(b"\0").decode(errors="replace"))
    if "-ptx" in arguments:
        text = _content(library.nvrtcGetPTXSize, library.nvrtcGetPTX, program)
        output.write_bytes(text.rstrip(b"\0"))
    else:
        output.write_bytes(_content(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program))


def _join(library: ctypes.CDLL, arguments: list[str]) -> None:
    options = _strings(["-64", "-compress=false"])
    handle = ctypes.c_void_p()
    _checked(library.nvFatbinCreate(ctypes.byref(handle), options, 2), "nvFatbinCreate")
    output = next(text for text in arguments if text.startswith("--create="))
    for text in arguments:
        if not text.startswith("--image3="):
            continue
        parts = dict(part.split("=", 1) for part in text.removeprefix("--image3=").split(","))
        content, number = Path(parts["file"]).read_bytes(), parts["sm"].encode()
        if parts["kind"] == "elf":
            added = library.nvFatbinAddCubin(
                handle, content, ctypes.c_size_t(len(content)), number, None
            )
        else:
            # With the zero at its end.
            size = ctypes.c_size_t(len(content) + 1)
            added = library.nvFatbinAddPTX(handle, content, size, number, None, None)
        _checked(added, f"adding {parts['file']}")
    image = _content(library.nvFatbinSize, library.nvFatbinGet, handle)
    Path(output.removeprefix("--create=")).write_bytes(image)


def main(arguments: list[str]) -> int:
    """Do what the arguments say; 1 if it fails, with the reason on standard error."""
    path, *rest = arguments
    try:
        library = ctypes.CDLL(path)
        if rest == ["--version"]:
            print(_version(library))
        elif rest == ["--list-gpu-code"]:
            print(_architectures(library))
        elif any(text.startswith("--create=") for text in rest):
            _join(library, rest)
        else:
            _compile(library, rest)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
