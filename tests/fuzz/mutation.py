"""Damage to files: of their bytes, of documents in them, of archives, and of headers."""

from __future__ import annotations

import copy
import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Files = dict[str, bytes]
"""Contents by the path in a folder."""

_NUMBERS = (0, 1, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "a", [], {}, 0, 1, -1, 0.5, 1e300, 1e-300, 2**31, 2**63, 10**30),
    *([[]], [{}], {"": {}}, [0] * 70, "9" * 40, "x" * 5000, "../a", "/etc/passwd", "a\0b"),
    *("*/ int x; /*", "\\\n", "%s%n", "\u202e", "\ud7ff", "None", "nan", 4096, 10**6, -(2**40)),
)
_DEEP = ("[" * 200, '{"a":' * 200, "[" * 100_000)


def damaged_bytes(content: bytes, rng: random.Random, other: bytes = b"") -> bytes:
    """Content with one to six changes; of `other` pieces may come."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(_BYTES)(data, rng, other)
    return bytes(data)


def _at(data: bytearray, rng: random.Random) -> int:
    """Any place, the beginning and the end more often: there headers lie."""
    size = max(len(data), 1)
    near = min(size, 128)
    return rng.choice((rng.randrange(size), rng.randrange(near), size - 1 - rng.randrange(near)))


def _flip(data: bytearray, rng: random.Random, _other: bytes) -> None:
    if data:
        data[_at(data, rng)] ^= 1 << rng.randrange(8)


def _set(data: bytearray, rng: random.Random, _other: bytes) -> None:
    if data:
        data[_at(data, rng)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x5B, rng.randrange(256)))


def _number(data: bytearray, rng: random.Random, _other: bytes) -> None:
    width = rng.choice((2, 4, 8))
    value = rng.choice(_NUMBERS) % 2 ** (8 * width)
    at = _at(data, rng)
    data[at : at + width] = value.to_bytes(width, "little")


def _insert(data: bytearray, rng: random.Random, _other: bytes) -> None:
    at = _at(data, rng)
    data[at:at] = rng.randbytes(rng.choice((1, 2, 8, 40)))


def _delete(data: bytearray, rng: random.Random, _other: bytes) -> None:
    at = _at(data, rng)
    del data[at : at + rng.choice((1, 2, 8, 100))]


def _truncate(data: bytearray, rng: random.Random, _other: bytes) -> None:
    del data[_at(data, rng) :]


def _repeat(data: bytearray, rng: random.Random, _other: bytes) -> None:
    at, size = _at(data, rng), rng.choice((1, 4, 30, 200))
    data[at:at] = data[at : at + size] * rng.choice((1, 2, 50))


def _splice(data: bytearray, rng: random.Random, other: bytes) -> None:
    if other:
        start = rng.randrange(len(other))
        at = _at(data, rng)
        data[at : at + rng.randrange(64)] = other[start : start + rng.randrange(1, 200)]


_BYTES: Sequence[Callable[[bytearray, random.Random, bytes], None]] = (
    *(_flip, _flip, _set, _number, _insert, _delete, _truncate, _repeat, _splice),
)


def damaged_json(content: bytes, rng: random.Random) -> bytes:
    """A document with one to four values that were not there, of the wrong type mostly."""
    try:
        document = json.loads(content)
        if rng.random() < 0.03:
            return rng.choice(_DEEP).encode()
        for _ in range(rng.choice((1, 1, 2, 4))):
            document = _edited(document, rng)
        text = json.dumps(document)
    except (ValueError, RecursionError):  # what was damaged before
        return damaged_bytes(content, rng)
    if rng.random() < 0.05:
        text = text.replace("0", rng.choice(("NaN", "Infinity", "1e999", "9" * 5000)), 1)
    return text.encode()


def _edited(document: Any, rng: random.Random) -> Any:
    places = list(_places(document, ()))
    if not places:
        return copy.deepcopy(rng.choice(_VALUES))
    path = rng.choice(places)
    parent = document
    for step in path[:-1]:
        parent = parent[step]
    key, old = path[-1], parent[path[-1]]
    kind = rng.randrange(7)
    if kind == 0:
        del parent[key]
    elif kind == 1:
        other = rng.choice(places)
        value = document
        for step in other:
            value = value[step]
        parent[key] = copy.deepcopy(value)  # no document holds itself
    elif kind == 2 and isinstance(old, str):
        at = rng.randrange(len(old) + 1)
        parent[key] = old[:at] + str(rng.choice(_VALUES)) + old[at:]
    elif kind == 3 and type(old) in (int, float):
        parent[key] = rng.choice((old + 1, old - 1, -old, old * 2, old * 1000, float(old)))
    elif kind == 4 and isinstance(parent, list):
        parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(old))
    elif kind == 5 and isinstance(parent, dict):
        parent[str(rng.choice((*parent, "x", "", "__proto__")))] = parent.pop(key)
    else:
        parent[key] = copy.deepcopy(rng.choice(_VALUES))
    return document


def _places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Paths of all that is in a document."""
    if not isinstance(value, (dict, list)):
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        yield (*path, key)
        yield from _places(item, (*path, key))


def damaged_lines(content: bytes, rng: random.Random) -> bytes:
    """JSON, a document on each line, one of them damaged."""
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    lines[at] = damaged_json(lines[at], rng)
    return b"\n".join(lines)


def damaged_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Its header damaged as a document, and the length of it right again."""
    if len(content) < 8:
        return damaged_bytes(content, rng)
    (size,) = struct.unpack("<Q", content[:8])
    header = damaged_json(content[8 : 8 + size], rng)
    return struct.pack("<Q", len(header)) + header + content[8 + size :]


def damaged_archive(content: bytes, rng: random.Random) -> bytes:
    """A member damaged, and the archive made again round it, so that its checksums are right."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, OSError, ValueError):
        return damaged_bytes(content, rng)
    if not members:
        return damaged_bytes(content, rng)
    name = rng.choice(list(members))
    members[name] = damaged_bytes(members[name], rng)
    if rng.random() < 0.2:
        members[rng.choice(("../x.npy", "/x.npy", "", name + "\n"))] = members[name]
    target = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(target, "w", method) as archive:
        for key, value in members.items():
            archive.writestr(key or "a", value)
    return target.getvalue()


def damaged_onnx(content: bytes, rng: random.Random) -> bytes:
    """A graph with one to three places changed, which is still a message of the format."""
    import onnx
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:  # what was damaged before
        return damaged_bytes(content, rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(_GRAPHS)(model, rng)
    return bytes(model.SerializeToString())


def _change_attribute(model: Any, rng: random.Random) -> None:
    """A number or a word of a node, or all of one attribute."""
    nodes = [node for node in model.graph.node if node.attribute]
    if not nodes:
        return
    node = rng.choice(nodes)
    attribute = rng.choice(node.attribute)
    kind = rng.randrange(5)
    if kind == 0:
        node.attribute.remove(attribute)
    elif kind == 1:
        attribute.type = rng.randrange(12)
    elif kind == 2:
        attribute.name = rng.choice(("axis", "perm", "to", "", rng.choice(nodes).attribute[0].name))
    elif attribute.ints:
        at = rng.randrange(len(attribute.ints))
        attribute.ints[at] = rng.choice(_INTS)
        if kind == 3:
            attribute.ints.append(rng.choice(_INTS))
    else:
        attribute.i = rng.choice(_INTS)
        attribute.f = rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
        attribute.s = rng.choice((b"", b"tanh", b"\xff", b"x" * 5000))


def _change_node(model: Any, rng: random.Random) -> None:
    """Another operator, other operands, one node less, one twice, or in another place."""
    nodes = model.graph.node
    if not nodes:
        return
    node, other = rng.choice(nodes), rng.choice(nodes)
    kind = rng.randrange(7)
    if kind == 0:
        node.op_type = rng.choice((other.op_type, "If", "Loop", "Scan", "", "a\0b", "MatMul"))
    elif kind == 1 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice([*other.input, *other.output, ""])
    elif kind == 2 and node.output:  # a circle, or a value that is made twice
        node.output[rng.randrange(len(node.output))] = rng.choice([*other.input, *other.output])
    elif kind == 3:
        nodes.remove(node)
    elif kind == 4:
        nodes.add().CopyFrom(node)
    elif kind == 5:
        node.domain = rng.choice(("com.microsoft", "ai.onnx.ml", "../x", "\u202e"))
    elif node.input:
        node.input.append(rng.choice([*other.input, *other.output]))


def _change_weight(model: Any, rng: random.Random) -> None:
    """Shape, type, name, place or content of an array."""
    if not model.graph.initializer:
        return
    tensor = rng.choice(model.graph.initializer)
    kind = rng.randrange(6)
    if kind == 0:
        tensor.dims.append(rng.choice(_INTS))
    elif kind == 1 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(_INTS)
    elif kind == 2:
        tensor.data_type = rng.randrange(24)
    elif kind == 3:
        tensor.data_location = 1
        entry = tensor.external_data.add()
        entry.key = rng.choice(("location", "offset", "length"))
        entry.value = rng.choice(("../../etc/passwd", "/etc/passwd", "model.onnx", "-1", "9" * 30))
    elif kind == 4:
        tensor.raw_data = damaged_bytes(tensor.raw_data, rng)
    else:
        tensor.name = rng.choice(model.graph.initializer).name


def _change_signature(model: Any, rng: random.Random) -> None:
    """What goes in and out, the set of operators, and the version."""
    kind = rng.randrange(5)
    if kind == 0 and model.opset_import:
        rng.choice(model.opset_import).version = rng.choice(_INTS)
        return
    if kind == 1:
        model.ir_version = rng.choice(_INTS)
        return
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    if not values:
        return
    value = rng.choice(values)
    if kind == 2:
        value.type.tensor_type.elem_type = rng.randrange(24)
    elif kind == 3 and value.type.tensor_type.shape.dim:
        rng.choice(value.type.tensor_type.shape.dim).dim_value = rng.choice(_INTS)
    else:
        value.name = rng.choice(("", "a\0b", "*/ int x; /*", "x" * 5000, rng.choice(values).name))


_INTS = (0, 1, -1, 2, 3, 7, 127, -128, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
_GRAPHS: Sequence[Callable[[Any, random.Random], None]] = (
    *(_change_attribute, _change_attribute, _change_node, _change_node),
    *(_change_weight, _change_signature),
)


def damaged(files: Files, rng: random.Random, skip: Sequence[str] = ()) -> Files:
    """Files of which one or two are damaged, missing, or another's.

    Parameters
    ----------
    files
        Contents by path.
    rng
        The same one gives the same damage.
    skip
        Files that are left alone.
    """
    result = dict(files)
    names = [name for name in files if name not in skip]
    for _ in range(rng.choice((1, 1, 1, 2))):
        name = rng.choice(names)
        content, other = result.get(name, b""), result.get(rng.choice(names), b"")
        kind = rng.random()
        if kind < 0.02:
            result.pop(name, None)
        elif kind < 0.04:
            result[name] = other
        elif kind < 0.4:
            result[name] = damaged_bytes(content, rng, other)
        else:
            result[name] = _by_format(name)(content, rng)
    return result


def _by_format(name: str) -> Callable[[bytes, random.Random], bytes]:
    suffix = name.rpartition(".")[2]
    return {
        "json": damaged_json,
        "jsonl": damaged_lines,
        "safetensors": damaged_safetensors,
        "npz": damaged_archive,
        "bin": damaged_archive,
        "onnx": damaged_onnx,
    }.get(suffix, damaged_bytes)
