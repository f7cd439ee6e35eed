"""The server's answers, each compared with what the library gives."""

from __future__ import annotations

import asyncio
import base64
import functools
import html
import json
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ibert_tvm import Encoder
from ibert_tvm.common.errors import UsageError
from ibert_tvm.model.model_info import PostProcessing
from ibert_tvm.model.scores import normalized
from tests.encoder.small_encoders import tiny
from tests.encoder.test_encode import texts_of
from tests.extras import needs
from tests.processes import PATIENCE
from tests.snapshots import Messages

PACKAGES = ("fastapi", "uvicorn", "prometheus_client", "orjson", "httpx")
_JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Encoder]:
    for package in PACKAGES:
        needs(package)
    folder = tmp_path_factory.mktemp("serve")
    return {
        kind: Encoder(tiny(kind, **info).build(folder / f"{kind}.so"))
        for kind, info in {
            "embedding": {"prompts": {"query": "small "}},
            "score": {},
            "classes": {},
        }.items()
    }


Run = Callable[[Callable[[Any], Awaitable[None]]], None]
Served = Callable[..., Run]
Encoders = dict[str, Encoder]


def _applications(encoders: Encoders) -> Iterator[Served]:
    import httpx

    from ibert_tvm.serve.application import create_application
    from ibert_tvm.serve.limits import Limits

    services = []

    def make(key: str | None = None, names: tuple[str, ...] = (), **limits: Any) -> Run:
        chosen = {name: encoders[name] for name in names or encoders}
        application = create_application(chosen, Limits(**limits), key)
        services.append(application.state.service)

        def run(use: Callable[[Any], Awaitable[None]]) -> None:
            async def connected() -> None:
                transport = httpx.ASGITransport(application, raise_app_exceptions=False)
                async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                    await use(client)

            asyncio.run(connected())

        return run

    yield make
    for service in services:
        service.close()


@pytest.fixture
def served(encoders: Encoders) -> Iterator[Served]:
    """Run a coroutine with a client of an application that has some limits."""
    yield from _applications(encoders)


@pytest.fixture(scope="module")
def served_by_one(encoders: Encoders) -> Iterator[Served]:
    """The same, by one application for all that ask for equal limits."""
    for make in _applications(encoders):
        yield functools.cache(make)


def vectors_of(answer: Any) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    rows = [item["embedding"] for item in answer.json()["data"]]
    assert [item["index"] for item in answer.json()["data"]] == list(range(len(rows)))
    return np.array(rows, dtype=np.float32)


def test_embeddings_are_the_librarys(served: Served, encoders: Encoders) -> None:
    texts = texts_of(20, 12)
    expected = encoders["embedding"].encode(texts)

    async def use(client: Any) -> None:
        answer = await client.post("/v1/embeddings", json={"input": texts, "model": "embedding"})
        np.testing.assert_array_equal(vectors_of(answer), expected)
        document = answer.json()
        tokens = int(encoders["embedding"].tokenizer.encode(texts, 16, allow_empty=True)
                     .attention_mask.sum())  # fmt: skip
        assert document["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
        assert (document["object"], document["model"]) == ("list", "embedding")
        one = await client.post("/v1/embeddings", json={"input": texts[3]})
        np.testing.assert_array_equal(vectors_of(one), expected[3:4])
        request = {"input": texts, "encoding_format": "base64", "dimensions": 3, "user": "me"}
        coded = (await client.post("/v1/embeddings", json=request)).json()["data"]
        rows = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in coded]
        np.testing.assert_array_equal(np.stack(rows), expected)
        request = {"input": texts, "prompt_name": "query"}
        prompted = await client.post("/v1/embeddings", json={**request, "truncate": True})
        np.testing.assert_array_equal(
            vectors_of(prompted), encoders["embedding"].encode(texts, prompt_name="query")
        )

    served()(use)


def test_token_ids_are_computed_as_they_are(served: Served, encoders: Encoders) -> None:
    texts, encoder = texts_of(5, 12), encoders["embedding"]
    batch = encoder.tokenizer.encode(texts, 16, allow_empty=True)
    ids = [
        row[mask == 1].tolist()
        for row, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    ]

    async def use(client: Any) -> None:
        answer = await client.post("/v1/embeddings", json={"input": ids})
        np.testing.assert_array_equal(vectors_of(answer), encoder.encode(texts))
        assert answer.json()["usage"]["total_tokens"] == sum(map(len, ids))
        assert answer.headers["x-model-digest"] == encoder.library.metadata.digest
        one = await client.post("/v1/embeddings", json={"input": ids[3]})
        np.testing.assert_array_equal(vectors_of(one), encoder.encode(texts[3:4]))

    served()(use)


def test_every_answer_says_what_library_it_is_of(served: Served, encoders: Encoders) -> None:
    from ibert_tvm.serve.application import create_application

    ranked = {"query": "big", "documents": ["small"]}
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "/v1/embeddings": ("embedding", {"input": ["big"]}),
        "/classify": ("classes", {"inputs": ["big"]}),
        **{path: ("score", ranked) for path in ("/rerank", "/v1/rerank", "/v2/rerank")},
    }
    digests = {name: encoder.library.metadata.digest for name, encoder in encoders.items()}
    assert len({*digests.values()}) == len(digests)

    async def use(client: Any) -> None:
        for path, (name, body) in asked.items():
            answer = await client.post(path, json={**body, "model": name})
            assert answer.headers["x-model-digest"] == digests[name]
            assert answer.json()["system_fingerprint"] == digests[name]
        listed = (await client.get("/v1/models")).json()["data"]
        assert {item["id"]: item["digest"] for item in listed} == digests

    served()(use)
    application = create_application(
        {"classes": encoders["classes"]}, None, "key", load=encoders.get
    )
    application.state.service.close()
    paths = set(application.openapi()["paths"])
    assert paths - {*asked} == {"/health", "/metrics", "/reload", "/v1/models"}


_GARBAGE = {
    "ones": b"1," * 500_000 + b"1",
    "texts": b'"a",' * 250_000 + b"1",
    "lists": b"[1]," * 250_000 + b"[]",
    "empty": b"{}," * 340_000 + b"{}",
    "deep": b"[" * 500_000 + b"]" * 500_000,
    "nulls": b"null," * 200_000 + b"null",
    "number": b"1" * 1_000_000,
}


@pytest.mark.parametrize("kind", _GARBAGE)
@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/embeddings", "input"), ("/rerank", "documents"), ("/classify", "inputs")],
)
def test_a_large_body_is_refused_at_once(
    served_by_one: Served, path: str, field: str, kind: str
) -> None:
    content = b'{"query": "a", "%s": [%s]}' % (field.encode(), _GARBAGE[kind])

    async def use(client: Any) -> None:
        started = time.process_time()
        answer = await client.post(path, content=content, headers=_JSON)
        assert answer.status_code == 400 and len(answer.content) < 1000
        assert ("those in texts included" in answer.text) == (kind != "number")
        assert time.process_time() - started < 2  # 4 to 20 if every element is an error

    served_by_one()(use)


def test_rerank_and_classify_are_the_librarys(served: Served, encoders: Encoders) -> None:
    documents = ["big", "hello world", "small small", "hello", "big"]

    async def use(client: Any) -> None:
        request = {"query": "small world", "documents": documents}
        expected = encoders["score"].rerank("small world", documents)
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            answer = (await client.post(path, json=request)).json()
            assert [r["index"] for r in answer["results"]] == [r["corpus_id"] for r in expected]
            for result, own in zip(answer["results"], expected, strict=True):
                assert result["relevance_score"] == own["score"]
        raw = (await client.post("/rerank", json={**request, "function": "none"})).json()
        assert [r["relevance_score"] for r in raw["results"]] == [
            r["score"] for r in encoders["score"].rerank("small world", documents, function="none")
        ]
        request |= {"documents": [{"text": d} for d in documents], "top_n": 2}
        best = (await client.post("/rerank", json={**request, "return_documents": True})).json()
        assert [r["document"]["text"] for r in best["results"]] == [
            documents[r["corpus_id"]] for r in expected[:2]
        ]
        inputs: list[Any] = ["big", ["hello", "small"]]
        answer = await client.post("/classify", json={"inputs": inputs, "model": "classes"})
        expected = encoders["classes"].classify(["big", ("hello", "small")], top_k=None)
        assert answer.json()["results"] == expected
        chosen = {"inputs": inputs, "model": "classes", "function": "sigmoid", "threshold": 0.5}
        answer = await client.post("/classify", json=chosen)
        assert answer.json()["results"] == encoders["classes"].classify(
            ["big", ("hello", "small")], top_k=None, function="sigmoid", threshold=0.5
        )

    served()(use)


def test_a_wrong_method_and_a_wrong_type_are_refused_as_documented(served: Served) -> None:
    async def use(client: Any) -> None:
        answer = await client.get("/rerank")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        answer = await client.post("/v1/embeddings", json={"input": "big", "truncate": 0})
        assert answer.status_code == 400
        paths = (await client.get("/openapi.json")).json()["paths"]
        documented = paths["/v1/embeddings"]["post"]["responses"]
        assert set(documented) == {str(s) for s in (200, 400, 401, 404, 408, 413, 429, 500, 503)}

    served()(use)


def test_answers_follow_the_sources_settings(
    served: Served, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = encoders["embedding"].encode(["big"])
    stated = {
        "embedding": {"dimensions": 2},
        "score": {"pairs": "relu"},
        "classes": {"classes": "none"},
    }
    for name, record in stated.items():
        monkeypatch.setattr(encoders[name], "post_processing", PostProcessing(**record))

    async def use(client: Any) -> None:
        answer = await client.post("/v1/embeddings", json={"input": "big", "dimensions": 2})
        np.testing.assert_array_equal(vectors_of(answer), plain[:, :2])
        request = {"query": "small", "documents": ["big", "hello"]}
        answer = await client.post("/rerank", json=request)
        assert [r["relevance_score"] for r in answer.json()["results"]] == [
            r["score"] for r in encoders["score"].rerank(**request, function="relu")
        ]
        answer = await client.post("/classify", json={"inputs": ["big"], "model": "classes"})
        assert answer.json()["results"] == encoders["classes"].classify(["big"], None, 1, "none")

    served()(use)


def test_many_requests_share_batches_and_nobody_gets_anothers_answer(
    served: Served, encoders: Encoders
) -> None:
    texts = [texts_of(count, 12)[: count % 5 + 1] for count in range(1, 41)]

    async def use(client: Any) -> None:
        answers = await asyncio.gather(
            *(client.post("/v1/embeddings", json={"input": some}) for some in texts)
        )
        for answer, some in zip(answers, texts, strict=True):
            np.testing.assert_array_equal(vectors_of(answer), encoders["embedding"].encode(some))
        lines = (await client.get("/metrics")).text.splitlines()
        counts = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        assert float(counts['ibert_texts_total{model="embedding"}']) == sum(map(len, texts))
        assert float(counts['ibert_batch_texts_count{model="embedding"}']) < len(texts)
        answered = 'ibert_requests_total{path="/v1/embeddings",status="200"}'
        assert float(counts[answered]) == len(texts)

    served(batch_tokens=64)(use)


class Held:
    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()

    async def computing(self) -> None:
        """Wait until a batch has come to the model."""
        assert await asyncio.to_thread(self.entered.wait, PATIENCE)


@pytest.fixture
def held(encoders: Encoders, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """The embedding model computes nothing until it may go on."""
    library, held = encoders["embedding"].library, Held()
    run = library.run_tokens

    def wait(*arguments: Any) -> Any:
        held.entered.set()
        held.go_on.wait()
        return run(*arguments)

    monkeypatch.setattr(library, "run_tokens", wait)
    yield held
    held.go_on.set()


def test_a_flood_is_turned_away_and_the_rest_is_answered(
    served: Served, encoders: Encoders, held: Held
) -> None:
    async def use(client: Any) -> None:
        def ask() -> asyncio.Task[Any]:
            return asyncio.create_task(client.post("/v1/embeddings", json={"input": "big world"}))

        computed = ask()
        await held.computing()
        waiting = {ask() for _ in range(60)}
        for _ in range(48):  # 12 with 4 tokens each wait
            done, waiting = await asyncio.wait(
                waiting, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED
            )
            assert {task.result().status_code for task in done} == {429}
            assert all(task.result().headers["retry-after"] == "1" for task in done)
            if len(waiting) == 12:
                break
        held.go_on.set()
        for task in (computed, *waiting):
            np.testing.assert_array_equal(
                vectors_of(await task), [encoders["embedding"].encode("big world")]
            )
        again = await client.post("/v1/embeddings", json={"input": "big world"})
        assert again.status_code == 200

    served(queue_tokens=50, batch_tokens=4, requests=100)(use)


def test_requests_at_a_time_are_limited_but_not_the_question_for_health(
    served: Served, held: Held
) -> None:
    async def use(client: Any) -> None:
        first = [
            asyncio.create_task(client.post("/v1/embeddings", json={"input": "big"}))
            for _ in range(2)
        ]
        await held.computing()
        refused = await client.post("/v1/embeddings", json={"input": "big"})
        assert refused.status_code == 429
        assert refused.json()["error"] == {
            "message": "too many requests at a time; try again later",
            "type": "rate_limit_error",
            "param": None,
            "code": 429,
        }
        assert (await client.get("/health")).json()["status"] == "ok"
        held.go_on.set()
        assert [(await task).status_code for task in first] == [200, 200]

    served(requests=2)(use)


def test_a_request_that_takes_too_long_is_given_up_and_not_computed(
    served: Served, encoders: Encoders, held: Held
) -> None:
    async def use(client: Any) -> None:
        answers = await asyncio.gather(
            *(client.post("/v1/embeddings", json={"input": "big"}) for _ in range(5))
        )
        assert [answer.status_code for answer in answers] == [503] * 5
        assert "the request was not answered in time" in answers[0].json()["error"]["message"]
        held.go_on.set()
        asked = 1
        while (await client.post("/v1/embeddings", json={"input": "big"})).status_code != 200:
            asked += 1  # on a machine that needs longer for one
        lines = (await client.get("/metrics")).text.splitlines()
        (computed,) = [line for line in lines if line.startswith("ibert_texts_total")]
        # What was being computed when it was given up, and the last one.
        assert float(computed.split()[1]) <= 1 + asked

    served(names=("embedding",), timeout_seconds=1.0, batch_tokens=1)(use)


@pytest.mark.parametrize(
    ("path", "request_", "status", "message"),
    [
        ("/v1/embeddings", {"input": "a", "model": "x"}, 404, "there is no model 'x'"),
        ("/v1/embeddings", {"input": "a", "model": "score"}, 400, "score cannot encode"),
        ("/v1/embeddings", {"input": []}, 400, "at least 1 of these"),
        ("/v1/embeddings", {"input": ["a", [1]]}, 400, "element 1 is not a text"),
        ("/v1/embeddings", {"input": [[1], "a"]}, 400, "element 1 is not a list of token ids"),
        ("/v1/embeddings", {"input": [1, "a"]}, 400, "element 0 is not a list of token ids"),
        ("/v1/embeddings", {"input": [[1], []]}, 400, "element 1 is not a list of token ids"),
        ("/v1/embeddings", {"input": [[True]]}, 400, "element 0 is not a list of token ids"),
        ("/v1/embeddings", {"input": {"a": 1}}, 400, "at least 1 of these"),
        (
            "/v1/embeddings",
            {"input": [[2, 3], [2, 8, 3]]},
            400,
            "text 1 has a token that the model does",
        ),
        ("/v1/embeddings", {"input": [2, -1]}, 400, "its id 1 is -1"),
        ("/v1/embeddings", {"input": [[2, 3], [1] * 17]}, 400, "text 1 is too long"),
        ("/v1/embeddings", {"input": [[1]] * 9}, 400, "the request has 9 texts"),
        ("/v1/embeddings", {"input": [1], "prompt_name": "query"}, 400, "ids have no prompt"),
        ("/v1/embeddings", {"input": [[2, 4, 3], [4, 5]]}, 400, "check_embedding_ctx_length=False"),
        ("/v1/embeddings", {"input": [2, 4]}, 400, "begin with [2] and end with [3]"),
        ("/v1/embeddings", {"input": "a", "dimensions": 4}, 400, "dimensions is 4"),
        ("/v1/embeddings", {"input": "a", "prompt_name": "x"}, 400, "has no prompt 'x'"),
        ("/v1/embeddings", {"input": "big " * 99}, 400, "text 0 is too long"),
        ("/v1/embeddings", {"input": ["a"] * 9}, 400, "the request has 9 texts"),
        ("/v1/embeddings", {"input": ["big " * 12] * 8}, 400, "the request is too large"),
        ("/classify", {"inputs": "a"}, 400, "the request names no model"),
        ("/classify", {"inputs": [["a"]], "model": "classes"}, 400, "element 0 is not a text or a"),
        ("/rerank", {"query": "a", "documents": [], "model": "score"}, 400, "at least 1 of these"),
        ("/rerank", {"query": "a", "documents": [{}], "model": "score"}, 400, "element 0 is not"),
        ("/classify", {"inputs": "a", "model": "classes", "function": "exec"}, 400, "tanh"),
        ("/classify", {"inputs": "a", "model": "classes", "threshold": True}, 400, "states none"),
        ("/elsewhere", {}, 404, "Not Found"),
    ],
)
def test_what_cannot_be_answered(
    served_by_one: Served, path: str, request_: Any, status: int, message: str
) -> None:
    async def use(client: Any) -> None:
        answer = await client.post(path, json=request_)
        assert answer.status_code == status
        assert message in answer.json()["error"]["message"]

    served_by_one(texts=8, queue_tokens=64)(use)


def test_half_a_surrogate_pair_is_the_fault_of_the_request(served: Served) -> None:
    async def use(client: Any) -> None:
        content = b'{"input": ["fine", "Hello \\ud83d"]}'
        answer = await client.post("/v1/embeddings", content=content, headers=_JSON)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("text 1 is no Unicode text")

    served()(use)


def test_what_is_no_document_or_too_large(served: Served) -> None:
    async def stream() -> Any:
        for _ in range(40):
            yield b"a" * 64

    async def use(client: Any) -> None:
        answer = await client.post("/v1/embeddings", content=b"{")
        assert answer.status_code == 400
        large = json.dumps({"input": "a" * 2000}).encode()
        for content in (large, stream()):  # with its length, and without
            answer = await client.post("/v1/embeddings", content=content)
            assert answer.status_code == 413
            assert answer.json()["error"]["message"] == "a request has at most 1000 bytes"

    served(body_bytes=1000)(use)


def test_a_key_is_asked_for(served: Served) -> None:
    async def use(client: Any) -> None:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            answer = await client.post("/v1/embeddings", json={"input": "a"}, headers=headers)
            assert answer.status_code == 401
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/health")).status_code == 200
        right = {"authorization": "Bearer secret"}
        answer = await client.post("/v1/embeddings", json={"input": "a"}, headers=right)
        assert answer.status_code == 200
        assert 'status="401"} 4.0' in (await client.get("/metrics", headers=right)).text

    served(key="secret")(use)


def test_a_defect_is_answered_and_told_to_nobody(
    served: Served, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(client: Any) -> None:
        with monkeypatch.context() as patch:
            broken = {"run_tokens": lambda *_: 1 / 0}
            for name, value in broken.items():
                patch.setattr(encoders["embedding"].library, name, value)
            answer = await client.post("/v1/embeddings", json={"input": "a"})
            assert answer.status_code == 500 and "ZeroDivision" not in answer.text
        answer = await client.post("/v1/embeddings", json={"input": "a"})
        assert answer.status_code == 200

    served()(use)


def test_models_are_listed(served: Served) -> None:
    async def use(client: Any) -> None:
        listed = (await client.get("/v1/models")).json()["data"]
        assert [(m["id"], m["methods"]) for m in listed] == [
            ("embedding", ["encode"]),
            ("score", ["rerank", "classify"]),
            ("classes", ["classify"]),
        ]

    served()(use)


def test_dimensions_cut_vectors_to_unit_length(served: Served, encoders: Encoders) -> None:
    texts = texts_of(5, 12)
    first = encoders["embedding"].encode(texts)[:, :2]

    async def use(client: Any) -> None:
        answer = await client.post("/v1/embeddings", json={"input": texts, "dimensions": 2})
        expected = first / np.maximum(np.linalg.norm(first, axis=1, keepdims=True), 1e-12)
        np.testing.assert_allclose(vectors_of(answer), expected, rtol=1e-6)

    served()(use)


_RECORDED = json.loads(Path(__file__).with_name("clients.json").read_text(encoding="utf-8"))
"""What clients sent, byte for byte, with the key ``secret``: their versions and calls."""


@pytest.mark.parametrize(
    "sent", _RECORDED, ids=[f"{sent['client']}, {sent['call']}" for sent in _RECORDED]
)
def test_what_clients_send_is_answered(
    served_by_one: Served, encoders: Encoders, sent: dict[str, Any]
) -> None:
    asked = json.loads(sent["body"])

    def embeddings(document: dict[str, Any]) -> None:
        texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        expected = encoders["embedding"].encode(texts, truncate_dim=asked.get("dimensions"))
        if "dimensions" in asked:
            expected = normalized(expected)
        found = [item["embedding"] for item in document["data"]]
        if asked["encoding_format"] == "base64":
            found = [np.frombuffer(base64.b64decode(each), "<f4") for each in found]
        np.testing.assert_array_equal(np.array(found, np.float32), expected)
        assert set(document) >= {"object", "model", "usage"}
        assert set(document["usage"]) == {"prompt_tokens", "total_tokens"}

    def rerank(document: dict[str, Any]) -> None:
        documents = [d["text"] if isinstance(d, dict) else d for d in asked["documents"]]
        ranked = encoders["score"].rerank(asked["query"], documents)[: asked.get("top_n")]
        expected = [{"index": r["corpus_id"], "relevance_score": r["score"]} for r in ranked]
        if asked.get("return_documents"):
            expected = [{**e, "document": {"text": documents[e["index"]]}} for e in expected]
        assert document["results"] == expected
        assert document["id"] and document["meta"]

    async def use(client: Any) -> None:
        answer = await client.request(
            sent["method"], sent["path"], content=sent["body"], headers=sent["headers"]
        )
        if "ids of tiktoken" in sent["call"]:
            assert answer.status_code == 400
            assert "check_embedding_ctx_length=False" in answer.json()["error"]["message"]
        else:
            assert answer.status_code == 200, answer.text
            check = rerank if sent["path"].endswith("rerank") else embeddings
            check(answer.json())

    served_by_one(key="secret")(use)


@pytest.mark.parametrize("stated", [None, "text/plain; charset=utf-8"])
def test_a_body_that_is_not_said_to_be_json(
    served: Served, messages: Messages, stated: str | None
) -> None:
    async def use(client: Any) -> None:
        headers = {} if stated is None else {"content-type": stated}
        content = b'{"input": "big"}'
        answer = await client.post("/v1/embeddings", content=content, headers=headers)
        assert answer.status_code == 400
        messages.check(answer.json()["error"]["message"])

    served()(use)


def test_the_page_of_documents_needs_neither_key_nor_network(served: Served) -> None:
    async def use(client: Any) -> None:
        page = (await client.get("/docs")).text
        assert re.findall(r"(?:src|href|action)=|url\(|@import|https?://", page) == []
        assert "connect-src 'self'" in page and "embedding.so" not in page
        assert (await client.get("/openapi.json")).status_code == 401
        keyed = {"authorization": "Bearer secret"}
        described = (await client.get("/openapi.json", headers=keyed)).json()
        assert set(re.findall(r'data-path="([^"]*)"', page)) == set(described["paths"])
        for path, body in re.findall(
            r'data-path="([^"]*)">\s*<label>Body<textarea[^>]*>(.*?)<', page
        ):
            name = {"/v1/embeddings": "embedding", "/classify": "classes"}.get(path, "score")
            example = {**json.loads(html.unescape(body)), "model": name}
            example.pop("top_k", None)
            answer = await client.post(path, json=example, headers=keyed)
            assert answer.status_code == 200, (path, answer.text)

    served(key="secret")(use)


@pytest.mark.slow
def test_a_model_that_gives_nothing_of_texts_is_refused(messages: Messages, tmp_path: Path) -> None:
    needs("fastapi")
    from ibert_tvm.serve.application import create_application

    model = tiny("tokens")
    outputs = [{**output, "kind": "token_logits"} for output in model.metadata["outputs"]]
    model.metadata_changes["outputs"] = outputs
    path = model.build(tmp_path / "tokens.so")
    with messages.raises(UsageError):
        create_application({"tokens": Encoder(path)})
