"""Places of a model from the names of its values: what role, and in which repeated block."""

from __future__ import annotations


def _words(layer: str) -> tuple[list[str], int | None]:
    """The words of a canonical name, and the position of the first number."""
    words = layer.split(".") if layer else []
    return words, next((i for i, word in enumerate(words) if word.isdigit()), None)


def role_of(layer: str) -> str:
    """Return a canonical name with its number left open (``encoder.layer.*.output.dense``)."""
    words, number = _words(layer)
    return ".".join("*" if index == number else word for index, word in enumerate(words))


def block_of(layer: str) -> str:
    """Return the repeated layer of a canonical name, or else its first word."""
    words, number = _words(layer)
    return ".".join(words[: 1 if number is None else number + 1])
