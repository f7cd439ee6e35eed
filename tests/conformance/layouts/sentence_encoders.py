"""Sentence encoders, as sentence-transformers has published them since its version 0.3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file

from ibert_tvm import Encoder
from ibert_tvm.frontend.source_tokenizer import PROBES
from tests.conformance.evaluated import TEXTS, float_encoder
from tests.conformance.folders import (
    PROMPT,
    Folder,
    albert_pieces,
    last_pairs,
    modern_pairs,
    mpnet_words,
    pairs_of_bytes,
    pieces,
    t5_pieces,
    words,
)
from tests.conformance.layout import LAYOUTS, Layout
from tests.frontend.sentence_folders import CHANNELS, MODELS, NORMALIZE, TRANSFORMER, dense, pooling

EXACT = 0.003
"""Largest difference of the float model from the library, which may compute in half precision."""
NEAREST = 0.95
"""Least cosine of an embedding with the library's: weights are random, channels few."""
TIE = 0.1
"""Similarities may change places that are nearer than so much of their range, at least 0.3."""
_LONGEST = 512
"""Where an encoder cuts texts that its model has room for."""


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Of the rows of two arrays."""
    norms = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return np.asarray((one * other).sum(axis=-1) / norms)


def same_order(found: np.ndarray, wanted: np.ndarray) -> None:
    """Ask that scores in rows are in one order, but for ties."""
    for ours, theirs in zip(found, wanted, strict=True):
        ranks = theirs[np.argsort(-ours, kind="stable")]
        assert np.all(ranks[:-1] - ranks[1:] >= -TIE * max(np.ptp(theirs), 0.3)), (ours, theirs)


def like_sentence_transformers(folder: Path, ours: Encoder) -> None:
    """Length, ids, embeddings with and without prompts, and the order of similarities."""
    from sentence_transformers import SentenceTransformer  # which takes seconds

    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    room = ours.library.metadata.info.max_sequence_length or _LONGEST
    assert ours.max_seq_length == min(theirs.max_seq_length or _LONGEST, room, _LONGEST)
    theirs.max_seq_length = ours.max_seq_length
    assert ours.embedding_size == theirs.get_embedding_dimension()
    for text in PROBES:
        wanted = (
            theirs.preprocess([text])
            if isinstance(text, str)
            else theirs.tokenizer([text], truncation=True, max_length=ours.max_seq_length)
        )
        ids = [int(index) for index in wanted["input_ids"][0]]
        batch = ours.tokenizer.encode([text], ours.max_seq_length, allow_empty=True)
        assert batch.input_ids[0].tolist() == ids, text
        types = wanted.get("token_type_ids", [[0] * len(ids)])[0]
        assert batch.token_type_ids[0].tolist() == [int(kind) for kind in types], text
    alone: dict[str, Any] = {"batch_size": 1, "show_progress_bar": False}
    ways: dict[str, tuple[str, dict[str, str]]] = {
        "encode": ("encode", {}),
        "query": ("encode_query", {}),
        "document": ("encode_document", {}),
        "another prompt": ("encode", {"prompt": "the cat "}),
    }
    for name, prompt in theirs.prompts.items():
        ways |= {f"prompt {name}": ("encode", {"prompt_name": name})} if prompt else {}
    exact, similar = float_encoder(folder), theirs.similarity
    for way, (method, options) in ways.items():
        found, near = (getattr(each, method)(list(TEXTS), **options) for each in (ours, exact))
        wanted = getattr(theirs, method)(list(TEXTS), **options, **alone)
        np.testing.assert_allclose(near, wanted, atol=EXACT * np.abs(wanted).max(), err_msg=way)
        assert cosines(found, wanted).min() >= NEAREST, (way, cosines(found, wanted))
        same_order(*(np.asarray(similar(each, each)) for each in (found, wanted)))


def _folder(*modules: Any, place: str = "", kind: str = TRANSFORMER[0], **options: Any) -> Folder:
    """A transformer in some folder, and modules behind it."""
    return Folder(modules=[(kind, place, {}), *modules], **options)


def _limited(length: int = 48, file: str = "sentence_bert", **settings: Any) -> dict[str, Any]:
    """What sentence-transformers writes beside a transformer."""
    return {f"{file}_config.json": {"max_seq_length": length, **settings}}


def _prompts(default: str | None = None, **prompts: str | None) -> dict[str, Any]:
    """What sentence-transformers writes about a model since its version 2.4."""
    settings = {"prompts": prompts, "default_prompt_name": default, "similarity_fn_name": "cosine"}
    return {"config_sentence_transformers.json": settings}


def _saved_by_the_library(folder: Path) -> None:
    """As the installed version writes a model that it read."""
    source = folder.with_name("source")
    source.mkdir()
    _folder(MEAN, NORMALIZE, files=_limited() | _prompts(query="query: "))(source)
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(str(source), device="cpu").save_pretrained(str(folder))


def _jina_v2(folder: Path) -> None:
    """Its code is beside it: a BERT without a table of positions."""
    _folder(MEAN, changes={**REMOTE, "position_embedding_type": "alibi"})(folder)
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if "position_emb" not in name}
    save_file(kept, folder / "model.safetensors")


def _without_prompt() -> Any:
    """A mean over what is behind the prompt."""
    kind, place, config = pooling("mean")
    return kind, place, {**config, "include_prompt": False}


MEAN, CLS = pooling("mean"), pooling("cls")
QUERY = "query: "
NAMES = ("input_ids", "attention_mask")
XLMR = {"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 48}
MPNET = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "MPNetTokenizer"}
COUNT = len(words.keywords["vocabulary"])
LEFT = {"padding_side": "left", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
LEFT |= {"tokenizer_class": "Qwen2Tokenizer"}
MODERN = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": NAMES}
MODERN |= {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "mask", "unk")}
NORM = (f"{MODELS}LayerNorm", "3_LayerNorm", {"dimension": CHANNELS})
DROPOUT = (f"{MODELS}Dropout", "4_Dropout", {"dropout": 0.1})
_ADDED = {"content": "cat sat", "lstrip": False, "rstrip": False, "single_word": False}
ADDED = {**_ADDED, "normalized": False, "special": False}
MASK = {**ADDED, "content": "[MASK]", "lstrip": True, "special": True, "__type": "AddedToken"}


def _pooling(*modes: str, **fields: Any) -> Any:
    """A pooling as version 6 writes it."""
    mode = modes[0] if len(modes) == 1 else modes
    config = {"embedding_dimension": CHANNELS, "pooling_mode": mode, "include_prompt": True}
    return f"{MODELS}Pooling", "1_Pooling", {**config, **fields}


AGREEING: dict[str, Any] = {
    # Families, as they are published.
    "all-MiniLM-L6-v2": _folder(
        MEAN, NORMALIZE, saved=True, files=_limited(48, do_lower_case=False)
    ),
    "all-MiniLM-L12-v1": _folder(MEAN, NORMALIZE, saved=True, files=_limited(16)),
    "all-mpnet-base-v2": _folder(
        MEAN,
        NORMALIZE,
        architecture="mpnet",
        tokenizer=mpnet_words,
        settings=MPNET,
        saved=True,
        files=_limited(48, do_lower_case=False),
    ),
    "all-distilroberta-v1": _folder(
        MEAN, NORMALIZE, architecture="roberta", tokenizer=pairs_of_bytes, files=_limited(20)
    ),
    "paraphrase-multilingual-MiniLM-L12-v2": _folder(
        MEAN, tokenizer=pieces, settings=XLMR, saved=True, files=_limited(48)
    ),
    "paraphrase-xlm-r-multilingual-v1": _folder(
        MEAN,
        place="0_Transformer",
        architecture="xlm-roberta",
        tokenizer=pieces,
        files={"0_Transformer/sentence_xlm-roberta_config.json": {"max_seq_length": 22}},
    ),
    "paraphrase-albert-small-v2": _folder(
        MEAN, architecture="albert", tokenizer=albert_pieces, files=_limited(48)
    ),
    "LaBSE": _folder(
        CLS,
        dense(CHANNELS, CHANNELS),
        NORMALIZE,
        saved=True,
        pickled=True,
        settings={"do_lower_case": False},
        files=_limited(48),
    ),
    "distiluse-base-multilingual-cased": _folder(
        MEAN,
        dense(CHANNELS, 16),
        place="0_DistilBERT",
        architecture="distilbert",
        pickled=True,
        settings={"do_lower_case": False},
        files={
            "0_DistilBERT/sentence_distilbert_config.json": {
                "max_seq_length": 20,
                "do_lower_case": False,
            }
        },
    ),
    "clip-ViT-B-32-multilingual-v1": _folder(
        MEAN,
        dense(CHANNELS, 24, "linear.Identity", bias=False),
        architecture="distilbert",
        settings={"do_lower_case": False},
        files=_limited(48),
    ),
    "bert-base-nli-mean-tokens": _folder(
        MEAN,
        place="0_BERT",
        pickled=True,
        files={"0_BERT/sentence_bert_config.json": {"max_seq_length": 18, "do_lower_case": True}},
    ),
    "roberta-base-nli-stsb-mean-tokens": _folder(
        MEAN,
        place="0_RoBERTa",
        architecture="roberta",
        tokenizer=pairs_of_bytes,
        pickled=True,
        files={"0_RoBERTa/sentence_roberta_config.json": {"max_seq_length": 18}},
    ),
    "msmarco-distilbert-base-tas-b": _folder(
        CLS,
        architecture="distilbert",
        files=_limited(48)
        | {"config_sentence_transformers.json": {"__version__": {"pytorch": "1.6.0"}}},
    ),
    "msmarco-bert-base-dot-v5": _folder(
        MEAN,
        files=_limited(48) | {"config_sentence_transformers.json": {"similarity_fn_name": "dot"}},
    ),
    "allenai-specter": _folder(CLS, settings={"do_lower_case": True}, files=_limited(48)),
    "sentence-camembert": _folder(
        MEAN, architecture="camembert", tokenizer=pieces, files=_limited(48)
    ),
    "electra": _folder(MEAN, architecture="electra", saved=True, files=_limited(48)),
    "bge-small-en-v1.5": _folder(
        CLS, NORMALIZE, saved=True, files=_limited(48, do_lower_case=True) | _prompts()
    ),
    "bge-m3": _folder(
        CLS,
        NORMALIZE,
        architecture="xlm-roberta",
        tokenizer=pieces,
        settings=XLMR,
        saved=True,
        files=_limited(8192),
    ),
    "e5-base-v2": _folder(MEAN, NORMALIZE, saved=True, files=_limited(48)),
    "multilingual-e5-base": _folder(
        MEAN,
        NORMALIZE,
        architecture="xlm-roberta",
        tokenizer=pieces,
        settings=XLMR,
        saved=True,
        files=_limited(48) | _prompts(query=QUERY, passage="passage: "),
    ),
    "multilingual-e5-large-instruct": _folder(
        MEAN,
        NORMALIZE,
        architecture="xlm-roberta",
        tokenizer=pieces,
        settings=XLMR,
        saved=True,
        files=_limited(48) | _prompts("query", query="Instruct: retrieve\nQuery: ", document=""),
    ),
    "gte-base": _folder(MEAN, NORMALIZE, saved=True, files=_limited(48)),
    "gte-base-en-v1.5 in transformers": _folder(CLS, architecture="gte", saved=True),
    "nomic-embed-text-v1.5 in transformers": _folder(
        MEAN,
        architecture="nomic_bert",
        saved=True,
        files=_limited(48) | _prompts(query="search_query: ", document="search_document: "),
    ),
    "modernbert-embed-base": _folder(
        MEAN,
        architecture="modernbert",
        tokenizer=modern_pairs,
        settings=MODERN,
        files=_limited(48) | _prompts(query="search_query: ", document="search_document: "),
    ),
    "jina-embeddings-v3 in transformers": _folder(
        MEAN, architecture="jina_embeddings_v3", tokenizer=pieces, settings=XLMR, saved=True
    ),
    "snowflake-arctic-embed-m": _folder(
        CLS, NORMALIZE, saved=True, files=_limited(48) | _prompts(query=PROMPT)
    ),
    "snowflake-arctic-embed-l-v2.0": _folder(
        CLS,
        NORMALIZE,
        architecture="xlm-roberta",
        tokenizer=pieces,
        settings=XLMR,
        saved=True,
        files=_limited(48) | _prompts(query=QUERY),
    ),
    "mxbai-embed-large-v1": _folder(
        CLS, saved=True, files=_limited(48) | _prompts(query=PROMPT, passage="")
    ),
    "stella-base-en-v2": _folder(
        MEAN,
        dense(CHANNELS, 48, "linear.Identity"),
        saved=True,
        files=_limited(48) | _prompts(s2p_query="Instruct: s2p\nQuery: ", s2s_query="s2s: "),
    ),
    "Qwen3-Embedding-0.6B": _folder(
        pooling("lasttoken"),
        NORMALIZE,
        architecture="qwen3",
        tokenizer=last_pairs,
        settings=LEFT,
        files=_prompts(query="Instruct: retrieve\nQuery:", document=""),
    ),
    "gtr-t5-base": _folder(MEAN, dense(CHANNELS, 16), architecture="t5", tokenizer=t5_pieces),
    # What sentence-transformers writes.
    "saved by the installed version": _saved_by_the_library,
    "max_seq_length of the tokenizer": _folder(MEAN, settings={"model_max_length": 14}),
    "max_seq_length of the tokenizer, other settings beside the transformer": _folder(
        MEAN,
        settings={"model_max_length": 14},
        files={"sentence_bert_config.json": {"do_lower_case": False}},
    ),
    "no limit": _folder(MEAN, settings={"model_max_length": 10**30}),
    "lower case of sentence-transformers": _folder(
        MEAN, settings={"do_lower_case": False}, files=_limited(48, do_lower_case=True)
    ),
    "empty settings": _folder(
        MEAN,
        architecture="roberta",
        tokenizer=pairs_of_bytes,
        files={
            "sentence_bert_config.json": {},
            "sentence_roberta_config.json": {"max_seq_length": 12},
        },
    ),
    "prompts that are null": _folder(MEAN, files=_prompts(query=None, document="passage: ")),
    "default prompt": _folder(MEAN, files=_prompts("clustering", clustering="cluster: ")),
    "prompts by other names": _folder(
        MEAN, files=_prompts(**{"Retrieval-query": QUERY, "corpus": "passage: "})
    ),
    "truncated vectors": _folder(
        MEAN, files={"config_sentence_transformers.json": {"truncate_dim": 16}}
    ),
    # Modules.
    "pooling max": _folder(pooling("max")),
    "pooling mean_sqrt_len": _folder(pooling("mean_sqrt_len")),
    "pooling weightedmean": _folder(pooling("weightedmean")),
    "pooling lasttoken": _folder(pooling("lasttoken")),
    "poolings in the order of version 5": _folder(pooling("mean", "max", "cls")),
    "poolings in their own order": _folder(_pooling("mean", "cls")),
    "pooling of version 6": _folder(_pooling("mean_sqrt_len_tokens")),
    "pooling by old and new keys": _folder(_pooling("cls", pooling_mode_mean_tokens=True)),
    "pooling that none is chosen for": _folder(_pooling("cls", pooling_mode=["max"])),
    "LayerNorm and Dropout": _folder(MEAN, NORM, DROPOUT),
    "Dense with ReLU": _folder(MEAN, dense(CHANNELS, 20, "activation.ReLU"), NORMALIZE),
    "two dense layers": _folder(
        MEAN,
        dense(CHANNELS, 40, "activation.GELU"),
        (*dense(40, 24, "linear.Identity")[:1], "3_Dense", dense(40, 24, "linear.Identity")[2]),
        NORMALIZE,
    ),
    # Files of weights and of the tokenizer.
    "sharded weights": _folder(MEAN, shard="20KB"),
    "pickled weights": _folder(MEAN, pickled=True),
    "tokenizer.json alone": _folder(MEAN, saved=True, without=["tokenizer_config.json"]),
    "vocab.txt alone": _folder(MEAN, without=["tokenizer_config.json"]),
    "vocab.json and merges.txt alone": _folder(
        MEAN, architecture="roberta", tokenizer=pairs_of_bytes, without=["tokenizer_config.json"]
    ),
    "sentencepiece.bpe.model alone": _folder(
        MEAN, architecture="xlm-roberta", tokenizer=pieces, without=["tokenizer_config.json"]
    ),
    "prefix space": _folder(
        MEAN, architecture="roberta", tokenizer=pairs_of_bytes, settings={"add_prefix_space": True}
    ),
    "added_tokens.json": _folder(MEAN, files={"added_tokens.json": {"cat sat": COUNT}}),
    "added_tokens_decoder": _folder(MEAN, settings={"added_tokens_decoder": {"5": ADDED}}),
    "case kept": _folder(MEAN, settings={"do_lower_case": False}, saved=True),
    "accents kept": _folder(MEAN, settings={"strip_accents": False}),
    "special tokens as names": _folder(
        MEAN, files={"special_tokens_map.json": {"cls_token": "[CLS]", "mask_token": "[MASK]"}}
    ),
    "special tokens as records": _folder(
        MEAN, files={"special_tokens_map.json": {"mask_token": MASK}}
    ),
    "cut and padded on the left": _folder(
        MEAN, settings={"truncation_side": "left", "padding_side": "left"}, files=_limited(16)
    ),
    "no token types": _folder(MEAN, settings={"model_input_names": NAMES}),
    "half precision": _folder(MEAN, dtype="float16"),
}
for name, folder in AGREEING.items():
    default = name == "all-MiniLM-L6-v2"
    LAYOUTS.register(Layout(name, folder, like_sentence_transformers, default=default))

PLAIN = {
    "plain BERT": Folder(saved=True),
    "plain RoBERTa": Folder(architecture="roberta", tokenizer=pairs_of_bytes),
    "plain masked-language model": Folder(head="masked_lm"),
}
for name, folder in PLAIN.items():
    LAYOUTS.register(Layout(name, folder, like_sentence_transformers, head="sentence_embedding"))

REMOTE = {"auto_map": {"AutoModel": "remote--modeling.Model", "AutoConfig": "remote--c.Config"}}
ADAPTER = {"peft_type": "LORA", "base_model_name_or_path": "base", "r": 4, "target_modules": []}
REFUSED = {
    "jina-embeddings-v2": _jina_v2,
    "gte-base-en-v1.5": _folder(CLS, changes={**REMOTE, "model_type": "new"}),
    "average_word_embeddings": _folder(MEAN, kind=f"{MODELS}WordEmbeddings"),
    "clip-ViT-B-32": _folder(kind=f"{MODELS}CLIPModel"),
    "static-retrieval-mrl": _folder(kind=f"{MODELS}StaticEmbedding"),
    "bert-base-nli of version 0.2": _folder(MEAN, place="0_BERT", kind=f"{MODELS}BERT"),
    "an asymmetric model": _folder(MEAN, (f"{MODELS}Asym", "2_Asym", {"structure": {}})),
    "instructor": _folder(_without_prompt(), files=_prompts(query="Represent the query: ")),
    "processing_kwargs": _folder(
        MEAN, files=_limited(48, processing_kwargs={"text": {"max_length": 11}})
    ),
    "settings of the tokenizer beside the transformer": _folder(
        MEAN,
        files={
            "sentence_bert_config.json": {
                "tokenizer_args": {"model_max_length": 13, "do_lower_case": False}
            }
        },
    ),
    "arguments of the configuration": _folder(
        MEAN, files=_limited(48, config_args={"unpad_inputs": False, "num_hidden_layers": 0})
    ),
    "an adapter": _folder(MEAN, files={"adapter_config.json": ADAPTER}),
    "another output of the transformer": _folder(files=_limited(48, module_output_name="x")),
}
for name, folder in REFUSED.items():
    LAYOUTS.register(Layout(name, folder, None))
