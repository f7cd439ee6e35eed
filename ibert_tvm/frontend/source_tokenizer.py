"""The tokenizer of a model folder, as transformers builds it, in the form that an artefact keeps.

Several files say what a tokenizer does, and transformers lets some overrule others: lower case,
added tokens, prefix spaces, the side that is cut off. So transformers reads them, and what it made
is stored: its tokenizer.json, and the few settings that are no part of that. The stored form is
compared with transformers on `PROBES` before it is used.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..common.errors import DocumentError, ModelError
from ..common.strict_json import decode, parse, read_bytes
from ..model.tokenization import MAX_TOKENIZER_BYTES, MAX_TOKENIZER_DEPTH, Tokenizer, refusing
from ..model.tokenization import tokenizer_files as plain_files
from ..model.tokenizer_behaviour import PROBE_LENGTHS, PROBES, ROWS, probe_rows
from .errors import ModelSourceError

__all__ = ["PROBES", "source_tokenizer"]

_logger = logging.getLogger(__name__)

_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt")
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_SPECIAL = ("unk", "cls", "sep", "mask", "pad", "bos", "eos")
# Settings that name code or files of this machine, or that take no part in tokenising.
_LEFT_OUT = ("auto_map", "chat_template", "processor_class", "name_or_path", "_commit_hash")
_HARMLESS = {
    *_LEFT_OUT,
    "model_max_length",
    "model_input_names",
    "truncation_side",
    "padding_side",
    "tokenizer_class",
    "clean_up_tokenization_spaces",
}
_UNNAMED = {
    "tokenizer.json": "PreTrainedTokenizerFast",
    "vocab.txt": "BertTokenizer",
    "merges.txt": "RobertaTokenizer",
}
"""What a vocabulary is read as where no setting names a class."""
_UNLIMITED = 10**9
"""transformers writes 10^30 where a tokenizer has no limit."""


def source_tokenizer(*folders: Path, lower_case: bool = False) -> dict[str, bytes]:
    """Tokenizer files of the first folder that has a tokenizer.

    Parameters
    ----------
    folders
        Where to look.
    lower_case
        sentence-transformers' `do_lower_case`: texts are made lower case before anything else.

    Returns
    -------
    dict of str to bytes
        What `ibert_tvm.model.tokenization.Tokenizer` reads; empty if no folder has a tokenizer.

    Raises
    ------
    ModelSourceError
        If a file is damaged, or the stored form would not give the ids of transformers.
    """
    for folder in folders:
        files = _read(folder)
        if not any(name in _VOCABULARIES or name.endswith(".model") for name in files):
            continue
        if find_spec("transformers") is None:
            return _without_transformers(folder, lower_case)
        pieces = [name for name in files if name.endswith(".model")]
        if pieces and "tokenizer.json" not in files and find_spec("sentencepiece") is None:
            raise _refused(
                folder / pieces[0],
                "transformers reads it with sentencepiece, which is not installed",
                "pip install 'ibert-tvm[torch]'",
            )
        return _by_transformers(folder, files, lower_case)
    return {}


def _read(folder: Path) -> dict[str, bytes]:
    """Files that a tokenizer is built from; settings without what names code or files."""
    names = [*_VOCABULARIES, *_SETTINGS, "config.json"]
    if folder.is_dir():
        names += sorted(file.name for file in folder.glob("*.model"))
    files = {}
    for name in names:
        if not (folder / name).is_file():
            continue
        try:
            content = read_bytes(folder / name, MAX_TOKENIZER_BYTES)
            if name == "config.json":
                content = _settings(content, lambda key: key in ("model_type", "tokenizer_class"))
            elif name == "tokenizer_config.json":
                content = _settings(
                    content, lambda key: key not in _LEFT_OUT and not key.endswith("_file")
                )
            elif name.endswith(".json"):
                parse(decode(content), MAX_TOKENIZER_DEPTH)
        except DocumentError as error:
            raise _refused(folder / name, error.what, "copy the tokenizer files again") from error
        files[name] = content
    return files


def _settings(content: bytes, kept: Any) -> bytes:
    document = parse(decode(content), MAX_TOKENIZER_DEPTH)
    if not isinstance(document, Mapping):
        raise DocumentError("it holds no object")
    return json.dumps({key: value for key, value in document.items() if kept(key)}).encode()


def _by_transformers(
    folder: Path, files: Mapping[str, bytes], lower_case: bool
) -> dict[str, bytes]:
    """What transformers makes of the files, compared with what is stored of it."""
    from transformers import AutoTokenizer

    settings = _object(files, "tokenizer_config.json")
    if not {"tokenizer_class", "model_type"} & {*settings, *_object(files, "config.json")}:
        # transformers asks for a name, which an ONNX file may have come without.
        kind = next((kind for name, kind in _UNNAMED.items() if name in files), None)
        changed = json.dumps({**settings, "tokenizer_class": kind}).encode()
        files = {**files, "tokenizer_config.json": changed}
    with tempfile.TemporaryDirectory() as copy:
        for name, content in files.items():
            (Path(copy) / name).write_bytes(content)
        with _by_them(folder):
            original = AutoTokenizer.from_pretrained(
                copy, trust_remote_code=False, local_files_only=True
            )
    if not getattr(original, "is_fast", False):
        _logger.warning(
            "the tokenizer of %s is left out: %s of transformers is written in Python, and an "
            "artefact holds tokenizers of the package tokenizers",
            folder,
            type(original).__name__,
        )
        return {}
    with _by_them(folder):  # settings may have any type
        if lower_case:
            _put_lower_case_first(original.backend_tokenizer)
        stored = _stored(original)
    ours = Tokenizer(stored)
    with _by_them(folder):
        _compare(folder, original, ours)
    return stored


@contextmanager
def _by_them(folder: Path) -> Iterator[None]:
    """What transformers and tokenizers raise, as an error of ours."""
    try:
        with refusing(str(folder)):
            yield
    except ModelSourceError:
        raise
    except ModelError as error:
        raise _refused(
            folder, f"transformers cannot use it: {error.why}", "copy the tokenizer files again"
        ) from error


def _put_lower_case_first(backend: Any) -> None:
    """As sentence-transformers does: unless it is among the normalisers already."""
    from tokenizers.normalizers import Lowercase, Sequence

    own = backend.normalizer
    several = isinstance(own, Sequence)
    steps = list(own) if several else [] if own is None else [own]
    if not any(isinstance(step, Lowercase) for step in steps):
        backend.normalizer = Sequence([Lowercase(), *steps])


def _stored(original: Any) -> dict[str, bytes]:
    """The tokenizer.json of a tokenizer, and its settings that are not in there."""
    from tokenizers import Tokenizer as FastTokenizer

    backend = FastTokenizer.from_str(original.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    special = {f"{name}_token": getattr(original, f"{name}_token") for name in _SPECIAL}
    settings: dict[str, Any] = {
        **{name: str(token) for name, token in special.items() if token is not None},
        "model_input_names": list(original.model_input_names),
        "truncation_side": original.truncation_side,
        "compared_with": f"transformers {version('transformers')}",
    }
    if 0 < original.model_max_length < _UNLIMITED:
        settings["model_max_length"] = int(original.model_max_length)
    return {
        "tokenizer.json": backend.to_str().encode(),
        "tokenizer_config.json": json.dumps(settings, ensure_ascii=False, indent=1).encode(),
    }


def _compare(folder: Path, original: Any, stored: Tokenizer) -> None:
    """Refuse a tokenizer whose ids, types, masks or cut are not those of transformers."""
    for text in PROBES:
        pair = text if isinstance(text, tuple) else (text,)
        for length in PROBE_LENGTHS:
            made = original(*pair, truncation=True, max_length=length)
            ids = list(made["input_ids"])
            types = list(made.get("token_type_ids", [0] * len(ids)))
            wanted = (ids, types, list(made.get("attention_mask", [1] * len(ids))))
            found = probe_rows(stored, text, length)
            for what, theirs, ours in zip(ROWS, wanted, found, strict=True):
                if theirs != ours:
                    raise _refused(
                        folder,
                        f"of {text!r}, cut to {length} tokens, transformers makes the {what} "
                        f"{theirs}, and the stored tokenizer {ours}",
                        "report it with the folder's tokenizer files",
                    )


def _without_transformers(folder: Path, lower_case: bool) -> dict[str, bytes]:
    """tokenizer.json as it is, where no setting asks for something else."""
    files = plain_files(folder)
    document = _object(files, "tokenizer.json")
    settings = _object(files, "tokenizer_config.json")
    asked = sorted(key for key, value in settings.items() if not _is_kept(key, value, document))
    if "tokenizer.json" not in files:
        why = "it has no tokenizer.json"
    elif lower_case:
        why = "sentence-transformers makes texts lower case first (do_lower_case)"
    elif asked:
        why = f"its settings {', '.join(asked)} may change what tokenizer.json says"
    else:
        return files
    raise _refused(
        folder,
        f"{why}, and transformers, which knows what that means, is not installed",
        "pip install 'ibert-tvm[torch]'",
    )


def _object(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    document = parse(decode(files[name]), MAX_TOKENIZER_DEPTH) if name in files else {}
    return document if isinstance(document, dict) else {}


def _is_kept(key: str, value: Any, document: Mapping[str, Any]) -> bool:
    """Whether a setting changes nothing, since tokenizer.json or `Tokenizer` does the same."""
    normaliser = document.get("normalizer") or {}
    same = {
        "do_lower_case": normaliser.get("lowercase"),
        "strip_accents": normaliser.get("strip_accents"),
        "tokenize_chinese_chars": normaliser.get("handle_chinese_chars"),
        "add_prefix_space": (document.get("pre_tokenizer") or {}).get("add_prefix_space"),
    }
    if key in same:
        return bool(value == same[key])
    if key == "added_tokens_decoder" and isinstance(value, Mapping):
        added = {str(token["id"]): token["content"] for token in document.get("added_tokens", ())}
        return all(added.get(index) == token.get("content") for index, token in value.items())
    return key in _HARMLESS or key.endswith(("_token", "_file")) or not value


def _refused(where: Path, why: str, todo: str) -> ModelSourceError:
    return ModelSourceError("the tokenizer cannot be used", where=str(where), why=why, todo=todo)
