"""The tokenizer of a model folder, as transformers builds it, in the form that an artefact keeps.

Several files say what a tokenizer does, and transformers lets some overrule others: lower case,
added tokens, prefix spaces, the side that is cut off. So transformers reads them, and what it made
is stored: its tokenizer.json, and the few settings that are no part of that. The stored form is
compared with transformers on `PROBES` before it is used. A tokenizer.json that needs no library to
be understood is stored as it is, and another process compares it, without PyTorch, meanwhile.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..common.errors import DocumentError, ModelError
from ..common.strict_json import JsonDict, decode, parse, read_bytes
from ..model.tokenization import MAX_TOKENIZER_BYTES, MAX_TOKENIZER_DEPTH, Tokenizer, refusing
from ..model.tokenization import tokenizer_files as plain_files
from ..model.tokenizer_behaviour import PROBE_LENGTHS, PROBES, ROWS, Rows, probe_rows
from ..model.tokenizer_limits import check_charsmap, check_charsmaps, check_vocabulary
from .errors import ModelSourceError
from .sentence_pipeline import transformer_settings
from .tokenizer_apart import Apart, digest
from .tokenizer_classes import built_otherwise, model_input_names
from .tokenizer_settings import (
    ADDED,
    CONFIG,
    IGNORED,
    REFUSED,
    SENTENCE,
    SPECIAL_MAP,
    dishonoured,
    setting,
)

_logger = logging.getLogger(__name__)

_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt")
_SETTINGS = (CONFIG, SPECIAL_MAP, ADDED)
_SPECIAL = ("unk", "cls", "sep", "mask", "pad", "bos", "eos")
_UNNAMED = {
    "tokenizer.json": "PreTrainedTokenizerFast",
    "vocab.txt": "BertTokenizer",
    "merges.txt": "RobertaTokenizer",
}
"""What a vocabulary is read as where no setting names a class."""
_UNLIMITED = 10**9
"""transformers writes 10^30 where a tokenizer has no limit."""
_LONGEST_CUT = 8192
"""Tokens of a text that is made to be cut off."""
_PROMPT = "query: "
"""What `Encoder` puts before a text, as sentence-transformers does; any prompt shows that."""
_ARRAYS = ("input_ids", "token_type_ids", "attention_mask")
_OF_TASKS = ("query_length", "document_length", "query_expansion")
_COPY_AGAIN = "copy the tokenizer files again"


class SourceTokenizer:
    """A tokenizer that is being read.

    Where tokenizer.json says all, only a comparison with transformers is missing, which importing
    that takes seconds: another process has it, from here until `files`.

    Parameters
    ----------
    folders
        As of `source_tokenizer`.
    """

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._apart = _begin(folders)
        self._files: dict[str, bytes] | None = None

    def files(self) -> dict[str, bytes]:
        """What `source_tokenizer` returns; errors likewise."""
        if self._files is None:
            stored = None if self._apart is None else self._apart.result()
            self._files = source_tokenizer(*self._folders) if stored is None else stored
        return self._files

    def end(self) -> None:
        """End the comparison if nothing came of it."""
        if self._apart is not None:
            self._apart.end()


def source_tokenizer(*folders: Path) -> dict[str, bytes]:
    """Tokenizer files of the first folder that has a tokenizer.

    Parameters
    ----------
    folders
        Where to look. One with a ``modules.json`` says what sentence-transformers does with it.

    Returns
    -------
    dict of str to bytes
        What `ibert_tvm.model.tokenization.Tokenizer` reads; empty if no folder has a tokenizer.

    Raises
    ------
    ModelSourceError
        If a file is damaged, a setting cannot be honoured, or the stored form would not give the
        ids of transformers and sentence-transformers.
    ModelError
        If the tokenizer has a part that `ibert_tvm.model.tokenizer_limits` does not allow.
    """
    for folder, files, sentence in _found(folders):
        if find_spec("transformers") is None:
            return _without_transformers(folder, sentence or {})
        pieces = [name for name in files if name.endswith(".model")]
        if pieces and "tokenizer.json" not in files and find_spec("sentencepiece") is None:
            raise _refused(
                folder / pieces[0],
                "transformers reads it with sentencepiece, which is not installed",
                "pip install 'ibert-tvm[torch]'",
            )
        return _by_transformers(folder, files, sentence)
    return {}


def _found(
    folders: Sequence[Path],
) -> Iterator[tuple[Path, dict[str, bytes], JsonDict | None]]:
    """Folders with a tokenizer, its files, and what sentence-transformers does with it."""
    listed = next((folder for folder in folders if (folder / "modules.json").is_file()), None)
    sentence = None if listed is None else transformer_settings(listed)
    for folder in folders:
        files = _read(folder)
        if any(name in _VOCABULARIES or name.endswith(".model") for name in files):
            yield folder, files, sentence


def _begin(folders: Sequence[Path]) -> Apart | None:
    """Begin to compare in another process; None where that would not do, or not be faster."""
    if find_spec("transformers") is None or "transformers" in sys.modules:
        return None
    try:
        stored = _as_it_is(folders)
    except ModelError:  # what it is, `source_tokenizer` says
        return None
    return None if stored is None else Apart(stored, folders)


def _as_it_is(folders: Sequence[Path]) -> dict[str, bytes] | None:
    """Files of a tokenizer of which no library is needed to know what it does; None if it is."""
    for folder, _, sentence in _found(folders):
        if sentence is not None and _length(sentence) is None:
            return None  # sentence-transformers looks at the model's positions
        stored = _without_transformers(folder, sentence or {})
        said = {**_object(stored, CONFIG), "compared_with": _version("transformers")}
        return {**stored, CONFIG: json.dumps(said).encode()}
    return None


def compare_with_transformers(folders: Sequence[Path]) -> str:
    """Compare a tokenizer that is used as it is; what another process prints.

    Returns
    -------
    str
        A document: ``same``, the `digest` of what was compared, empty if it cannot be; or
        ``error``, what a `ModelSourceError` says.
    """
    try:
        stored = _as_it_is(folders)
        folder, files, _ = next(_found(folders))
        with _copied(folder, files) as copy:
            original = _loaded(folder, copy)
        if stored is None or not getattr(original, "is_fast", False):
            return json.dumps({"same": ""})
        with _by_them(folder):
            _compare(folder, original, Tokenizer(stored))
    except ModelSourceError as error:
        return json.dumps({"error": error.args})
    return json.dumps({"same": digest(stored)})


def _version(package: str) -> str:
    return f"{package.replace('_', '-')} {version(package)}"


def files_beside(folder: Path) -> list[Path]:
    """Files of a folder that its tokenizer depends on, and that are there."""
    names = [*_VOCABULARIES, *_SETTINGS, "config.json", "modules.json"]
    patterns = ("*.model", "sentence_*_config.json") if folder.is_dir() else ()
    found = [file for pattern in patterns for file in sorted(folder.glob(pattern))]
    return [file for file in (*(folder / name for name in names), *found) if file.is_file()]


def _read(folder: Path) -> dict[str, bytes]:
    """Files that a tokenizer is built from; settings without what names code or files."""
    files = {}
    for file in files_beside(folder):
        if file.name == "modules.json" or file.name.startswith("sentence_"):
            continue
        try:
            content = read_bytes(file, MAX_TOKENIZER_BYTES)
            if file.suffix == ".json":
                document = parse(decode(content), MAX_TOKENIZER_DEPTH)
                check_vocabulary(_ids(file.name, document))
                if file.name in _PARTLY:
                    content = _part(document, _PARTLY[file.name])
        except DocumentError as error:
            raise _refused(file, error.what, _COPY_AGAIN) from error
        files[file.name] = content
    return files


def _ids(name: str, document: Any) -> Iterable[object]:
    """Ids of a vocabulary that is a document, or in one."""
    if name == "tokenizer.json":
        model = document.get("model") if isinstance(document, Mapping) else None
        document = model.get("vocab") if isinstance(model, Mapping) else None
    elif name != "vocab.json":
        return ()
    return document.values() if isinstance(document, Mapping) else ()


def _names_no_code(key: str, _value: Any) -> bool:
    return not setting(CONFIG, key).treatment.startswith(IGNORED)


def _is_size_or_kind(key: str, value: Any) -> bool:
    """Sizes are here for sentence-transformers, which cuts texts off at the model's positions."""
    return key in ("model_type", "tokenizer_class") or type(value) is int


_PARTLY = {CONFIG: _names_no_code, "config.json": _is_size_or_kind}
"""Settings that reach transformers."""


def _part(document: object, kept: Callable[[str, Any], bool]) -> bytes:
    if not isinstance(document, Mapping):
        raise DocumentError("it holds no object")
    return json.dumps({key: value for key, value in document.items() if kept(key, value)}).encode()


def _by_transformers(
    folder: Path, files: Mapping[str, bytes], sentence: JsonDict | None
) -> dict[str, bytes]:
    """What transformers makes of the files, compared with what is stored of it."""
    with _copied(folder, files) as copy:
        original = _loaded(folder, copy)
        module = None if sentence is None else _module(folder, copy, sentence)
    if not getattr(original, "is_fast", False):
        _logger.warning(
            "the tokenizer of %s is left out: %s of transformers is written in Python, and an "
            "artefact holds tokenizers of the package tokenizers",
            folder,
            type(original).__name__,
        )
        return {}
    with _by_them(folder):  # settings may have any type
        if sentence and sentence.get("do_lower_case"):
            _put_lower_case_first(original.backend_tokenizer)
        if sentence and _length(sentence):
            original.model_max_length = _length(sentence)
        stored = _stored(original, module)
    ours = Tokenizer(stored)
    with _by_them(folder):
        _compare(folder, original, ours)
        if module is not None:
            _compare_module(folder, module, ours)
    return stored


@contextmanager
def _copied(folder: Path, files: Mapping[str, bytes]) -> Iterator[Path]:
    """A folder of these files alone, for transformers."""
    settings = _object(files, CONFIG)
    if not {"tokenizer_class", "model_type"} & {*settings, *_object(files, "config.json")}:
        # transformers asks for a name, which an ONNX file may have come without.
        kind = next((kind for name, kind in _UNNAMED.items() if name in files), None)
        files = {**files, CONFIG: json.dumps({**settings, "tokenizer_class": kind}).encode()}
    with tempfile.TemporaryDirectory() as copy:
        for name, content in files.items():
            _check_maps(folder / name, content)
            (Path(copy) / name).write_bytes(content)
        yield Path(copy)


def _loaded(folder: Path, copy: Path) -> Any:
    """The tokenizer that transformers makes of a copy of a folder's files."""
    from transformers import AutoTokenizer

    with _by_them(folder):
        return AutoTokenizer.from_pretrained(copy, trust_remote_code=False, local_files_only=True)


def _check_maps(file: Path, content: bytes) -> None:
    """Refuse what would end the process before transformers has an object that can be looked at."""
    if file.name == "tokenizer.json":
        check_charsmaps(content)
    elif file.suffix == ".model" and find_spec("sentencepiece") is not None:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2 as protobuf

        try:
            model = protobuf.ModelProto.FromString(content)
        except DecodeError:
            return  # of another kind, and so without a map
        check_charsmap(model.normalizer_spec.precompiled_charsmap)


def _module(folder: Path, copy: Path, settings: JsonDict) -> Any:
    """The module of sentence-transformers that tokenises, without weights; None if it cannot.

    Raises
    ------
    ModelSourceError
        Names the settings that cannot be honoured.
    """
    found = find_spec("sentence_transformers") is not None
    asked = dishonoured(SENTENCE, settings, {}, alone=not found)
    if left := [key for key in settings if settings[key] and key in _OF_TASKS]:
        _logger.warning(
            "%s treats queries and documents differently (%s); a compiled model does not, and the "
            "caller has to cut or extend them",
            folder,
            ", ".join(left),
        )
    module = None
    if found and not asked:
        file = copy / SENTENCE
        file.write_text(json.dumps({key: settings[key] for key in settings if _of_texts(key)}))
        try:
            module = _without_weights(copy)
        except Exception as error:  # whatever a class of another package raises
            asked = dishonoured(SENTENCE, settings, {})
            _logger.warning(
                "sentence-transformers cannot read the settings of %s, whose tokenizer is compared "
                "with transformers alone: %s",
                folder,
                error,
            )
    if asked:
        raise _refused(
            folder,
            f"its settings {', '.join(asked)} ({SENTENCE}) cannot be honoured",
            "remove them: they are arguments of functions"
            if found
            else "pip install sentence-transformers, which obeys most",
        )
    return module


def _of_texts(key: str) -> bool:
    """Whether a setting reaches sentence-transformers: no arguments of functions do."""
    return setting(SENTENCE, key).treatment not in (IGNORED, REFUSED)


def _without_weights(place: Path) -> Any:
    from sentence_transformers.base.modules import Transformer
    from torch.nn import Identity
    from transformers import PretrainedConfig

    class WithoutWeights(Transformer):
        def _load_model(self, *arguments: Any, **_options: Any) -> Any:
            model = Identity()
            model.config = next(one for one in arguments if isinstance(one, PretrainedConfig))
            return model

    return WithoutWeights.load(str(place), local_files_only=True)


@contextmanager
def _by_them(folder: Path) -> Iterator[None]:
    """What transformers and tokenizers raise, as an error of ours."""
    try:
        with refusing(str(folder)):
            yield
    except ModelSourceError:
        raise
    except ModelError as error:
        raise _refused(folder, f"transformers cannot use it: {error.why}", _COPY_AGAIN) from error


def _put_lower_case_first(backend: Any) -> None:
    """As sentence-transformers does: unless it is among the normalisers already."""
    from tokenizers.normalizers import Lowercase, Sequence

    own = backend.normalizer
    several = isinstance(own, Sequence)
    steps = list(own) if several else [] if own is None else [own]
    if not any(isinstance(step, Lowercase) for step in steps):
        backend.normalizer = Sequence([Lowercase(), *steps])


def _length(settings: JsonDict) -> int | None:
    """What sentence-transformers cuts texts off at; None where it says nothing."""
    length = settings.get("max_seq_length")
    return length if type(length) is int and length > 0 else None


def _stored(original: Any, module: Any) -> dict[str, bytes]:
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
        "compared_with": _version("transformers"),
    }
    length = original.model_max_length
    if module is not None:
        settings["compared_with"] += f", {_version('sentence_transformers')}"
        length = module.max_seq_length
    if 0 < length < _UNLIMITED:
        settings["model_max_length"] = int(length)
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
            _check_same(
                folder, "transformers", made, probe_rows(stored, text, length), text, length
            )


def _compare_module(folder: Path, module: Any, stored: Tokenizer) -> None:
    """Refuse it too if a batch of sentence-transformers, with its own cut, has another row."""
    length = stored.model_max_length or PROBE_LENGTHS[0]
    beyond = ("word " * (length + 8),) if length <= _LONGEST_CUT else ()
    plain = [(text, text, None) for text in (*PROBES, *beyond)]
    for text, given, prompt in (*plain, (f"{_PROMPT}{PROBES[0]}", PROBES[0], _PROMPT)):
        batch = module.preprocess([given], prompt=prompt)
        made = {name: batch[name][0].tolist() for name in batch if name in _ARRAYS}
        found = probe_rows(stored, text, length)
        _check_same(folder, "sentence-transformers", made, found, text, length)


def _check_same(
    folder: Path, library: str, made: Mapping[str, Any], found: Rows, text: object, length: int
) -> None:
    """Types that are not made are zeros, and a mask is ones, as models have them by default."""
    ids = list(made["input_ids"])
    defaults: Rows = ([], [0] * len(ids), [1] * len(ids))
    for name, what, default, ours in zip(_ARRAYS, ROWS, defaults, found, strict=True):
        theirs = list(made.get(name, default))
        if theirs != ours:
            raise _refused(
                folder,
                f"of {text!r:.200}, cut to {length} tokens, {library} makes the {what} {theirs}, "
                f"and the stored tokenizer {ours}",
                "report it with the folder's tokenizer files",
            )


def _without_transformers(folder: Path, sentence: JsonDict) -> dict[str, bytes]:
    """tokenizer.json as it is, where no setting and no class asks for something else."""
    read = _read(folder)
    files = {name: read[name] for name in plain_files(folder)}
    if "tokenizer.json" not in files:
        raise _needs_transformers(folder, "it has no tokenizer.json")
    tokenizer = Tokenizer(files)  # what is damaged is said first
    document = _object(files, "tokenizer.json")
    asked = [
        f"{key} ({name})"
        for name in _SETTINGS
        for key in dishonoured(name, _object(read, name), document)
    ]
    asked += [f"{key} ({SENTENCE})" for key in dishonoured(SENTENCE, sentence, document)]
    lower = (document.get("normalizer") or {}).get("lowercase")
    if sentence.get("do_lower_case") and lower is not True:
        asked.append(f"do_lower_case ({SENTENCE})")
    if asked:
        why = f"its settings {', '.join(asked)} may change what tokenizer.json says"
        raise _needs_transformers(folder, why)
    settings, config = _object(read, CONFIG), _object(read, "config.json")
    if why := built_otherwise(tokenizer, settings, config):
        raise _needs_transformers(folder, why)
    length = _length(sentence)
    stored = {
        **_object(files, CONFIG),
        "model_input_names": model_input_names(settings, config),
        **({"model_max_length": length} if length else {}),
    }
    return {**files, CONFIG: json.dumps(stored).encode()}


def _needs_transformers(folder: Path, why: str) -> ModelSourceError:
    return _refused(
        folder,
        f"{why}, and transformers, which knows what that means, is not installed",
        "pip install 'ibert-tvm[torch]'",
    )


def _object(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    document = parse(decode(files[name]), MAX_TOKENIZER_DEPTH) if name in files else {}
    return document if isinstance(document, dict) else {}


def _refused(where: Path, why: str, todo: str) -> ModelSourceError:
    return ModelSourceError("the tokenizer cannot be used", where=str(where), why=why, todo=todo)
