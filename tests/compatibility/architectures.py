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


def _model(
    name: str, config: str, model: str | None = None, variant: str = "", **fields: Any
) -> Architecture:
    return Architecture(name, lambda: _class(config)(**fields), (), model, variant)


GPT: dict[str, Any] = {
    "vocab_size": 61,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 40,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
T5: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
}
MARKS = {"bos_token_id": 1, "eos_token_id": 2}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
CONVOLUTIONS = {
    "conv_dim": (16,),
    "conv_stride": (2,),
    "conv_kernel": (3,),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}

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
    # Its boxes have six coordinates.
    _roberta(
        "lilt",
        "LiltConfig",
        (),
        hidden_size=48,
        channel_shrink_ratio=4,
        max_2d_position_embeddings=40,
    ),
    _tokens("canine", "CanineConfig", (), num_hash_buckets=32, local_transformer_stride=4),
    _tokens("esm", "EsmConfig", (), pad_token_id=1, position_embedding_type="absolute"),
    _model(
        "esm",
        "EsmConfig",
        variant="rotary",
        **{**TOKENS, "pad_token_id": 1, "position_embedding_type": "rotary"},
    ),
    _model(
        "esm",
        "EsmConfig",
        variant="token dropout",
        **TOKENS,
        pad_token_id=1,
        position_embedding_type="absolute",
        token_dropout=True,
        mask_token_id=TOKENS["vocab_size"] - 1,
    ),
    _tokens(
        "roc_bert",
        "RoCBertConfig",
        (),
        enable_pronunciation=False,
        enable_shape=False,
        concat_input=False,
    ),
    _tokens("visual_bert", "VisualBertConfig", ()),
    _tokens("markuplm", "MarkupLMConfig", ()),
    _tokens("tapas", "TapasConfig", ()),
    _tokens("bros", "BrosConfig", ()),
    _tokens("mra", "MraConfig", (), block_per_row=1),
    _tokens("yoso", "YosoConfig", (), use_expectation=True),
    _tokens("vilt", "ViltConfig", (), image_size=24, patch_size=8),
    _model("flaubert", "FlaubertConfig", vocab_size=61, emb_dim=32, n_layers=2, n_heads=4),
    _model("perceiver", "PerceiverConfig", num_latents=4, d_latents=16, d_model=16, num_blocks=1),
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
    _model("mt5", "MT5Config", "MT5EncoderModel", "encoder", **T5),
    _model("umt5", "UMT5Config", "UMT5EncoderModel", "encoder", **T5),
    _model(
        "gpt_neo",
        "GPTNeoConfig",
        vocab_size=61,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        intermediate_size=48,
        max_position_embeddings=40,
        attention_types=[[["global", "local"], 1]],
        window_size=8,
        bos_token_id=1,
        eos_token_id=1,
    ),
    _model("biogpt", "BioGptConfig", **TOKENS, pad_token_id=1),
    _model("gptj", "GPTJConfig", **GPT, rotary_dim=4),
    _model("gpt_neox", "GPTNeoXConfig", **TOKENS, **MARKS),
    _model("llama", "LlamaConfig", **TOKENS),
    _model("qwen3", "Qwen3Config", **TOKENS, **GROUPED),
    _model("gemma2", "Gemma2Config", **TOKENS, **GROUPED),
    _model("gemma3_text", "Gemma3TextConfig", **TOKENS, **GROUPED),
    _model("openai-gpt", "OpenAIGPTConfig", **{**GPT, "bos_token_id": None, "eos_token_id": None}),
    _model("ctrl", "CTRLConfig", vocab_size=61, n_embd=32, n_layer=2, n_head=4, dff=48),
    _model(
        "opt",
        "OPTConfig",
        vocab_size=61,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=48,
        max_position_embeddings=40,
        word_embed_proj_dim=32,
        pad_token_id=1,
    ),
    _model(
        "xglm",
        "XGLMConfig",
        vocab_size=61,
        d_model=32,
        num_layers=2,
        attention_heads=4,
        ffn_dim=48,
        max_position_embeddings=40,
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
    _model("siglip_text_model", "SiglipTextConfig", "SiglipTextModel", **TOKENS),
    _model(
        "blip_text_model",
        "BlipTextConfig",
        "BlipTextModel",
        **TOKENS,
        encoder_hidden_size=32,
        sep_token_id=2,
        is_decoder=False,
    ),
    _model("align_text_model", "AlignTextConfig", "AlignTextModel", **TOKENS),
    _model("chinese_clip_text_model", "ChineseCLIPTextConfig", "ChineseCLIPTextModel", **TOKENS),
    _model("xclip_text_model", "XCLIPTextConfig", "XCLIPTextModel", **TOKENS, **MARKS),
    _model("owlvit_text_model", "OwlViTTextConfig", "OwlViTTextModel", **TOKENS),
    _model("groupvit_text_model", "GroupViTTextConfig", "GroupViTTextModel", **TOKENS, **MARKS),
    _model("flava_text_model", "FlavaTextConfig", "FlavaTextModel", **TOKENS),
    _model("clipseg_text_model", "CLIPSegTextConfig", "CLIPSegTextModel", **TOKENS, **MARKS),
    _model(
        "altclip_text_model", "AltCLIPTextConfig", "AltCLIPTextModel", **ROBERTA, project_dim=16
    ),
    _model("git", "GitConfig", **TOKENS, vision_config=IMAGES),
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
        "siglip_vision_model",
        lambda: _class("SiglipVisionConfig")(**IMAGES),
        ("pooled",),
        model="SiglipVisionModel",
        variant="pooling head",
    ),
    _model("blip_vision_model", "BlipVisionConfig", "BlipVisionModel", **IMAGES),
    _model(
        "chinese_clip_vision_model", "ChineseCLIPVisionConfig", "ChineseCLIPVisionModel", **IMAGES
    ),
    _model("owlvit_vision_model", "OwlViTVisionConfig", "OwlViTVisionModel", **IMAGES),
    _model("flava_image_model", "FlavaImageConfig", "FlavaImageModel", **IMAGES),
    _model("clipseg_vision_model", "CLIPSegVisionConfig", "CLIPSegVisionModel", **IMAGES),
    _model("yolos", "YolosConfig", **{**IMAGES, "image_size": [24, 24]}, num_detection_tokens=3),
    _images("dinov3_vit", "DINOv3ViTConfig"),
    _images("vit_mae", "ViTMAEConfig"),
    _images("dpt", "DPTConfig"),
    _images("vitdet", "VitDetConfig"),
    _images("videomae", "VideoMAEConfig"),
    _model(
        "sam_vision_model",
        "SamVisionConfig",
        "SamVisionModel",
        **IMAGES,
        output_channels=16,
        window_size=2,
        global_attn_indexes=[1],
    ),
    _model(
        "groupvit_vision_model",
        "GroupViTVisionConfig",
        "GroupViTVisionModel",
        **IMAGES,
        depths=[1, 1],
        num_group_tokens=[4, 0],
        num_output_groups=[4, 2],
    ),
    _model(
        "audio-spectrogram-transformer",
        "ASTConfig",
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        patch_size=8,
        max_length=24,
        num_mel_bins=16,
        frequency_stride=8,
        time_stride=8,
    ),
    _model(
        "whisper",
        "WhisperConfig",
        vocab_size=61,
        d_model=32,
        encoder_layers=1,
        encoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_layers=1,
        decoder_attention_heads=4,
        decoder_ffn_dim=48,
        num_mel_bins=16,
        max_source_positions=20,
        pad_token_id=1,
        decoder_start_token_id=1,
        **MARKS,
    ),
    _model("wav2vec2", "Wav2Vec2Config", **TOKENS, **CONVOLUTIONS),
    _model("hubert", "HubertConfig", **TOKENS, **CONVOLUTIONS),
    _model("decision_transformer", "DecisionTransformerConfig", state_dim=4, act_dim=2, **GPT),
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
