"""Every setting that says how texts become tokens: its file, and what is done with it.

`docs/importing.md` shows the table. A library reads its own settings, and its result is stored; the
last column is for where that library is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..common.strict_json import JsonObject

CONFIG = "tokenizer_config.json"
SPECIAL_MAP = "special_tokens_map.json"
ADDED = "added_tokens.json"
SENTENCE = "sentence_bert_config.json"
"""Or that of another name, see `ibert_tvm.frontend.sentence_pipeline.transformer_settings`."""
OBEYED, IGNORED, REFUSED = "obeyed", "ignored", "refused"

_Honoured = Callable[[str, Any, JsonObject], bool]


@dataclass(frozen=True)
class Setting:
    """What is done with some settings of a file.

    Parameters
    ----------
    file
        Name of the file.
    keys
        Names of the settings, with ``*`` for any characters.
    treatment
        What the library does that the file belongs to, and with it the import.
    alone
        What is done without that library.
    honoured
        ``honoured(key, value, tokenizer_json)``: whether a value has its effect without it.
    """

    file: str
    keys: tuple[str, ...]
    treatment: str
    alone: str
    honoured: _Honoured


def _always(_key: str, _value: Any, _document: JsonObject) -> bool:
    return True


def _unset(_key: str, value: Any, _document: JsonObject) -> bool:
    return not value


def _same(key: str, value: Any, document: JsonObject) -> bool:
    normaliser = document.get("normalizer") or {}
    said = {
        "do_lower_case": normaliser.get("lowercase"),
        "strip_accents": normaliser.get("strip_accents"),
        "tokenize_chinese_chars": normaliser.get("handle_chinese_chars"),
        "add_prefix_space": (document.get("pre_tokenizer") or {}).get("add_prefix_space"),
    }
    return bool(value == said[key])


def _contents(value: Any) -> list[Any]:
    """Texts of a token, of a list of tokens, or of tokens by name."""
    if isinstance(value, Mapping) and "content" in value:
        return [value["content"]]
    if isinstance(value, Mapping):
        value = list(value.values())
    return (
        [text for one in value for text in _contents(one)] if isinstance(value, list) else [value]
    )


def _is_special(_key: str, value: Any, document: JsonObject) -> bool:
    special = [token["content"] for token in document.get("added_tokens", ()) if token["special"]]
    return all(text is None or text in special for text in _contents(value))


def _is_added(key: str, value: Any, document: JsonObject) -> bool:
    """Ids and texts, either way round."""
    added = [(str(token["id"]), token["content"]) for token in document.get("added_tokens", ())]
    if key == "added_tokens_decoder":
        wanted = value.items() if isinstance(value, Mapping) else [(key, value)]
        return all((index, _contents(token)[0]) in added for index, token in wanted)
    return (str(value), key) in added


_ONLY_SAME = "obeyed where `tokenizer.json` says the same, else refused"
_ONLY_SPECIAL = "obeyed where `tokenizer.json` has them as special tokens, else refused"
_ONLY_ADDED = "obeyed where `tokenizer.json` has them, else refused"
_WARNED = "left to the caller, with a warning"
_TOKENS = ("*_token", "additional_special_tokens", "extra_special_tokens")

SETTINGS = (
    Setting(
        CONFIG,
        ("model_max_length", "truncation_side", "model_input_names"),
        OBEYED,
        OBEYED,
        _always,
    ),
    Setting(
        CONFIG,
        ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space"),
        OBEYED,
        _ONLY_SAME,
        _same,
    ),
    Setting(CONFIG, _TOKENS, OBEYED, _ONLY_SPECIAL, _is_special),
    Setting(SPECIAL_MAP, _TOKENS, OBEYED, _ONLY_SPECIAL, _is_special),
    Setting(CONFIG, ("added_tokens_decoder",), OBEYED, _ONLY_ADDED, _is_added),
    Setting(ADDED, ("*",), OBEYED, _ONLY_ADDED, _is_added),
    Setting(
        CONFIG,
        # Arguments of calls, padding, detokenising, and forms that tokenizer.json replaces.
        (
            *("max_length", "stride", "truncation_strategy", "padding_side", "pad_to_multiple_of"),
            *("pad_token_type_id", "clean_up_tokenization_spaces", "errors", "tokenizer_class"),
            *("do_basic_tokenize", "never_split", "use_fast", "trim_offsets"),
        ),
        "left to the class, or ignored",
        IGNORED,
        _always,
    ),
    Setting(
        CONFIG,
        (
            *("auto_map", "chat_template", "processor_class", "name_or_path", "_commit_hash"),
            *("*_file", "compared_with"),
        ),
        f"{IGNORED}: no code or other file is read",
        IGNORED,
        _always,
    ),
    Setting(CONFIG, ("*",), OBEYED, REFUSED, _unset),
    Setting(SENTENCE, ("max_seq_length",), OBEYED, OBEYED, _always),
    Setting(
        SENTENCE, ("do_lower_case",), OBEYED, "obeyed with transformers, else refused", _always
    ),
    Setting(
        SENTENCE,
        (
            *("transformer_task", "modality_config", "module_output_name", "unpad_inputs"),
            *("model_args", "model_kwargs", "config_args", "config_kwargs"),
        ),
        "read as a part of the model",
        "read as a part of the model",
        lambda key, value, _: key != "modality_config" or {*value} <= {"text"},
    ),
    Setting(
        SENTENCE, ("query_length", "document_length", "query_expansion"), _WARNED, _WARNED, _always
    ),
    Setting(
        SENTENCE,
        ("tokenizer_args", "processor_kwargs", "tokenizer_name_or_path"),
        REFUSED,
        REFUSED,
        _unset,
    ),
    Setting(SENTENCE, ("*",), OBEYED, REFUSED, _unset),
)
"""The first that a setting's name fits says what is done with it."""


def setting(file: str, key: str) -> Setting:
    """What is done with a setting."""
    return next(
        row
        for row in SETTINGS
        if row.file == file and any(fnmatchcase(key, pattern) for pattern in row.keys)
    )


def dishonoured(
    file: str, settings: JsonObject, document: JsonObject, alone: bool = True
) -> list[str]:
    """Names of settings without their effect, sorted.

    Parameters
    ----------
    file
        The file that they are in.
    settings
        Its content.
    document
        Content of tokenizer.json.
    alone
        Whether the library that the file belongs to is not there.
    """
    return sorted(
        key
        for key, value in settings.items()
        for row in (setting(file, key),)
        if (alone or row.treatment == REFUSED) and not row.honoured(key, value, document)
    )


def table() -> list[str]:
    """The rows of the table in docs/importing.md."""
    rows = []
    for row in SETTINGS:
        keys = "every other" if row.keys == ("*",) else ", ".join(f"`{key}`" for key in row.keys)
        if row.file == ADDED:
            keys = "all"
        rows.append(f"| {keys} | `{row.file}` | {row.treatment} | {row.alone} |")
    return rows
