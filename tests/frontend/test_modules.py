"""Torch modules in memory: transformers models by their class, and modules of any kind."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from ibert_tvm.frontend import ModelSourceError, UnsupportedModelError, load
from tests.examples import examples
from tests.frontend.architectures import make
from tests.frontend.gated_modules import gated
from tests.frontend.imports import calls_of, ops, run, verified
from tests.random_models import random_bert

VOCABULARY, WIDTH, HEADS = 37, 24, 3


class Block(nn.Module):
    """Words, positions, one attention of a subclass's making."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(50, WIDTH)
        self.register_buffer("ids", torch.arange(50)[None])
        self.norm = nn.LayerNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.5)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(self.ids[:, : ids.shape[1]])
        return self.dropout(self.norm(x))

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)

    def attend(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        context = self.attend(x, attention_mask).transpose(1, 2).reshape(x.shape)
        return x + self.dropout(self.out(context))


class Fused(Block):
    """Torch's scaled_dot_product_attention with a boolean mask."""

    def attend(self, x, mask):
        q, k, v = (self.heads(f(x)) for f in (self.query, self.key, self.value))
        keep = mask.bool()[:, None, None, :]
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)


class Additive(Block):
    """The old additive mask, and a division by sqrt(d)."""

    def attend(self, x, mask):
        q, k, v = (self.heads(f(x)) for f in (self.query, self.key, self.value))
        term = (1.0 - mask[:, None, None, :].float()) * -10000.0
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS) + term
        return self.dropout(scores.softmax(-1)) @ v


class Einsum(Block):
    """Contractions by einsum, masked_fill."""

    def attend(self, x, mask):
        q, k, v = (f(x).view(*x.shape[:2], HEADS, -1) for f in (self.query, self.key, self.value))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
        scores = scores.masked_fill(mask[:, None, None, :] == 0, float("-inf"))
        return torch.einsum("bhqk,bkhd->bhqd", scores.softmax(-1), v)


class Encoder(nn.Module):
    """Torch's own encoder layer: fused projection, mask with 1 for padding made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 40, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.layers(self.words(input_ids), src_key_padding_mask=attention_mask == 0)


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("kind", "layers", "longest"),
    examples(
        [(Fused, 1, 50), (Additive, 1, 50), (Einsum, 1, 50), (Encoder, 2, None)],
        (Additive, 1, 50),
        (Encoder, 2, None),
        unpack=True,
    ),
)
def test_modules_agree_with_torch(kind, layers, longest):
    torch.manual_seed(0)
    module = kind()
    loaded = verified(module)  # at two shapes, padded
    assert module.training
    info = loaded.info
    assert (info.architecture, info.head, info.num_layers) == (kind.__name__, "none", layers)
    assert (info.vocab_size, info.max_sequence_length) == (VOCABULARY, longest)
    assert info.inputs == ("input_ids", "attention_mask")
    assert [(o.name, o.kind) for o in info.outputs] == [("output", "hidden_state")]
    assert len(info.source_sha256) == 64


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("activation", "norms", "fused"),
    examples(
        [
            ("silu", "rms", False),
            ("gelu", "one plus", True),
            ("sigmoid", "torch", False),
            ("silu", "no bias", True),
        ],
        ("silu", "rms", False),
        ("gelu", "one plus", True),
        unpack=True,
    ),
)
def test_gated_layers_agree_with_torch(activation, norms, fused):
    kinds = ops(verified(gated(activation, norms, fused)))
    assert kinds.count("layer_norm" if norms == "no bias" else "rms_norm") == 3
    last = kinds.index("multiply")
    assert kinds[last - 3 : last + 2] == ["linear", activation, "linear", "multiply", "linear"]


class Words(nn.Module):
    """No attention, two outputs, an input of another name."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.a = nn.Linear(WIDTH, 7)
        self.b = nn.Linear(7, 2)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.a(self.table(tokens)))
        return x, self.b(x)[:, 0]


def test_several_outputs_and_inputs_by_name():
    loaded = load(Words(), inputs=("tokens",))
    assert loaded.info.inputs == ("input_ids",)
    assert [(o.name, o.value, o.kind) for o in loaded.info.outputs] == [
        ("output0", "a.relu", "hidden_state"),
        ("output1", "b.token0", "pooled"),
    ]


class Unmasked(Block):
    def attend(self, x, mask):
        q, k, v = (self.heads(f(x)) for f in (self.query, self.key, self.value))
        return functional.scaled_dot_product_attention(q, k, v)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        return x + self.out(self.attend(x, None).transpose(1, 2).reshape(x.shape))


def test_a_module_without_mask_gets_one_and_says_so():
    loaded = load(Unmasked(), inputs=("input_ids",))
    assert loaded.info.inputs == ("input_ids", "attention_mask")
    assert loaded.info.notes == (
        "the source has no attention_mask; the compiled model takes one and ignores padding",
    )


@pytest.mark.slow
def test_what_torch_compile_wraps_is_taken():
    loaded = load(torch.compile(Unmasked()), inputs=("input_ids",))
    assert loaded.info.inputs == ("input_ids", "attention_mask")


class Difference(Block):
    def attend(self, x, mask):
        return self.heads(self.query(x) - torch.sigmoid(self.key(x)))


class Branching(Block):
    def attend(self, x, mask):
        return self.heads(x) if mask.sum() > 3 else self.heads(self.out(x))


class Fourier(Block):
    def attend(self, x, mask):
        return self.heads(torch.fft.fft(self.value(x)).real)


class NeedsMore(torch.nn.Module):
    """A part of it fails on token tensors alone."""

    class Part(torch.nn.Module):
        def forward(self, x):
            raise ValueError("You have to specify boxes")

    def __init__(self):
        super().__init__()
        self.boxes = self.Part()

    def forward(self, input_ids, attention_mask):
        return self.boxes(input_ids)


REFUSED = {
    "no integer form": (Difference, None),
    "not imported": (Fourier, None),
    "a branch on data": (Branching, None),
    "other inputs": (NeedsMore, None),
    "double precision": (lambda: Additive().double(), None),
    "something else": (lambda: 42, None),
    "a head of a plain module": (Additive, "pooled"),
    "no pooler": (lambda: make("distilbert"), "pooled"),
    "no such head of the class": (lambda: make("bert"), "question_answering"),
    "an unknown head": (lambda: make("bert"), "regression"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_imported_is_refused(name, messages):
    make_source, head = REFUSED[name]
    with messages.raises((ModelSourceError, UnsupportedModelError)):
        load(make_source(), head=head)


class Empty(Block):
    """Keys behind those of a cache that holds none, as some decoders join them."""

    def attend(self, x, mask):
        return self.heads(torch.cat([torch.zeros(0), self.value(x)], dim=-2))


@pytest.mark.slow
def test_empty_tensors_are_joined_to_nothing():
    assert load(Empty().eval()).verified_error is not None


def tiny_bert(name):
    sizes = {"vocab_size": 41, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 48, "max_position_embeddings": 40}
    return random_bert(0, None, name, **sizes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "head", "kind"),
    examples(
        [
            ("BertForMaskedLM", "token_classification", "token_logits"),
            ("BertForNextSentencePrediction", "sequence_classification", "logits"),
        ],
        ("BertForNextSentencePrediction", "sequence_classification", "logits"),
        unpack=True,
    ),
)
def test_logits_of_pretraining_are_those_of_a_head_without_labels(name, head, kind):
    loaded = verified(tiny_bert(name))
    assert (loaded.info.head, loaded.info.outputs[0].kind) == (head, kind)
    assert loaded.info.id2label == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", examples(["BertForMultipleChoice", "BertForPreTraining"], "BertForPreTraining")
)
def test_a_head_is_never_left_out_unasked(name, messages):
    model = tiny_bert(name)
    with messages.raises(ModelSourceError):
        load(model)
    assert load(model, head="none", verify=False).info.head == "none"


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize("dtype", examples([torch.float16, torch.bfloat16], torch.bfloat16))
def test_weights_of_16_bits_are_taken_exactly(dtype):
    torch.manual_seed(0)
    module = Additive().to(dtype)
    loaded = load(module)
    assert {parameter.dtype for parameter in module.parameters()} == {dtype}
    wanted = module.query.weight.detach().float().numpy()
    np.testing.assert_array_equal(loaded.parameters["query.weight"], wanted)


@pytest.mark.slow
def test_the_class_decides_the_head():
    loaded = load(make("bert", "token_classification", num_hidden_layers=1), verify=False)
    assert loaded.info.head == "token_classification"
    assert loaded.info.outputs[0].kind == "token_logits"


@pytest.mark.slow
def test_the_encoder_of_a_classifier_can_be_taken():
    model = make("bert", "sequence_classification", num_hidden_layers=1)
    loaded = load(model, head="none", verify=False)
    assert str(calls_of(loaded)[-1].attrs["name"]) == "encoder.layer.0.output.LayerNorm"


def test_loading_leaves_the_model_as_it_was():
    model = make("bert", num_hidden_layers=1)
    model.train()
    model.embeddings.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    attention = model.config._attn_implementation
    load(model, verify=False)
    assert model.training
    assert not model.embeddings.training
    assert model.config._attn_implementation == attention != "eager"
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), before[name].numpy())


def test_the_report_names_nodes_of_the_traced_program():
    class Dense(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(11, 8)
            self.dense = torch.nn.Linear(8, 8)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.dense(self.words(input_ids)))

    report = load(Dense(), inputs=("input_ids",), verify=False).report
    nodes = {item.name: item.nodes for item in report.matched}
    assert nodes["words"] == ("words:embedding",)
    assert nodes["dense"][-1].startswith("dense:")
    assert nodes["dense.relu"][-1] == "relu"
    assert ("relu", "dense.relu") in [(item.tensor, item.value) for item in report.tensors]


@pytest.mark.slow
def test_esm_for_texts_without_masks():
    """Its factor by how many tokens are masked is 0.88 where none is; <mask> is its last id."""
    import transformers as hf

    torch.manual_seed(0)
    sizes = {"vocab_size": 33, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 48}
    config = hf.EsmConfig(
        **sizes,
        num_attention_heads=4,
        pad_token_id=1,
        mask_token_id=32,
        position_embedding_type="rotary",
        token_dropout=True,
    )
    model = hf.EsmModel(config).eval()
    ids, mask = torch.arange(4, 14).reshape(2, 5), torch.tensor([[1] * 5, [1, 1, 1, 0, 0]])
    with torch.no_grad():
        expected = model(ids, mask).last_hidden_state
    imported = load(model, head="none")
    assert imported.info.vocab_size == 32
    inputs = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
    found = run(imported, inputs)
    real = mask.numpy() != 0
    np.testing.assert_allclose(found[real], expected.numpy()[real], atol=1e-5)


def test_what_an_import_leaves_is_not_collected_again_while_it_is_young() -> None:
    gc.unfreeze()
    gc.enable()
    try:
        load(Unmasked(), inputs=("input_ids",), verify=False)
        assert gc.isenabled() and not gc.get_freeze_count()
        young = len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1))
        assert young < len(gc.get_objects(generation=2)) / 10
    finally:  # as tests/conftest.py has it
        gc.disable()
        gc.freeze()
