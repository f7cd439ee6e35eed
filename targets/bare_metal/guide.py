"""What a package says to the people who link it: its README and, for sources, its Makefile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template

from ibert_tvm.common.strict_json import JsonObject

from ..description import TargetDescription
from .memory_use import kib

_README = Path(__file__).with_name("package.md")

_MAKEFILE = Path(__file__).with_name("package.mk.in")


def readme(document: JsonObject) -> str:
    """The README of a package.

    Parameters
    ----------
    document
        The content of its ``ibert_model.json``.

    Returns
    -------
    str
        Markdown.
    """
    flash, ram = document["memory"]["flash"], document["memory"]["ram"]
    function = document["functions"][0]
    inputs = [one["name"] for one in document["inputs"]]
    outputs = [one["name"] for one in document["outputs"]]
    helpers = document["verified"]["compiler_helpers"]
    largest = sorted(document["weights"], key=lambda one: -int(one["bytes"]))[:1]
    peak = ram["peak"]
    names = [*inputs, *outputs]
    return Template(_README.read_text(encoding="utf-8")).substitute(
        title=f"A transformer for {document['target']['name']}",
        target=document["target"]["name"],
        prefix=document["prefix"],
        macro=document["prefix"].upper(),
        link=_link(document),
        helpers=f" ({', '.join(f'`{name}`' for name in helpers)})" if helpers else "",
        arrays=_arrays(document),
        call=function["symbol"],
        arguments=(",\n" + 15 * " ").join(f"{name}, sizeof {name}" for name in names),
        padding=_padding(document),
        largest=", ".join(f"largest: {one['name']}, {one['bytes']}" for one in largest),
        peak=f"{peak['layer']}, batch {peak['batch']}, {peak['seq_len']} tokens",
        flash_kib=kib(flash["total"]),
        ram_kib=kib(ram["total"]),
        instructions=document["verified"]["instructions"],
        **{key: flash[key] for key in ("code", "constants", "weights")},
        **{key: ram[key] for key in ("arena", "stack", "data")},
        flash=flash["total"],
        ram=ram["total"],
    )


def _link(document: JsonObject) -> str:
    name = f"{document['prefix']}_model"
    if document["emit"] == "objects":
        tools = document["toolchain"]
        return (
            f"Add `{name}.h` to the include path and `lib{name}.a` to the link, for "
            "example\n\n"
            f"    {tools['compiler']} {' '.join(tools['flags'])} main.c startup.c -T board.ld "
            f"-L. -l{name} -lgcc"
        )
    return (
        f"`make` compiles the sources to `lib{name}.a`; or add them to a project as they are. "
        "They are C99 for any processor with 8-bit bytes and two's complement. Compile them with "
        "`-fno-strict-aliasing`: the arena's bytes change their type."
    )


def _arrays(document: JsonObject) -> str:
    function = document["functions"][0]
    sizes = {"batch": function["batch"], "seq_len": function["seq_len"]}
    lines = []
    for one in (*document["inputs"], *document["outputs"]):
        count = 1
        for axis in one["shape"]:
            count *= sizes[axis] if isinstance(axis, str) else axis
        lines.append(f"static {one['dtype']}_t {one['name']}[{count}];")
    return "\n".join(lines)


def _padding(document: JsonObject) -> str:
    if not any(one["name"] == "attention_mask" for one in document["inputs"]):
        return ""
    fill = f"{document['prefix'].upper()}_PAD_TOKEN_ID"
    return f"Fill a shorter text up with `{fill}` and set its attention mask to 0 there.\n"


def makefile(
    prefix: str, sources: Sequence[str], flags: Sequence[str], description: TargetDescription
) -> str:
    """The Makefile of a package of sources.

    Parameters
    ----------
    prefix
        What C names of the model begin with.
    sources
        Names of C and assembly files.
    flags
        Flags that choose the processor.
    description
        The target, whose compiler is the default.

    Returns
    -------
    str
    """
    objects = " ".join(name.rpartition(".")[0] + ".o" for name in sources)
    has_assembly = any(name.endswith(".S") for name in sources)
    compiler = description.toolchain.compiler if description.toolchain else "cc"
    assembly = (
        "\n%.o: %.S weights.bin\n\t$(CC) $(TARGET_FLAGS) -c $< -o $@\n" if has_assembly else ""
    )
    parts = {"prefix": prefix, "compiler": compiler, "flags": " ".join(flags), "objects": objects}
    text = _MAKEFILE.read_text(encoding="utf-8")
    for name, part in {**parts, "assembly": assembly}.items():
        text = text.replace(f"@{name}@", part)
    return text
