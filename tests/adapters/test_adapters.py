"""Encoders in the packages that they are adapted to, compared with what they give alone."""

from __future__ import annotations

import asyncio
import pickle
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm import Encoder
from ibert_tvm.common.errors import UsageError
from tests.encoder.small_encoders import tiny
from tests.extras import needs
from tests.processes import run_captured
from tests.runtime.conftest import VOCABULARY
from tests.snapshots import Messages

TEXTS = ["hello world", "small big small", "", "big", "world hello small small"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    prompts = {"query": "small ", "document": "big "}
    return Encoder(
        tiny("embedding", prompts=prompts).build(tmp_path_factory.mktemp("adapters") / "tiny.so")
    )


def test_langchain_embeds_queries_and_documents(encoder: Encoder) -> None:
    needs("langchain_core")
    from langchain_core.vectorstores import InMemoryVectorStore

    from ibert_tvm.adapters.langchain import IbertEmbeddings

    embeddings = IbertEmbeddings(encoder, {"normalize_embeddings": True})
    alone = encoder.encode(TEXTS, prompt_name="document", normalize_embeddings=True)
    assert embeddings.embed_documents(TEXTS) == alone.tolist()
    query = encoder.encode("big", prompt_name="query", normalize_embeddings=True)
    assert embeddings.embed_query("big") == query.tolist()
    assert asyncio.run(embeddings.aembed_query("big")) == query.tolist()
    store = InMemoryVectorStore.from_texts(TEXTS, embeddings)
    (found,) = store.similarity_search("big", k=1)
    assert found.page_content == TEXTS[int((alone @ query).argmax())]
    assert embeddings.metadata == {"model_digest": encoder.library.metadata.digest}


def test_llama_index_embeds_queries_and_documents(encoder: Encoder) -> None:
    needs("llama_index.core")
    from ibert_tvm.adapters.llama_index import IbertEmbedding

    embedding = IbertEmbedding(encoder, embed_batch_size=2)
    alone = encoder.encode(TEXTS, prompt_name="document").tolist()
    assert embedding.get_text_embedding_batch(TEXTS) == alone
    assert embedding.get_text_embedding(TEXTS[1]) == alone[1]
    query = encoder.encode("big", prompt_name="query").tolist()
    assert embedding.get_query_embedding("big") == query
    assert asyncio.run(embedding.aget_query_embedding("big")) == query
    assert asyncio.run(embedding.aget_text_embedding_batch(TEXTS)) == alone
    assert embedding.model_name == "tiny.so"


def test_llama_index_notes_the_library_of_vectors(encoder: Encoder) -> None:
    needs("llama_index.core")
    from llama_index.core.schema import MetadataMode, TextNode

    from ibert_tvm.adapters.llama_index import IbertEmbedding

    embedding, digest = IbertEmbedding(encoder), encoder.library.metadata.digest
    assert embedding.to_dict()["model_digest"] == digest  # of which caches of pipelines have a key
    nodes = [TextNode(text=text) for text in TEXTS]
    vectors = encoder.encode(TEXTS, prompt_name="document").tolist()
    for _ in range(2):
        found = [*embedding(nodes[:2]), *asyncio.run(embedding.acall(nodes[2:]))]
        assert [node.embedding for node in found] == vectors
        assert [node.metadata for node in found] == [{"model_digest": digest}] * len(TEXTS)
    for mode in (MetadataMode.EMBED, MetadataMode.LLM):
        assert [node.get_content(mode) for node in found] == TEXTS


def with_head(kind: str, folder: Path) -> Encoder:
    needs("transformers")
    return Encoder(tiny(kind).build(folder / f"{kind}.so"))


@pytest.mark.slow
def test_transformers_extracts_features(tmp_path: Path, messages: Messages) -> None:
    encoder = with_head("embedding", tmp_path)
    from ibert_tvm.adapters.transformers import pipeline

    texts = ["hello world", "big"]
    extract = pipeline("feature-extraction", encoder, return_tensors=True)
    assert extract.model.config.model_digest == encoder.library.metadata.digest
    found = extract(texts)
    alone = encoder.encode(texts, output_value="token_embeddings")
    for tensor, own in zip(found, alone, strict=True):
        np.testing.assert_array_equal(tensor[0].numpy(), own.numpy())
    with messages.raises(UsageError):
        pipeline("question-answering", encoder)
    with messages.raises(UsageError):
        pipeline("text-classification", encoder)


@pytest.mark.slow  # importing the package takes seconds
def test_sentence_transformers_has_a_module(
    encoder: Encoder, tmp_path: Path, messages: Messages
) -> None:
    needs("sentence_transformers")
    from sentence_transformers import SentenceTransformer, util

    from ibert_tvm.adapters.sentence_transformers import IbertModule

    model = SentenceTransformer(modules=[IbertModule(encoder)], device="cpu")
    assert model.get_embedding_dimension() == encoder.embedding_size
    assert model.max_seq_length == encoder.max_seq_length
    vectors = model.encode(TEXTS, batch_size=2)
    np.testing.assert_array_equal(vectors, encoder.encode(TEXTS))
    np.testing.assert_array_equal(model.encode("big"), encoder.encode("big"))
    model.prompts = encoder.prompts
    named = model.encode(TEXTS, prompt_name="query")
    np.testing.assert_array_equal(named, encoder.encode(TEXTS, prompt_name="query"))
    prompted = model.encode(TEXTS, prompt="small ")
    np.testing.assert_array_equal(prompted, encoder.encode(TEXTS, prompt="small "))
    whole = model.encode(TEXTS, output_value=None)
    assert {item["model_digest"] for item in whole} == {encoder.library.metadata.digest}
    for own, other in zip(
        encoder.encode(TEXTS, output_value="token_embeddings"),
        model.encode(TEXTS, output_value="token_embeddings"),
        strict=True,
    ):
        np.testing.assert_array_equal(own.numpy(), other.numpy())
    unit = model.encode(TEXTS, normalize_embeddings=True, convert_to_tensor=True)
    np.testing.assert_allclose(
        unit.numpy(), encoder.encode(TEXTS, normalize_embeddings=True), rtol=1e-6
    )
    found = util.semantic_search(model.encode("big", convert_to_tensor=True), unit, top_k=2)
    cosines = unit.numpy() @ encoder.encode("big")
    assert [hit["corpus_id"] for hit in found[0]] == list(np.argsort(-cosines)[:2])
    with messages.raises(UsageError):
        model.save_pretrained(str(tmp_path / "saved"))
    record = {"similarity": "euclidean", "dimensions": 2}
    stated = Encoder(tiny("embedding", post_processing=record).build(tmp_path / "stated.so"))
    model = SentenceTransformer(modules=[IbertModule(stated)], device="cpu")
    short = model.encode(TEXTS)
    np.testing.assert_array_equal(short, stated.encode(TEXTS))
    assert short.shape[1] == model.get_embedding_dimension() == 2
    np.testing.assert_allclose(
        model.similarity(short, short).numpy(), stated.similarity(short, short), atol=1e-6
    )


@pytest.mark.slow
def test_sentence_transformers_treats_the_module_as_its_own(
    encoder: Encoder, messages: Messages
) -> None:
    needs("sentence_transformers")
    from sentence_transformers import SentenceTransformer

    from ibert_tvm.adapters.sentence_transformers import IbertModule

    model = SentenceTransformer(modules=[IbertModule(encoder.library.metadata.path)], device="cpu")
    assert len(model.tokenizer) == len(model.processor) == len(VOCABULARY)
    ids = model.tokenizer(TEXTS, padding=True, return_tensors="np")["input_ids"]
    np.testing.assert_array_equal(ids, model.preprocess(TEXTS)["input_ids"].numpy())
    assert repr(model[0]) == "IbertModule({'max_seq_length': 16})"
    # Prompts are the source's, unless the caller has others.
    np.testing.assert_array_equal(model.encode_query(TEXTS), encoder.encode_query(TEXTS))
    np.testing.assert_array_equal(model.encode_document(TEXTS), encoder.encode_document(TEXTS))
    other = SentenceTransformer(modules=[IbertModule(encoder)], prompts={"query": "hello "})
    assert other.prompts["query"] == "hello " and other.prompts["document"] == "big "
    pairs = [("big", "hello"), ("small", "world")]
    prompted = [("big big", "hello"), ("big small", "world")]
    np.testing.assert_array_equal(
        model.preprocess(pairs, prompt="big ")["input_ids"], model.preprocess(prompted)["input_ids"]
    )
    copied, pickled = deepcopy(model), pickle.loads(pickle.dumps(model))
    model.max_seq_length = 4
    assert model.tokenizer.model_max_length == 4
    long = "hello world big small big"
    shorter = Encoder(encoder.library, max_seq_length=4).encode(long)
    np.testing.assert_array_equal(model.encode(long), shorter)
    for same in (copied, pickled):
        assert (same.max_seq_length, same.prompts) == (16, model.prompts)
        np.testing.assert_array_equal(same.encode(long), encoder.encode(long))
    assert encoder.max_seq_length == 16
    for tokens in (17, 0, None):
        with messages.raises(UsageError):
            model.max_seq_length = tokens
    with messages.raises(UsageError):
        model.encode(long, processing_kwargs={"text": {"max_length": 4}})


@pytest.mark.slow
def test_a_model_without_vectors_is_no_module(tmp_path: Path, messages: Messages) -> None:
    needs("sentence_transformers")
    from ibert_tvm.adapters.sentence_transformers import IbertModule

    model = tiny("tokens")
    outputs = [{**output, "kind": "token_logits"} for output in model.metadata["outputs"]]
    model.metadata_changes["outputs"] = outputs
    path = model.build(tmp_path / "tokens.so")
    with messages.raises(UsageError):
        IbertModule(path)


def test_without_the_package_an_adapter_says_what_to_install() -> None:
    code = (
        "import importlib.util as u, sys\n"
        "real = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'langchain_core' else real(n, *a)\n"
        "from ibert_tvm.common.errors import IbertError\n"
        "try:\n    import ibert_tvm.adapters.langchain\n"
        "except IbertError as error:\n    print(error)\n"
    )
    done = run_captured([sys.executable, "-c", code], check=True)
    assert done.stdout == (
        "ibert_tvm.adapters.langchain needs langchain_core, which is not installed: "
        "pip install 'ibert-tvm[adapters]', or that package alone\n"
    )
