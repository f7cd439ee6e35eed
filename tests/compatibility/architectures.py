"""Tiny configurations of the architectures that people bring, as transformers names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TOKENS: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
ROBERTA = {**TOKENS, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
IMAGES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 24,
    "patch_size": 8,
}
TEXT_HEADS = ("sequence_classification",)


@dataclass(frozen=True)
class Architecture:
    """One row of the table.

    Parameters
    ----------
    name : str
        ``model_type``.
    config : callable
        Makes the configuration.
    heads : tuple of str
        Heads that are tried besides the bare model.
    model : str, optional
        Class of transformers that makes the model of a configuration; by default ``AutoModel``.
    variant : str
        What tells it from another row of the same architecture.
    """

    name: str
    config: Callable[[], Any]
    heads: tuple[str, ...] = ()
    model: str | None = None
    variant: str = ""
    classes: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name in the table."""
        return f"{self.name} ({self.variant})" if self.variant else self.name


def _class(name: str) -> Any:
    import transformers

    return getattr(transformers, name)


def _tokens(name: str, cls: str, heads: tuple[str, ...] = TEXT_HEADS, **more: Any) -> Architecture:
    return Architecture(name, lambda: _class(cls)(**{**TOKENS, **more}), heads)


def _roberta(name: str, cls: str, heads: tuple[str, ...] = TEXT_HEADS, **more: Any) -> Architecture:
    return Architecture(name, lambda: _class(cls)(**{**ROBERTA, **more}), heads)


def _images(name: str, cls: str, heads: tuple[str, ...] = (), **more: Any) -> Architecture:
    return Architecture(name, lambda: _class(cls)(**{**IMAGES, **more}), heads)


ARCHITECTURES: tuple[Architecture, ...] = (
    _tokens(
        "bert", "BertConfig", ("sentence_embedding", "token_classification", "question_answering")
    ),
    _roberta("roberta", "RobertaConfig", ("pooled",)),
    _roberta("xlm-roberta", "XLMRobertaConfig"),
    _roberta("camembert", "CamembertConfig"),
    _roberta("xlm-roberta-xl", "XLMRobertaXLConfig"),
    _roberta("roberta-prelayernorm", "RobertaPreLayerNormConfig"),
    _roberta("data2vec-text", "Data2VecTextConfig"),
    _roberta("xmod", "XmodConfig", (), default_language="en_XX"),
    Architecture(
        "distilbert",
        lambda: _class("DistilBertConfig")(
            vocab_size=61, dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=40
        ),
        TEXT_HEADS,
    ),
    _tokens("electra", "ElectraConfig", embedding_size=16),
    _tokens("albert", "AlbertConfig", embedding_size=16),
    _tokens("ernie", "ErnieConfig"),
    _tokens("megatron-bert", "MegatronBertConfig"),
    _tokens("rembert", "RemBertConfig", input_embedding_size=16, output_embedding_size=16),
    _tokens("bert-generation", "BertGenerationConfig", ()),
    _tokens("splinter", "SplinterConfig", ()),
    _tokens("layoutlm", "LayoutLMConfig", ()),
    _tokens("mpnet", "MPNetConfig", (), pad_token_id=1),
    _tokens(
        "mobilebert",
        "MobileBertConfig",
        (),
        embedding_size=16,
        intra_bottleneck_size=16,
        true_hidden_size=16,
    ),
    _tokens("deberta", "DebertaConfig", (), relative_attention=True, pos_att_type=["c2p", "p2c"]),
    _tokens(
        "deberta-v2", "DebertaV2Config", (), relative_attention=True, pos_att_type=["c2p", "p2c"]
    ),
    _roberta("ibert", "IBertConfig"),
    _tokens("convbert", "ConvBertConfig", (), embedding_size=32, conv_kernel_size=3),
    _tokens("squeezebert", "SqueezeBertConfig", (), embedding_size=32),
    _tokens("fnet", "FNetConfig", (), use_tpu_fourier_optimizations=False),
    _tokens("roformer", "RoFormerConfig", (), embedding_size=32),
    _tokens("nystromformer", "NystromformerConfig", (), num_landmarks=4, segment_means_seq_len=12),
    _tokens("big_bird", "BigBirdConfig", (), attention_type="original_full"),
    _roberta("longformer", "LongformerConfig", (), attention_window=4),
    _roberta("luke", "LukeConfig", (), entity_vocab_size=8, entity_emb_size=8),
    _roberta("lilt", "LiltConfig", (), channel_shrink_ratio=4, max_2d_position_embeddings=40),
    _tokens("canine", "CanineConfig", (), num_hash_buckets=32, local_transformer_stride=4),
    _tokens("esm", "EsmConfig", (), pad_token_id=1, position_embedding_type="absolute"),
    Architecture(
        "funnel",
        lambda: _class("FunnelConfig")(
            vocab_size=61,
            d_model=32,
            n_head=4,
            d_head=8,
            d_inner=48,
            block_sizes=[1, 1],
            num_decoder_layers=1,
        ),
        model="FunnelBaseModel",
    ),
    Architecture(
        "xlnet",
        lambda: _class("XLNetConfig")(vocab_size=61, d_model=32, n_layer=2, n_head=4, d_inner=48),
    ),
    Architecture(
        "xlm",
        lambda: _class("XLMConfig")(
            vocab_size=61, emb_dim=32, n_layers=2, n_heads=4, max_position_embeddings=40
        ),
    ),
    Architecture(
        "modernbert",
        lambda: _class("ModernBertConfig")(
            **{**TOKENS, "max_position_embeddings": 64},
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            cls_token_id=1,
            sep_token_id=2,
        ),
    ),
    Architecture(
        "modernbert",
        lambda: _class("ModernBertConfig")(
            **{**TOKENS, "max_position_embeddings": 64},
            hidden_activation="silu",
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            cls_token_id=1,
            sep_token_id=2,
        ),
        variant="granite-embedding r2: silu",
    ),
    _tokens("nomic_bert", "NomicBertConfig", ()),
    _tokens("jina_embeddings_v3", "JinaEmbeddingsV3Config", (), pad_token_id=0),
    _tokens(
        "eurobert",
        "EuroBertConfig",
        (),
        num_key_value_heads=4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    ),
    Architecture(
        "t5",
        lambda: _class("T5Config")(
            vocab_size=61, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4
        ),
        model="T5EncoderModel",
        variant="encoder",
    ),
    Architecture(
        "gpt2",
        lambda: _class("GPT2Config")(
            vocab_size=61,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=40,
            bos_token_id=1,
            eos_token_id=1,
        ),
    ),
    Architecture(
        "gpt_bigcode",
        lambda: _class("GPTBigCodeConfig")(
            vocab_size=61,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=40,
            multi_query=True,
            bos_token_id=1,
            eos_token_id=1,
        ),
    ),
    Architecture(
        "bloom",
        lambda: _class("BloomConfig")(
            vocab_size=61, hidden_size=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1
        ),
    ),
    Architecture(
        "clip_text_model",
        lambda: _class("CLIPTextConfig")(**TOKENS, bos_token_id=1, eos_token_id=2),
        model="CLIPTextModel",
    ),
    _images("vit", "ViTConfig", ("image_classification",)),
    Architecture(
        "deit",
        lambda: _class("DeiTConfig")(**IMAGES),
        ("image_classification",),
        classes={"image_classification": "DeiTForImageClassification"},
    ),
    Architecture(
        "deit",
        lambda: _class("DeiTConfig")(**IMAGES),
        model="DeiTForImageClassificationWithTeacher",
        variant="with teacher",
    ),
    _images("dinov2", "Dinov2Config", ("image_classification",)),
    Architecture(
        "dinov2",
        lambda: _class("Dinov2Config")(**IMAGES, use_swiglu_ffn=True),
        variant="gated",
    ),
    _images("dinov2_with_registers", "Dinov2WithRegistersConfig"),
    _images("vit_msn", "ViTMSNConfig"),
    _images("ijepa", "IJepaConfig"),
    _images("beit", "BeitConfig", ("image_classification",)),
    Architecture(
        "beit",
        lambda: _class("BeitConfig")(**IMAGES, use_relative_position_bias=True),
        variant="relative position bias",
    ),
    _images("data2vec-vision", "Data2VecVisionConfig"),
    Architecture(
        "clip_vision_model",
        lambda: _class("CLIPVisionConfig")(**IMAGES),
        model="CLIPVisionModel",
    ),
    Architecture(
        "clip_vision_model",
        lambda: _class("CLIPVisionConfig")(**IMAGES, hidden_act="gelu"),
        model="CLIPVisionModel",
        variant="gelu",
    ),
    Architecture(
        "siglip_vision_model",
        lambda: _class("SiglipVisionConfig")(**IMAGES),
        model="SiglipVisionModel",
    ),
    Architecture(
        "swin",
        lambda: _class("SwinConfig")(
            image_size=32,
            patch_size=4,
            embed_dim=16,
            depths=[1, 1],
            num_heads=[2, 2],
            window_size=4,
        ),
    ),
)
"""All rows, in the order of the table."""
