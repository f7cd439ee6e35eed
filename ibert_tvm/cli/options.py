"""Options that several commands share, and what turns their text into values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import BadParameter, Option

from ..common.errors import UsageError
from ..model.heads import HEADS

if TYPE_CHECKING:
    from ibert_tvm.targets.rpc import Address

    from ..frontend import CanonicalModel
    from ..model.model_info import ModelInfo

_LARGEST = 65536


def _head(word: str) -> str:
    if word not in ("auto", *HEADS):
        raise BadParameter(f"{word!r} is not one of auto, {', '.join(HEADS)}.")
    return word


def _heads(incomplete: str) -> list[str]:
    return [name for name in ("auto", *HEADS) if name.startswith(incomplete)]


def _targets(incomplete: str) -> list[tuple[str, str]]:
    """Names of targets and what they are, for a shell; the last of several that are joined."""
    from ibert_tvm.targets import get_target, target_names

    before, plus, begun = incomplete.rpartition("+")
    return [
        (f"{before}{plus}{name}", "" if name == "host" else get_target(name).description)
        for name in target_names()
        if name.startswith(begun)
    ]


AtLeastOne = Annotated[int, Option(min=1)]
MaybeOne = Annotated[int | None, Option(min=1)]
TargetOption = Annotated[
    str, Option(help="What to build for; `ibert targets` lists the names.", autocompletion=_targets)
]
TextsOption = Annotated[Path | None, Option("--texts", "--text")]
DeviceOption = Annotated[
    str | None,
    Option(
        metavar="cpu|cuda[:N]",
        help="What to run on; by default what the library was compiled for, and the first GPU.",
    ),
]


@dataclass(frozen=True)
class ImportOptions:
    """How a model is imported.

    Attributes
    ----------
    inputs
        An input of an ONNX file that has another name: --input mask=attention_mask.
    trust
        Read an exported torch program (.pt2), which can run code of whoever wrote it.
    """

    panel = "Import"

    inputs: Annotated[list[str] | None, Option("--input", metavar="NAME=MEANING")] = None
    trust: bool = False

    def __post_init__(self) -> None:
        for word in self.inputs or []:
            name, equals, meaning = word.rpartition("=")
            if not (name and equals and meaning):
                raise UsageError(
                    f"bad value for --input: {word!r}",
                    why="it is not NAME=MEANING",
                    todo="give the name in the file and what it is, for example "
                    "--input mask=attention_mask",
                )

    def load(self, model: Path, head: str | None, tokenizer: Path | None = None) -> CanonicalModel:
        """Import a model; parameters and errors as for `ibert_tvm.load`."""
        from ..frontend import load

        names = dict(word.rpartition("=")[::2] for word in self.inputs or []) or None
        return load(model, head=head, inputs=names, tokenizer=tokenizer, trust=self.trust)


@dataclass(frozen=True)
class HeadOptions(ImportOptions):
    """How a model is imported, and with which head.

    Attributes
    ----------
    head
        Which head to import; auto takes what the model has.
    """

    head: Annotated[
        str, Option(metavar="HEAD", rich_help_panel="Options", parser=_head, autocompletion=_heads)
    ] = "auto"

    @property
    def chosen_head(self) -> str | None:
        """The head that ``--head`` names; None for ``auto``."""
        return None if self.head == "auto" else self.head


@dataclass(frozen=True)
class Board:
    """Where commands that work on a board find it.

    Attributes
    ----------
    rpc
        Work on a board: its RPC server, or a tracker.
    key
        Key of the board; a tracker hands out boards by it.
    rpc_timeout
        Seconds to wait for an answer of the board.
    """

    panel = "Board"

    rpc: Annotated[str | None, Option(metavar="HOST:PORT")] = None
    key: Annotated[str | None, Option("--rpc-key", "--key")] = None
    rpc_timeout: Annotated[float, Option(min=1.0)] = 60.0

    @property
    def address(self) -> Address | None:
        """Where it is; None without ``--rpc``."""
        return address_of(self.rpc, self.key)


@dataclass(frozen=True)
class Shapes:
    """Shapes to compile kernels for.

    Attributes
    ----------
    batch
        Batch sizes, with commas; all with all lengths.
    seq_len
        Sequence lengths in tokens, with commas. [default: 128, or all that the model has positions
        for]
    """

    batch: str = "1"
    seq_len: str | None = None

    def __post_init__(self) -> None:
        parse_sizes("--batch", self.batch)
        if self.seq_len is not None:
            parse_sizes("--seq-len", self.seq_len)

    def of(self, info: ModelInfo, where: Path) -> list[tuple[int, int]]:
        """Return every batch size with every length in tokens, the shortest first.

        Raises
        ------
        UsageError
            If the model has no positions for a length.
        """
        longest = info.max_sequence_length
        lengths = [info.length(None) if info.image_size is None else longest or 0]
        if self.seq_len is not None:
            lengths = parse_sizes("--seq-len", self.seq_len)
        asked = max(lengths)
        if info.image_size is not None and set(lengths) != {longest}:
            what = "images" if len(info.image_size) == 3 else "features"
            raise UsageError(
                f"cannot compile for {asked} tokens",
                where=str(where),
                why=f"{what} of {' x '.join(map(str, info.image_size))} become {longest} tokens",
                todo="leave --seq-len out",
            )
        if longest is not None and asked > longest:
            raise UsageError(
                f"cannot compile for {asked} tokens",
                where=str(where),
                why=f"the model has positions for {longest} tokens",
                todo=f"give a --seq-len of at most {longest}",
            )
        return [(b, s) for s in lengths for b in parse_sizes("--batch", self.batch)]


def check_device(device: str | None, rpc: str | None) -> None:
    """Refuse a ``--device`` that is none, or that stands beside ``--rpc``.

    Parameters
    ----------
    device, rpc
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


def parse_pairs(option: str, text: str | None) -> dict[str, str]:
    """Parse ``A=B,C=D``.

    Parameters
    ----------
    option
        Name of the option, for the error.
    text
        What it was given; None if it was not.

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
    option
        Name of the option, for the error.
    text
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


def address_of(rpc: str | None, key: str | None) -> Address | None:
    """What ``--rpc`` and ``--rpc-key`` name; None if neither was given."""
    if rpc is None and key is not None:
        raise UsageError("--rpc-key was given without --rpc", todo="give --rpc HOST:PORT as well")
    if rpc is None:
        return None
    from ibert_tvm.targets.rpc import Address

    return Address.parse(rpc, key or "")
