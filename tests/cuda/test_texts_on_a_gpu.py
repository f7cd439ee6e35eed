"""`Encoder` and `ibert serve` with a GPU: the vectors of a processor, and no call for padding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ibert_tvm import Encoder
from ibert_tvm.compiler import compile as compile_model
from tests.arm.tools import needs
from tests.cuda.stand_in_gpu import environment, images_for_stand_in, load
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


@pytest.fixture
def library(device: object, gpu_target: str, tmp_path: Path) -> Path:
    """The same model for the stand-in, or for a GPU."""
    needs("g++")
    if device is None:
        load().become(75)
    with images_for_stand_in():
        return compile_model(bert(), gpu_target, [(1, 16), (BATCH, 16)]).export(
            tmp_path / "tiny.so"
        )


def test_an_encoder_gives_the_vectors_of_a_processor(vectors: Encoder, library: Path) -> None:
    encoder, gpu = Encoder(library, device="cuda"), load()
    assert encoder.device == "cuda:0"
    texts = texts_of(2 * BATCH)
    np.testing.assert_array_equal(encoder.encode(texts), vectors.encode(texts))
    # Whatever the lengths, a batch is one launch: short texts are not kept apart from long ones.
    for count in (1, BATCH):
        before = gpu.calls("cudaGraphLaunch")
        np.testing.assert_array_equal(
            encoder.encode(texts[:count], batch_size=BATCH), vectors.encode(texts[:count])
        )
        assert gpu.calls("cudaGraphLaunch") == before + 1


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
