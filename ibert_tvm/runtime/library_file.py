"""Reading a compiled library without running any of it.

A library is an ELF shared object with two sections of its own: `.ibert.metadata` (UTF-8 JSON) and
`.ibert.weights` (all integer parameters, 64-byte aligned). Reading them needs neither TVM nor a
processor of the library's architecture.
"""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

from ..common.errors import DocumentError, LibraryError
from ..common.file_seal import seal_digest, sealed_bytes
from ..common.schema import check
from ..common.strict_json import JsonObject, decode, parse
from ..model.model_info import ModelInfo
from .metadata import (
    SCHEMA,
    FunctionRecord,
    InputRecord,
    LibraryMetadata,
    OutputRecord,
    ParameterRecord,
    read_record,
)

FORMAT = 1
METADATA_SECTION = ".ibert.metadata"
WEIGHTS_SECTION = ".ibert.weights"

# pyelftools reports damage it did not foresee by whatever its parsing runs into.
_UNFORESEEN = (*(ValueError, TypeError, LookupError, AttributeError, ArithmeticError), MemoryError)
# The fields of a little-endian ELF header that say where the file ends, e_shoff, e_shentsize and
# e_shnum, by the byte that says whether the file is of 32 or of 64 bits.
_ELF_CLASS = 4
_ELF_HEADERS = {1: struct.Struct("<32xI10xHHxx"), 2: struct.Struct("<40xQ10xHHxx")}

_MAX_METADATA = 64 * 2**20
_MAX_DEPTH = 16

_REMAKE = "make it again with `ibert compile NAME.ibert -o model.so`"


def read_metadata(path: str | os.PathLike[str]) -> LibraryMetadata:
    """Read the metadata of a compiled library.

    Parameters
    ----------
    path
        The library, `model.so`.

    Raises
    ------
    LibraryError
        If it does not exist, is not a whole ELF shared library, was not made by this project, is
        of another format version, or one bit of it is not what it was when it was made.
    """
    file = Path(path).expanduser()
    if not file.exists():
        raise LibraryError(
            f"there is no library at {file}",
            why="the path does not exist",
            todo="check the path; `ibert compile NAME.ibert -o model.so` makes one",
        )
    if not file.is_file():
        raise LibraryError(
            f"{file} is not a library",
            why="it is a folder; a compiled library is one file",
            todo="give the .so file that `ibert compile` wrote",
        )
    digest = _check_seal(file)
    content, weight_bytes = _read_sections(file)
    if not digest:
        raise _damaged(
            file,
            "no seal is at its end, with the hashes of its parts: an earlier version made it, or "
            "it was changed, as `strip` does",
        )
    try:
        document = parse(decode(content), _MAX_DEPTH)
    except DocumentError as error:
        raise _damaged(file, f"in {METADATA_SECTION}, {_reason(error)}") from error
    version = document.get("format") if isinstance(document, dict) else None
    if type(version) is not int or version != FORMAT:
        raise LibraryError(
            f"the library {file} has format {version!r}",
            why=f"this version of ibert_tvm reads format {FORMAT}",
            todo=f"use the version of ibert_tvm that made it, or {_REMAKE}",
        )
    try:
        check(document, SCHEMA)
        metadata = parse_metadata(file, document, weight_bytes)
    except DocumentError as error:
        raise _damaged(file, f"its metadata is unusable: {_reason(error)}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise _damaged(file, f"its metadata is unusable: {why}") from error
    for parameter in metadata.parameters:
        if parameter.offset < 0 or parameter.offset + parameter.num_bytes > weight_bytes:
            raise _damaged(
                file,
                f"parameter {parameter.name!r} ends at byte "
                f"{parameter.offset + parameter.num_bytes} of a weights section of {weight_bytes}",
            )
    return replace(metadata, digest=digest)


def read_weights(path: Path, offset: int, size: int) -> bytes:
    """Read a part of a library's weights from the file, whatever machine it is for.

    Parameters
    ----------
    path
        A library that `read_metadata` has read.
    offset, size
        First byte in its weights section, and number of bytes.
    """
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(WEIGHTS_SECTION)
        stream.seek(section["sh_offset"] + offset)
        return stream.read(size)


def _damaged(file: Path, why: str) -> LibraryError:
    return LibraryError(
        f"cannot read the library {file}", why=why, todo=f"copy the file again, or {_REMAKE}"
    )


def _reason(error: DocumentError) -> str:
    return ": ".join(filter(None, (error.where, error.what, error.why)))


def _check_seal(file: Path) -> str:
    """Digest of the file's seal, which holds; empty without one: it may be no library at all."""
    try:
        digest = seal_digest(file)  # first: of a file that is replaced meanwhile, it is the old one
        sealed_bytes(file)
        return digest
    except DocumentError as error:
        raise _damaged(file, error.what) from error
    except OSError as error:
        raise _damaged(file, str(error.strerror or error)) from error


def _check_whole(file: Path) -> None:
    """Refuse a file that ends before its section headers do, which linkers write last.

    Mapping such a file would not be an exception but a bus error.
    """
    with file.open("rb") as stream:
        header = stream.read(_ELF_HEADERS[2].size)
    whole = len(header) >= _ELF_HEADERS[1].size
    layout = _ELF_HEADERS.get(header[_ELF_CLASS]) if whole else None
    if whole and layout is None:  # neither 32 nor 64 bits: left to the reader of ELF files
        return
    if layout is None or len(header) < layout.size:
        raise _damaged(file, f"it is truncated: {len(header)} bytes, less than an ELF header")
    offset, entry_size, entries = layout.unpack(header[: layout.size])
    end = offset + entry_size * entries
    size = file.stat().st_size
    if size < end:
        raise _damaged(file, f"it is truncated: {size} bytes of {end}")


def _read_sections(file: Path) -> tuple[bytes, int]:
    """Return the metadata section's bytes and the size of the weights section."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with file.open("rb") as stream:
            if stream.read(4) != b"\x7fELF":
                raise _damaged(file, "it is not an ELF file")
            _check_whole(file)
            elf = ELFFile(stream)
            size = file.stat().st_size
            if any(s["p_offset"] + s["p_filesz"] > size for s in elf.iter_segments()):
                raise _damaged(file, "a segment lies behind the end of the file")
            if elf["e_type"] != "ET_DYN":
                raise _damaged(file, "it is an ELF file, but not a shared library")
            names = (METADATA_SECTION, WEIGHTS_SECTION)
            metadata, weights = (elf.get_section_by_name(name) for name in names)
            pairs = zip(names, (metadata, weights), strict=True)
            missing = [name for name, section in pairs if section is None]
            if missing:
                raise LibraryError(
                    f"{file} was not made by ibert_tvm",
                    why=f"it is a shared library without the section {' and '.join(missing)}",
                    todo=f"give a library that `ibert compile` wrote, not stripped; or {_REMAKE}",
                )
            if metadata["sh_size"] > _MAX_METADATA:
                raise _damaged(file, f"its metadata has {metadata['sh_size']} bytes")
            stream.seek(metadata["sh_offset"])  # as it is: nothing of ours is compressed
            return stream.read(metadata["sh_size"]), int(weights["sh_size"])
    except OSError as error:
        raise _damaged(file, str(error.strerror or error)) from error
    except (ELFError, *_UNFORESEEN) as error:
        raise _damaged(file, f"its ELF headers are damaged: {error}") from error


def _architectures(cuda: JsonObject) -> tuple[str, ...]:
    """What GPUs a library's device code is for."""
    real = [str(name) for name in cuda.get("architectures", ())]
    virtual = [name.replace("sm_", "compute_") for name in real[-1:] if cuda.get("ptx")]
    return (*real, *virtual)


def _check_tokens(function: FunctionRecord, inputs: int) -> None:
    """Whether a graph has room for all tokens, and the mask is an input."""
    tokens = function.tokens
    if tokens is not None and (
        tokens.mask >= inputs or tokens.buckets[-1:] != (function.batch * function.seq_len,)
    ):
        raise ValueError(f"function {function.name} has no place for all tokens")


def _check_launches(launches: JsonObject) -> None:
    """Whether blocks share rows by three numbers, where they do."""
    for name, launch in launches.items():
        if len(launch.get("rows", (1, 1, 1))) != 3:
            raise ValueError(f"kernel {name} has {launch['rows']} for its rows")


def parse_metadata(file: Path, document: JsonObject, weight_bytes: int) -> LibraryMetadata:
    """Make records of a document that was checked with `SCHEMA`.

    Parameters
    ----------
    file
        What it is about.
    document
        The document.
    weight_bytes
        Size of the section of weights.

    Raises
    ------
    AttributeError, KeyError, TypeError, ValueError
        If a part is missing or cannot be used.
    """
    functions = tuple(read_record(FunctionRecord, row) for row in document["functions"])
    if not functions:
        raise ValueError("no function is listed")
    for function in functions:
        _check_tokens(function, len(document["inputs"]))
    _check_launches(document.get("cuda", {}).get("launches", {}))
    return LibraryMetadata(
        path=file,
        target=dict(document["target"]),
        required_cpu_features=tuple(document["required_cpu_features"]),
        functions=functions,
        inputs=tuple(read_record(InputRecord, row) for row in document["inputs"]),
        parameters=tuple(read_record(ParameterRecord, row) for row in document["parameters"]),
        outputs=tuple(read_record(OutputRecord, row) for row in document["outputs"]),
        info=ModelInfo.from_json(document["info"]),
        versions={str(k): str(v) for k, v in document["versions"].items()},
        source_sha256=str(document["source_sha256"]),
        tokenizer={str(k): str(v) for k, v in (document.get("tokenizer") or {}).items() if v},
        file_bytes=file.stat().st_size,
        weight_bytes=weight_bytes,
        runtime=str(document.get("runtime", "tvm")),
        threads=not document.get("cuda") and document.get("threads", "prefix" not in document),
        architectures=_architectures(document.get("cuda", {})),
        device_code=dict(document.get("cuda", {})),
        prefix=str(document.get("prefix", "ibert")),
    )
