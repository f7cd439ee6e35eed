"""`Encoder` where a `SentenceTransformer` or `CrossEncoder` was: names, arguments, examples."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ibert_tvm import Encoder
from ibert_tvm.common.errors import UsageError
from ibert_tvm.model.scores import PAIRWISE, PRECISIONS
from tests.encoder.small_encoders import tiny
from tests.encoder.test_encode import texts_of
from tests.extras import needs
from tests.integration.whole_models import minilm, minilm_folder
from tests.snapshots import Messages

Make = Callable[..., Encoder]
ROOT = Path(__file__).resolve().parents[2]
_SECTION = "## In place of a SentenceTransformer or a CrossEncoder"
pytestmark = pytest.mark.slow  # importing sentence-transformers takes seconds


@pytest.fixture(scope="module")
def st() -> Any:
    needs("sentence_transformers")
    return importlib.import_module("sentence_transformers")


@pytest.fixture
def pair(st: Any, encoder: Make) -> tuple[Encoder, Any]:
    """An encoder, and a `SentenceTransformer` that runs the same library."""
    from ibert_tvm.adapters.sentence_transformers import IbertModule

    model = encoder("embedding", prompts={"query": "small ", "document": "big "})
    return model, st.SentenceTransformer(modules=[IbertModule(model)], device="cpu")


def left_out() -> list[str]:
    """Names of the first column of the documents' table."""
    section = (ROOT / "docs" / "encoder.md").read_text(encoding="utf-8").split(_SECTION)[1]
    rows = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def whole_classes(st: Any) -> dict[str, set[str]]:
    """By ``NAME.*`` of the table: what such a class has."""
    import torch

    peft = importlib.import_module("sentence_transformers.base.peft_mixin")
    classes = (torch.nn.Sequential, peft.PeftAdapterMixin)
    named = ("torch.nn.Sequential.*", "PeftAdapterMixin.*")
    return {name: public(dir(kind)) for name, kind in zip(named, classes, strict=True)}


def test_every_name_is_one_of_encoders_or_in_the_table(st: Any, pair: tuple[Encoder, Any]) -> None:
    model, other = pair
    listed, whole = left_out(), whole_classes(st)
    assert set(whole) <= set(listed) and len(listed) == len(set(listed)) > 50
    sequential = whole["torch.nn.Sequential.*"]
    redefined = {
        name
        for kind in (st.SentenceTransformer, st.CrossEncoder)
        for parent in kind.__mro__
        if parent.__module__.startswith("sentence_transformers")
        for name in vars(parent)
    }
    names = public(dir(st.SentenceTransformer)) | public(dir(st.CrossEncoder))
    names |= public(vars(other)) | {"activation_fn"}
    names -= sequential - redefined | {"training"}
    stated = {name for name in listed if name.isidentifier()}
    stated |= whole["PeftAdapterMixin.*"]
    assert names - set(dir(model)) - stated == set()
    assert stated & set(dir(model)) == set()
    assert stated <= names


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(function).parameters)
    found.pop("self", None)
    return found


def test_every_argument_is_one_of_encoders_or_in_the_table(st: Any) -> None:
    listed = {name for name in left_out() if name.endswith(")")}
    used = set()
    for kind in (st.SentenceTransformer, st.CrossEncoder):
        for name in public(dir(kind)) | {"__init__"}:
            theirs, ours = getattr(kind, name), getattr(Encoder, name, None)
            if ours is None or not inspect.isfunction(theirs) or not inspect.isfunction(ours):
                continue
            if name in ("encode_query", "encode_document"):  # which hand all on
                name, ours = "encode", Encoder.encode
            mine = _parameters(ours)
            missing = {f"{name}({each})" for each in set(_parameters(theirs)) - set(mine)}
            assert missing - listed == set(), name
            used |= missing
            common = [each for each in _parameters(theirs) if each in mine]
            if name != "__init__":
                assert common == [each for each in mine if each in common], name
    assert listed == used


def _same(own: Any, other: Any) -> None:
    assert type(own) is type(other)
    np.testing.assert_allclose(np.asarray(own), np.asarray(other), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("form", [{}, {"convert_to_tensor": True}, {"convert_to_numpy": False}])
def test_precisions_are_those_of_sentence_transformers(
    pair: tuple[Encoder, Any], precision: str, form: dict[str, bool]
) -> None:
    texts = texts_of(120)
    for more in ({}, {"truncate_dim": 2}, {"normalize_embeddings": True}):
        options = {"precision": precision, **form, **more}
        own, other = (model.encode(texts, **options) for model in pair)
        assert type(own) is type(other) and len(own) == len(other)
        assert own[0].dtype == other[0].dtype
        if "normalize_embeddings" in more and precision != "float32":
            continue  # the last bit of a quotient may move a level
        for one, two in zip(own, other, strict=True):
            _same(one, two)


def test_one_vector_has_no_range(pair: tuple[Encoder, Any], messages: Messages) -> None:
    model, other = pair
    with pytest.raises(ValueError, match="single embedding"):
        other.encode("big", precision="int8")
    with messages.raises(UsageError):
        model.encode("big", precision="int8")
    _same(*(each.encode("big", precision="ubinary") for each in pair))


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities(pair: tuple[Encoder, Any], name: str) -> None:
    import torch

    one, other = texts_of(7), texts_of(7)[::-1]
    for model in pair:
        model.similarity_fn_name = name
    try:
        for form in (torch.Tensor, np.ndarray):
            given = [
                pair[0].encode(t, convert_to_tensor=form is torch.Tensor) for t in (one, other)
            ]
            for method in ("similarity", "similarity_pairwise"):
                for sides in (given, [side[0] for side in given], [list(side) for side in given]):
                    own, theirs = (getattr(model, method)(*sides) for model in pair)
                    assert isinstance(own, form) and own.shape == theirs.shape
                    np.testing.assert_allclose(own, theirs.numpy(), rtol=1e-5, atol=2e-6)
    finally:
        for model in pair:
            model.similarity_fn_name = None
    assert pair[0].similarity_fn_name == pair[1].similarity_fn_name == "cosine"
    assert set(PAIRWISE) > {name}


def _examples() -> Iterator[Any]:
    """Of the documents of sentence-transformers, with texts of the small models' vocabulary."""
    corpus, queries = texts_of(40), ["small world", "big hello"]

    def usage(_st: Any, model: Any) -> Any:  # Quickstart
        vectors = model.encode(["hello world", "small world", "big"])
        return vectors, model.similarity(vectors, vectors)

    def semantic_search(st: Any, model: Any) -> Any:  # Semantic Search
        vectors = model.encode_document(corpus, convert_to_tensor=True)
        found = model.encode_query(queries, convert_to_tensor=True)
        hits = st.util.semantic_search(found, vectors, top_k=5)
        return [[hit["score"] for hit in each] for each in hits]

    def manual_search(st: Any, model: Any) -> Any:  # Semantic Search, manual implementation
        import torch

        vectors = model.encode_document(corpus, convert_to_tensor=True)
        scores = model.similarity(model.encode_query(queries[0], convert_to_tensor=True), vectors)
        return torch.topk(scores[0], k=5)[0]

    def paraphrases(st: Any, model: Any) -> Any:  # Paraphrase Mining
        return [pair[0] for pair in st.util.paraphrase_mining(model, corpus[:12])]

    def short_paraphrases(st: Any, model: Any) -> Any:
        found = st.util.paraphrase_mining(model, corpus[:12], truncate_dim=2, prompt_name="query")
        return [pair[0] for pair in found]

    def communities(st: Any, model: Any) -> Any:  # Clustering, fast clustering
        vectors = model.encode(corpus, convert_to_tensor=True)
        found = st.util.community_detection(vectors, min_community_size=2, threshold=0.95)
        return [len(each) for each in found]

    def kmeans(_st: Any, model: Any) -> Any:  # Clustering
        from sklearn.cluster import KMeans

        return KMeans(3, random_state=0).fit(model.encode(corpus)).cluster_centers_

    def truncated(_st: Any, model: Any) -> Any:  # Matryoshka Embeddings
        with model.truncate_embeddings(2):
            assert model.get_embedding_dimension() == model.truncate_dim == 2
            return model.encode(corpus)

    def quantised(st: Any, model: Any) -> Any:  # Embedding Quantization
        return st.util.quantization.quantize_embeddings(model.encode(corpus), "binary")

    def prompts(_st: Any, model: Any) -> Any:  # Prompts
        named = model.encode(queries, prompt_name="query")
        return named - model.encode(queries, prompt="small "), named

    def similar(st: Any, model: Any) -> Any:  # Evaluation
        evaluation = importlib.import_module(
            "sentence_transformers.sentence_transformer.evaluation"
        )
        scores = np.linspace(0, 1, 20)
        evaluator = evaluation.EmbeddingSimilarityEvaluator(corpus[:20], corpus[20:], scores)
        return list(model.evaluate(evaluator).values())

    def triplets(st: Any, model: Any) -> Any:
        evaluation = importlib.import_module(
            "sentence_transformers.sentence_transformer.evaluation"
        )
        evaluator = evaluation.TripletEvaluator(corpus[:10], corpus[10:20], corpus[20:30])
        return list(evaluator(model).values())

    def retrieval(st: Any, model: Any) -> Any:
        evaluation = importlib.import_module(
            "sentence_transformers.sentence_transformer.evaluation"
        )
        documents = {str(i): text for i, text in enumerate(corpus) if text}
        asked = dict(enumerate(queries))
        relevant = {i: {key for key in documents if int(key) % 2 == i} for i in asked}
        evaluator = evaluation.InformationRetrievalEvaluator(
            {str(i): text for i, text in asked.items()},
            documents,
            {str(i): keys for i, keys in relevant.items()},
        )
        return list(evaluator(model).values())

    def tokens(_st: Any, model: Any) -> Any:
        return [*model.preprocess(queries).values(), *model.tokenize(queries).values()]

    for example in list(locals().values()):
        if inspect.isfunction(example):
            yield pytest.param(example, id=example.__name__)


@pytest.mark.parametrize("example", list(_examples()))
def test_examples_of_sentence_transformers(
    st: Any, pair: tuple[Encoder, Any], example: Callable[[Any, Any], Any]
) -> None:
    own, other = (example(st, model) for model in pair)
    for one, two in zip(own, other, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=1e-5, atol=2e-6)


def test_what_evaluators_find_is_kept(st: Any, pair: tuple[Encoder, Any]) -> None:
    evaluation = importlib.import_module("sentence_transformers.sentence_transformer.evaluation")
    model, texts = Encoder(pair[0].library), texts_of(20)
    found = model.evaluate(evaluation.TripletEvaluator(texts, texts[::-1], texts, name="ours"))
    assert model.model_card_data.metrics == found != {}


def test_settings_are_the_callers(encoder: Make, messages: Messages) -> None:
    library = encoder("embedding", prompts={"query": "small "}).library
    model = Encoder(
        library, prompts={"passage": "big "}, default_prompt_name="passage",
        similarity_fn_name="dot", truncate_dim=2,
    )  # fmt: skip
    assert model.prompts == {"query": "small ", "passage": "big "}
    np.testing.assert_array_equal(model.encode("hello"), Encoder(library).encode("big hello")[:2])
    assert (model.get_sentence_embedding_dimension(), model.similarity_fn_name) == (2, "dot")
    assert model.to("cpu") is model and model.device == "cpu" and model.supports("text")
    for call in (
        lambda: model.encode("big", device="cuda"),
        lambda: Encoder(library, default_prompt_name="passage"),
        lambda: setattr(model, "similarity_fn_name", "close"),
        lambda: setattr(model, "truncate_dim", "abc"),
        lambda: setattr(model, "max_seq_length", "abc"),
        lambda: model.encode("big", output_value="token_embeddings", precision="int8"),
    ):
        with messages.raises(UsageError):
            call()


def test_a_pool_of_processes_gives_the_same(tmp_path: Path) -> None:
    model = Encoder(tiny("embedding").build(tmp_path / "tiny.so"), max_seq_length=6)
    texts = texts_of(23)
    with model.start_multi_process_pool(["cpu", "cpu"]) as pool:
        for options in ({}, {"precision": "int8"}, {"output_value": "token_embeddings"}):
            alone = model.encode(texts, **options)
            found = model.encode(texts, pool=pool, chunk_size=4, batch_size=3, **options)
            for one, two in zip(alone, found, strict=True):
                np.testing.assert_array_equal(one, two)
        model.max_seq_length = 4
        np.testing.assert_array_equal(model.encode(texts, pool=pool), model.encode(texts))
        assert model.encode([], pool=pool).shape == (0, 3)
    np.testing.assert_array_equal(model.encode(texts, device=["cpu"]), model.encode(texts))


@pytest.mark.parametrize("kind", ["score", "classes"])
def test_cross_encoders_score_pairs(st: Any, encoder: Make, kind: str) -> None:
    import torch

    model = encoder(kind)
    pairs = [("small world", text) for text in texts_of(9)]
    logits = model.library.run_texts(pairs)["embedding"]
    wanted = 1 / (1 + np.exp(-logits[:, 0])) if kind == "score" else logits
    for given in (pairs, [list(pair) for pair in pairs], np.array(pairs)):
        np.testing.assert_allclose(model.predict(given, batch_size=2), wanted, rtol=1e-6)
    np.testing.assert_allclose(model.predict(list(pairs[3])), wanted[3], rtol=1e-6)
    tensor = model.predict(pairs, activation_fn=torch.nn.Identity(), convert_to_tensor=True)
    np.testing.assert_array_equal(tensor.numpy(), logits[:, 0] if kind == "score" else logits)
    if kind == "classes":
        soft = model.predict(pairs, apply_softmax=True)
        np.testing.assert_allclose(soft.sum(axis=1), 1, rtol=1e-6)
        with pytest.raises(UsageError, match="a score is one"):
            model.rank("small", ["big"])
        return
    documents = [text for _, text in pairs]
    ranked = model.rank("small world", documents, top_k=3, return_documents=True)
    assert [each["text"] for each in ranked] == [documents[each["corpus_id"]] for each in ranked]
    bare = [{key: each[key] for key in ("corpus_id", "score")} for each in ranked]
    assert bare == model.rerank("small world", documents, top_k=3)


def test_minilm_answers_as_its_source(st: Any, tmp_path: Path) -> None:
    """Examples of sentence-transformers' README and pages, with the float model and the library."""
    from ibert_tvm.compiler import compile as compile_model

    compile_model(minilm(), "host", [(8, 64)]).export(tmp_path / "minilm.so")
    models = [Encoder(tmp_path / "minilm.so"), st.SentenceTransformer(str(minilm_folder()))]
    sentences = [
        "The weather is lovely today.",
        "It's so sunny outside!",
        "He drove to the stadium.",
    ]
    corpus = [
        "A man is eating food.", "A man is eating a piece of bread.",
        "The girl is carrying a baby.", "A man is riding a horse.", "A woman is playing violin.",
        "Two men pushed carts.",
        "A man is riding a white horse on an enclosed ground.", "A monkey is playing drums.",
        "A cheetah is running behind its prey.",
    ]  # fmt: skip
    queries = ["A man is eating pasta.", "Someone in a gorilla costume is playing a set of drums."]
    found = []
    for model in models:
        vectors = model.encode(sentences)
        np.testing.assert_allclose(
            model.similarity(vectors, vectors),
            [[1, 0.6660, 0.1046], [0.6660, 1, 0.1411], [0.1046, 0.1411, 1]],
            atol=0.03,
        )
        texts = model.encode_document(corpus, convert_to_tensor=True)
        hits = st.util.semantic_search(
            model.encode_query(queries, convert_to_tensor=True), texts, top_k=2
        )
        pairs = st.util.paraphrase_mining(model, corpus)
        groups = st.util.community_detection(texts, min_community_size=2, threshold=0.7)
        bits = model.encode(corpus, precision="ubinary")
        places = [[hit["corpus_id"] for hit in each] for each in hits]
        found.append((places, [pair[1:] for pair in pairs[:3]], groups, bits))
    assert found[0][:3] == found[1][:3]
    assert np.unpackbits(found[0][3] ^ found[1][3]).mean() < 0.03
    assert models[0].get_embedding_dimension() == models[1].get_embedding_dimension()
