"""`Encoder` and `ibert serve` with a GPU: the vectors of a processor, and nothing for padding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ibert_tvm import Encoder
from ibert_tvm.compiler import compile as compile_model
from tests.arm.tools import needs
from tests.cuda.stand_in_gpu import Gpu, environment, images_for_stand_in, load
from tests.encoder.small_encoders import bert
from tests.encoder.test_encode import texts_of
from tests.extras import needs as needs_package
from tests.serve.test_application import PACKAGES
from tests.serve.test_process import HEADERS, serving, vectors_of, workers_of

BATCH = 8
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """What a processor makes of texts."""
    path = tmp_path_factory.mktemp("processor") / "bert.so"
    return Encoder(compile_model(bert(), "x86-64", [(1, 16)]).export(path))


@pytest.fixture(params=["tvm", "none"])
def library(
    request: pytest.FixtureRequest, device: object, gpu_target: str, tmp_path: Path
) -> Path:
    """The same model for the stand-in, or for a GPU; by TVM's runtime, and by the driver alone."""
    needs("g++")
    if device is None:
        load().become(75)
    with images_for_stand_in():
        shapes = [(1, 16), (BATCH, 16)]
        return compile_model(bert(), gpu_target, shapes, runtime=request.param).export(
            tmp_path / "tiny.so"
        )


def test_an_encoder_gives_the_vectors_of_a_processor(vectors: Encoder, library: Path) -> None:
    encoder, gpu = Encoder(library, device="cuda"), load()
    assert encoder.device == "cuda:0"
    texts = texts_of(2 * BATCH)
    np.testing.assert_array_equal(encoder.encode(texts), vectors.encode(texts))
    # Whatever the lengths, a batch is one launch: short texts are not kept apart from long ones.
    for count in (1, BATCH):
        before = _launches(gpu)
        np.testing.assert_array_equal(
            encoder.encode(texts[:count], batch_size=BATCH), vectors.encode(texts[:count])
        )
        assert _launches(gpu) == before + 1
    # Of short texts it is smaller.
    blocks = []
    for text in ("big", " ".join(["hello"] * 14)):
        before = gpu.calls("block")
        encoder.encode([text] * BATCH, batch_size=BATCH)
        blocks.append(gpu.calls("block") - before)
    assert blocks[0] < blocks[1]


def _launches(gpu: Gpu) -> int:
    return gpu.calls("cudaGraphLaunch") + gpu.calls("cuGraphLaunch")


def test_a_server_gives_the_vectors_of_a_processor(
    device: object, vectors: Encoder, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in PACKAGES:
        needs_package(package)
    import httpx

    if device is None:
        for name, value in environment(capability=75).items():
            monkeypatch.setenv(name, value)
    with (
        serving(library, "--device", "cuda") as (process, address),
        httpx.Client(headers=HEADERS, timeout=120) as client,
    ):
        assert len(workers_of(process)) == 1
        for texts in (texts_of(count, 12) for count in (1, 3, 20)):
            expected = vectors.encode(texts)
            np.testing.assert_array_equal(vectors_of(client, address, texts), expected)
