"""The refusal of a tokenizer that the C form does not implement."""

from __future__ import annotations

from ..common.errors import ModelError


class TokenizerFormError(ModelError):
    """A part of a tokenizer.json that has no C form."""


def refused(section: str, why: str) -> TokenizerFormError:
    """Say which part it is, and what it asks for."""
    return TokenizerFormError(
        "the tokenizer cannot be written in C",
        where=f"tokenizer.json: {section}",
        why=why,
        todo="compile without --tokenizer, and give the model token ids",
    )


def check_plain(section: str, part: dict[str, object], allowed: dict[str, object]) -> None:
    """Refuse settings that are neither unset nor as they are implemented."""
    for key, value in part.items():
        if key != "type" and value not in (None, False, "") and allowed.get(key, ...) != value:
            raise refused(section, f"{part.get('type')} has {key} {value!r:.80}")
