"""Every tested architecture with every head that transformers has for it, against torch."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from ibert_tvm.frontend import CanonicalModel, load
from ibert_tvm.relay_passes.canonical import check_canonical
from ibert_tvm.relay_passes.dialect.calls import record_of
from tests.examples import examples
from tests.frontend.architectures import CONFIGS, USABLE_LENGTH, make
from tests.frontend.imports import calls_of, op_of, run, verified

HEADS = [
    "none",
    "sentence_embedding",
    "sequence_classification",
    "token_classification",
    "question_answering",
]
# The three copies of RoBERTa differ from it by name only: one head each.
COPIES = ("xlm-roberta", "camembert")
CASES = [(a, h) for a in CONFIGS for h in HEADS if a not in COPIES or h == HEADS[2]]
CASES += [("bert", "pooled"), ("roberta", "pooled")]
# Every head once, every architecture that is not a copy once.
DEFAULT = [
    ("bert", "none"),
    ("roberta", "pooled"),
    ("distilbert", "token_classification"),
    ("electra", "sentence_embedding"),
]
SHAPES = {
    "none": (3, 11, 32),
    "pooled": (3, 32),
    "sentence_embedding": (3, 32),
    "sequence_classification": (3, 3),
    "token_classification": (3, 11, 3),
    "question_answering": (3, 11, 2),
}


@functools.cache
def made_and_loaded(architecture: str, head: str) -> tuple[Any, CanonicalModel]:
    """A model in training mode, and what is imported of it, once for all tests."""
    layers = 2 if head == "none" else 1  # tracing is what takes the time here
    model = make(architecture, head, num_hidden_layers=layers)
    model.train()
    return model, load(model, head=head, verify=False)


def padded_batch(model, length: int = 11) -> dict[str, np.ndarray]:
    """Three rows: full, half, one token."""
    random = np.random.default_rng(7)
    mask = np.ones((3, length), np.int64)
    mask[1, length // 2 :] = 0
    mask[2, 1:] = 0
    ids = random.integers(5, model.config.vocab_size, mask.shape)
    batch = {
        "input_ids": np.where(mask != 0, ids, model.config.pad_token_id or 0),
        "attention_mask": mask,
    }
    if getattr(model.config, "type_vocab_size", 0) > 1:
        batch["token_type_ids"] = random.integers(0, 2, mask.shape)
    return batch


def torch_output(model, head: str, batch: dict[str, np.ndarray]) -> np.ndarray:
    """What transformers itself computes, through its public outputs."""
    model.eval()
    with torch.no_grad():
        output = model(**{name: torch.from_numpy(array) for name, array in batch.items()})
    if head == "none":
        return output.last_hidden_state.numpy()
    if head == "pooled":
        return output.pooler_output.numpy()
    if head == "question_answering":
        return np.stack([output.start_logits.numpy(), output.end_logits.numpy()], axis=-1)
    if head == "sentence_embedding":
        hidden, mask = output.last_hidden_state.numpy(), batch["attention_mask"][:, :, None]
        return (hidden * mask).sum(1) / mask.sum(1)
    return output.logits.numpy()


@pytest.mark.slow_cases(6)
@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("architecture", "head"), examples(CASES, *DEFAULT, unpack=True), ids=lambda part: part
)
def test_architecture_and_head(architecture, head):
    model, loaded = made_and_loaded(architecture, head)
    assert model.training
    untouched = make(architecture, head, num_hidden_layers=1)
    assert model.config._attn_implementation == untouched.config._attn_implementation
    check_canonical(loaded.module)
    batch = padded_batch(model)
    assert tuple(batch) == loaded.info.inputs
    output = run(loaded, batch)
    assert output.shape == SHAPES[head]
    np.testing.assert_allclose(output, torch_output(model, head, batch), atol=1e-4)

    info = loaded.info
    layers = 2 if head == "none" else 1
    assert (info.architecture, info.head, info.num_layers) == (architecture, head, layers)
    assert (info.hidden_size, info.vocab_size) == (32, 61)
    assert info.max_sequence_length == USABLE_LENGTH.get(architecture, 40)
    assert info.type_vocab_size == (2 if "token_type_ids" in batch else 0)
    assert info.pad_token_id == (model.config.pad_token_id or 0)
    labels = {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
    assert info.id2label == (labels if head.endswith("_classification") else {})
    assert [o.value for o in info.outputs] == [names_of(loaded)[-1]]


def names_of(loaded: CanonicalModel) -> list[str]:
    return [str(call.attrs["name"]) for call in calls_of(loaded)]


@pytest.mark.slow
def test_names_are_the_source_s_module_paths():
    model, loaded = made_and_loaded("bert", "question_answering")
    names = names_of(loaded)
    layer = "bert.encoder.layer.0."
    assert [name for name in names if name.startswith(layer)] == [
        f"{layer}attention.self.query",
        f"{layer}attention.self.key",
        f"{layer}attention.self.value",
        f"{layer}attention.self",
        f"{layer}attention.output.dense",
        f"{layer}attention.output.dense.add",
        f"{layer}attention.output.LayerNorm",
        f"{layer}intermediate.dense",
        f"{layer}intermediate.dense.gelu",
        f"{layer}output.dense",
        f"{layer}output.dense.add",
        f"{layer}output.LayerNorm",
    ]
    state = model.state_dict()
    assert set(loaded.parameters) <= set(state)
    for name, array in loaded.parameters.items():
        np.testing.assert_array_equal(array, state[name].numpy())


@pytest.mark.slow
def test_electra_projects_its_embeddings():
    names = names_of(made_and_loaded("electra", "sentence_embedding")[1])
    assert names.index("embeddings_project") == names.index("embeddings.LayerNorm") + 1


@pytest.mark.slow
def test_roberta_s_only_token_type_is_folded():
    model, loaded = made_and_loaded("roberta", "pooled")
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    assert "embeddings.token_type_embeddings.weight" not in loaded.parameters
    np.testing.assert_array_equal(
        loaded.parameters["embeddings.word_embeddings.weight"],
        state["embeddings.word_embeddings.weight"]
        + state["embeddings.token_type_embeddings.weight"][0],
    )
    assert len(loaded.report.foldings) == 2


ACTIVATIONS = {
    "gelu": ("gelu", {"form": "erf"}),
    "gelu_python": ("gelu", {"form": "erf"}),
    "gelu_new": ("gelu", {"form": "tanh"}),
    "gelu_fast": ("gelu", {"form": "tanh"}),
    "gelu_pytorch_tanh": ("gelu", {"form": "tanh"}),
    "relu": ("relu", {}),
    "silu": ("silu", {"beta": 1.0}),
    "swish": ("silu", {"beta": 1.0}),
    "quick_gelu": ("silu", {"beta": 1.702}),
    "sigmoid": ("sigmoid", {}),
}


class Activated(nn.Module):
    """Every activation behind a linear layer of its own, as in a feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in ACTIVATIONS])
        self.activations = nn.ModuleList([ACT2FN[name] for name in ACTIVATIONS])

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids)
        for layer, activation in zip(self.layers, self.activations, strict=True):
            x = activation(layer(x))
        return x


@pytest.mark.slow
def test_activations_by_their_transformers_names():
    loaded = load(Activated(), inputs=("input_ids",), verify=False)
    found = [
        (op_of(call), {k: v for k, v in record_of(call).to_dict().items() if k != "name"})
        for call in calls_of(loaded)
        if op_of(call) not in ("embedding", "linear")
    ]
    assert found == list(ACTIVATIONS.values())


@pytest.mark.slow
def test_the_same_model_at_every_length():
    """One symbolic module: each length, and padding up to it, gives the same first row."""
    model, loaded = made_and_loaded("distilbert", "token_classification")
    row = padded_batch(model, 40)["input_ids"][:1]
    reference = None
    for length in (5, 17, 40):
        mask = np.zeros((2, length), np.int64)
        mask[0, :5] = 1
        mask[1] = 1
        ids = np.concatenate([row[:, :length]] * 2)
        output = run(loaded, {"input_ids": ids, "attention_mask": mask})[0, :5]
        if reference is None:
            reference = output.copy()
        np.testing.assert_allclose(output, reference, atol=1e-5)


@pytest.mark.slow
def test_verification_compares_two_shapes_with_the_source():
    verified(make("bert", num_hidden_layers=1))


def test_verification_catches_a_wrong_import(monkeypatch):
    from ibert_tvm.frontend import UnsupportedModelError, torch_import

    real = torch_import.canonicalise

    def tampered(*args, **kwargs):
        result = real(*args, **kwargs)
        result.parameters["encoder.layer.0.output.dense.bias"] = (
            result.parameters["encoder.layer.0.output.dense.bias"] * 1.5
        )
        return result

    monkeypatch.setattr(torch_import, "canonicalise", tampered)
    with pytest.raises(UnsupportedModelError) as error:
        load(make("bert", num_hidden_layers=1))
    assert str(error.value).startswith(
        "the imported model differs from its source\n"
        "  where: output 0, batch of shape (3, 21)\n"
        "  why: largest difference "
    )
