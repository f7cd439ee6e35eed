"""Options that several commands share, and what turns their text into values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import BadParameter, Option

from ibert_tvm.relay_passes.spec.preset_names import PRESET_NAMES

from ..common.errors import UsageError
from ..model.heads import HEADS
from ..quantization.fidelity import FIDELITIES
from ..quantization.options import OBSERVERS
from ..train.settings import DISTILLATIONS, TRAINED

MAX_TEXTS_BYTES = 256 * 2**20
MAX_TEXTS = 2**20
"""Of a file of texts."""


IMPORT, SEARCH, TASK = "Import", "Search", "Task"
BOARD, MICROCONTROLLERS, MESSAGES = "Board", "Microcontrollers", "Messages"
"""Panels of the help, behind that of the options that matter first."""


def _head(word: str) -> str:
    if word not in ("auto", *HEADS):
        raise BadParameter(f"{word!r} is not one of auto, {', '.join(HEADS)}.")
    return word


# The names are those of the records that the core has. Typer makes choices of them; to mypy, which
# does not know them, they are text.
if TYPE_CHECKING:
    PresetName = str
    FidelityName = str
    ObserverName = str
    MetricName = str
    TrainedName = str
    DistillName = str
else:
    PresetName = Literal[PRESET_NAMES]
    FidelityName = Literal[FIDELITIES]
    ObserverName = Literal[OBSERVERS]
    MetricName = Literal["cosine", "task"]
    TrainedName = Literal[TRAINED]
    DistillName = Literal[DISTILLATIONS]

HeadOption = Annotated[
    str,
    Option(
        "--head",
        metavar=f"[auto|{'|'.join(HEADS)}]",
        parser=_head,
        rich_help_panel=IMPORT,
        autocompletion=lambda incomplete: [n for n in ("auto", *HEADS) if n.startswith(incomplete)],
        help="Which head to import, of a model to import; auto takes what the model has.",
    ),
]
JsonFlag = Annotated[
    bool,
    Option(
        "--json",
        rich_help_panel=MESSAGES,
        help="Print one JSON document on stdout and nothing else there.",
    ),
]
VerboseFlag = Annotated[
    bool,
    Option(
        "--verbose",
        "-v",
        rich_help_panel=MESSAGES,
        help="Say more on stderr; tracebacks with errors.",
    ),
]


def chosen_head(head: str) -> str | None:
    """The head that ``--head`` names; None for ``auto``."""
    return None if head == "auto" else head


def _targets(incomplete: str) -> list[tuple[str, str]]:
    """Names of targets and what they are, for a shell; the last of several that are joined."""
    from ibert_tvm.targets import get_target, target_names

    before, plus, begun = incomplete.rpartition("+")
    return [
        (f"{before}{plus}{name}", "" if name == "host" else get_target(name).description)
        for name in target_names()
        if name.startswith(begun)
    ]


TargetOption = Annotated[
    str,
    Option(
        "--target",
        help="What to build for; `ibert targets` lists the names.",
        autocompletion=_targets,
    ),
]
DeviceOption = Annotated[
    str | None,
    Option(
        "--device",
        metavar="cpu|cuda[:N]",
        help="What to run on; by default what the library was compiled for, and the first GPU.",
    ),
]
InputNames = Annotated[
    list[str] | None,
    Option(
        "--input",
        metavar="NAME=MEANING",
        rich_help_panel=IMPORT,
        help="An input of an ONNX file that has another name: --input mask=attention_mask.",
    ),
]
TrustFlag = Annotated[
    bool,
    Option(
        "--trust",
        rich_help_panel=IMPORT,
        help="Read an exported torch program (.pt2), which can run code of whoever wrote it.",
    ),
]

_LARGEST = 65536


def check_device(device: str | None, rpc: str | None) -> None:
    """Refuse a ``--device`` that is none, or that stands beside ``--rpc``.

    Parameters
    ----------
    device, rpc : str or None
        What the options were given.

    Raises
    ------
    UsageError
        In these cases.
    """
    from ..runtime.device import parse_device

    if device is None:
        return
    parse_device(device)
    if rpc is not None:
        raise UsageError(
            "both --device and --rpc were given",
            why="--device chooses a device of this machine, and boards run on their processors",
            todo="give one of them",
        )


def parse_inputs(words: list[str] | None) -> dict[str, str] | None:
    """Parse what ``--input`` was given; None if it was not.

    Parameters
    ----------
    words : list of str or None
        ``NAME=MEANING`` each.

    Returns
    -------
    dict of str to str or None
        Meanings by name.

    Raises
    ------
    UsageError
        If a word has another form.
    """
    names: dict[str, str] = {}
    for word in words or []:
        name, equals, meaning = word.rpartition("=")
        if not (name and equals and meaning):
            raise UsageError(
                f"bad value for --input: {word!r}",
                why="it is not NAME=MEANING",
                todo="give the name in the file and what it is, for example "
                "--input mask=attention_mask",
            )
        names[name] = meaning
    return names or None


def parse_pairs(option: str, text: str | None) -> dict[str, str]:
    """Parse ``A=B,C=D``.

    Parameters
    ----------
    option : str
        Name of the option, for the error.
    text : str or None
        What it was given; None if it was not.

    Returns
    -------
    dict of str to str

    Raises
    ------
    UsageError
        If a part has another form, or a name is there twice.
    """
    pairs: dict[str, str] = {}
    for word in [] if text is None else text.split(","):
        name, equals, value = word.partition("=")
        if not (name and equals and value) or name in pairs:
            raise UsageError(
                f"bad value for {option}: {text!r}",
                why=f"{word!r} is not NAME=VALUE" if name not in pairs else f"{name!r} is twice",
                todo=f"give pairs with commas between them, for example {option} a=b,c=d",
            )
        pairs[name] = value
    return pairs


def parse_sizes(option: str, text: str) -> list[int]:
    """Parse a list of sizes such as ``32,128``.

    Parameters
    ----------
    option : str
        Name of the option, for the error.
    text : str
        Positive integers, separated by commas.

    Returns
    -------
    list of int
        In rising order, each once.

    Raises
    ------
    UsageError
        If something is not a positive integer of a sensible size.
    """
    todo = f"give one size or several with commas, for example {option} 32,128"
    return sorted({_size(option, text, word, todo) for word in text.split(",")})


def parse_size(option: str, text: str) -> int:
    """Parse one size; parameters and errors as for `parse_sizes`."""
    return _size(option, text, text, f"give one size, for example {option} 128")


def _size(option: str, text: str, word: str, todo: str) -> int:
    stripped = word.strip()
    if not (stripped.isascii() and stripped.isdigit()) or not 1 <= int(stripped) <= _LARGEST:
        raise UsageError(
            f"bad value for {option}: {text!r}",
            why=f"{stripped!r} is not a whole number from 1 to {_LARGEST}",
            todo=todo,
        )
    return int(stripped)


def read_texts(option: str, path: Path, limit: int | None = None) -> list[str]:
    """Read texts from a file, one per line; lines of white space are left out.

    Parameters
    ----------
    option : str
        Name of the option, for the errors.
    path : pathlib.Path
        A UTF-8 text file.
    limit : int, optional
        Use only the first ones.

    Returns
    -------
    list of str
        At least one text.

    Raises
    ------
    UsageError
        If the file cannot be read, is too large, is not UTF-8 text, or holds no text.
    """
    place, todo = str(path), "give a UTF-8 text file with one text per line"
    what = f"cannot read the texts of {option}"
    try:
        with path.expanduser().open("rb") as stream:
            read = stream.read(MAX_TEXTS_BYTES + 1)
        if len(read) > MAX_TEXTS_BYTES:
            why = f"it has more than {MAX_TEXTS_BYTES} bytes"
            raise UsageError(what, place, why, "give fewer texts, or the file in parts")
        content = read.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise UsageError(what, place, error.strerror or str(error), todo) from error
    except UnicodeDecodeError as error:
        why = f"it is not UTF-8 text (byte {error.start})"
        raise UsageError(what, place, why, todo) from error
    texts = [line.strip() for line in content.split("\n") if line.strip()][:limit]
    if len(texts) > MAX_TEXTS:
        why = f"it has {len(texts)} texts, and {MAX_TEXTS} are the most"
        raise UsageError(what, place, why, "give fewer texts, or the file in parts")
    if not texts:
        why = "it is empty" if not content else "it holds only white space"
        raise UsageError(f"no text in the file of {option}", place, why, todo)
    return texts
