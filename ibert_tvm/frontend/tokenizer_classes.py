"""Classes of transformers that build a tokenizer themselves, whatever tokenizer.json says.

They take its vocabulary, merges and added tokens; normaliser, pre-tokenizer, model options and
special tokens around a text are those of the class, with the settings of tokenizer_config.json.
Where transformers is not installed, a tokenizer.json is used if it says the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..common.strict_json import JsonDict, JsonObject
from ..model.tokenization import Tokenizer, refusing

_AS_IT_IS = ("PreTrainedTokenizer", "TokenizersBackend")
"""Classes that use tokenizer.json as it is, the former with "Fast" at its end."""
_PROBE = "a"


@dataclass(frozen=True)
class _Class:
    """A class.

    Attributes
    ----------
    names
        Its names, without "Fast".
    model_types
        Architectures that have it where no class is named.
    parts
        From the settings: parts of tokenizer.json that it builds.
    around
        Settings of the tokens before and behind a text, with their defaults.
    between
        How many of the latter stand between the texts of a pair.
    types
        Type of the second text's tokens, in tokenizer.json.
    typed
        Whether models are given types of tokens, where no setting says so.
    """

    names: tuple[str, ...]
    model_types: tuple[str, ...]
    parts: Callable[[JsonObject], JsonDict]
    around: Mapping[str, str]
    between: int
    types: int
    typed: bool = False


def _bert(settings: JsonObject) -> JsonDict:
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
            "strip_accents": settings.get("strip_accents"),
            "lowercase": settings.get("do_lower_case", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": _content(settings.get("unk_token", "[UNK]")),
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
    }


def _roberta(settings: JsonObject) -> JsonDict:
    return {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": settings.get("add_prefix_space", False),
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {"type": "BPE", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False},
    }


_BERT = _Class(
    ("BertTokenizer", "ElectraTokenizer"),
    ("bert", "distilbert", "electra"),
    _bert,
    {"cls_token": "[CLS]", "sep_token": "[SEP]"},
    between=1,
    types=1,
    typed=True,
)
_CLASSES = (
    _BERT,
    replace(_BERT, names=("DistilBertTokenizer",), model_types=(), typed=False),
    _Class(
        ("RobertaTokenizer",),
        ("roberta",),
        _roberta,
        {"cls_token": "<s>", "sep_token": "</s>"},
        between=2,
        types=0,
    ),
)


def built_otherwise(tokenizer: Tokenizer, settings: JsonObject, config: JsonObject) -> str:
    """What the class of a tokenizer in transformers may build otherwise; empty if nothing.

    Parameters
    ----------
    tokenizer
        That of a tokenizer.json as it is.
    settings, config
        tokenizer_config.json and config.json.

    Returns
    -------
    str
        The beginning of a reason.
    """
    name, model_type = _names(settings, config)
    if name in _AS_IT_IS or not (name or model_type):
        return ""
    one = _class_of(settings, config)
    if one is None:
        return f"its tokenizer is a {name or model_type}"
    part = _other_part(one, tokenizer, settings)
    return part and f"the {part} of its tokenizer.json may not be that of {one.names[0]}"


def model_input_names(settings: JsonObject, config: JsonObject) -> list[str]:
    """Arrays that the class in transformers gives a model; settings as of `built_otherwise`."""
    one = _class_of(settings, config)
    types = ["token_type_ids"] if one is not None and one.typed else []
    names: list[str] = settings.get("model_input_names") or ["input_ids", *types, "attention_mask"]
    return names


def _names(settings: JsonObject, config: JsonObject) -> tuple[str, Any]:
    """Class and architecture."""
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    return str(named).removesuffix("Fast") if named else "", config.get("model_type")


def _class_of(settings: JsonObject, config: JsonObject) -> _Class | None:
    name, model_type = _names(settings, config)
    for one in _CLASSES:
        if name in one.names if name else model_type in one.model_types:
            return one
    return None


def _other_part(one: _Class, tokenizer: Tokenizer, settings: JsonObject) -> str:
    fast = tokenizer.fast_copy()
    document = json.loads(fast.to_str())
    for part, wanted in one.parts(settings).items():
        said = document[part]
        if part == "model":
            said = {key: said.get(key) for key in wanted}
        if said != wanted:
            return part
    with refusing("tokenizer.json"):
        first, last = (
            fast.token_to_id(_content(settings.get(key, usual)))
            for key, usual in one.around.items()
        )
        word = fast.encode(_PROBE, add_special_tokens=False).ids
        alone, pair = fast.encode(_PROBE), fast.encode(_PROBE, _PROBE)
    second = [*word, last]
    whole = [first, *word, *[last] * one.between]
    ids = (alone.ids, pair.ids) == ([first, *word, last], [*whole, *second])
    types = [0] * len(whole) + [one.types] * len(second)
    same = ids and not any(alone.type_ids) and pair.type_ids == types
    return "" if same else "post_processor"


def _content(token: Any) -> str:
    return str(token.get("content") if isinstance(token, Mapping) else token)
