"""A tiny real library: an embedding and a masked sum, exported as the compiler exports models."""

from __future__ import annotations

import base64
import shutil
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ibert_tvm.model.model_info import ModelInfo, OutputInfo
from tests.cache import cached, version_of

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world", "small", "big"]
CHANNELS = 4


@dataclass(frozen=True)
class TinyModel:
    """What the library computes, and how to make one."""

    shapes: tuple[tuple[int, int], ...] = ((1, 8), (1, 16), (4, 8))
    features: tuple[str, ...] = ()
    metadata_changes: dict[str, Any] = field(default_factory=dict)
    pad_token_id: int = 0
    tokenizer: bool = True
    channels: int = CHANNELS

    @property
    def table(self) -> NDArray[np.int8]:
        """int8 [vocabulary, channels]."""
        size = (len(VOCABULARY), self.channels)
        return np.random.default_rng(0).integers(-128, 128, size).astype(np.int8)

    @property
    def bias(self) -> NDArray[np.int32]:
        """int32 [channels]."""
        return np.array([1, -2, 3, 1 << 20], dtype=np.int32)[: self.channels]

    def reference(
        self, ids: NDArray[Any], mask: NDArray[Any], types: NDArray[Any]
    ) -> dict[str, NDArray[np.int32]]:
        """Evaluate the model in NumPy."""
        rows = self.table.astype(np.int32)[ids] + types[..., None] * 1000
        hidden = (rows * mask[..., None] + self.bias).astype(np.int32)
        return {"hidden": hidden, "embedding": (hidden * mask[..., None]).sum(axis=1)}

    @property
    def info(self) -> ModelInfo:
        """Information on it."""
        return ModelInfo(
            architecture="bert",
            head="none",
            inputs=("input_ids", "attention_mask", "token_type_ids"),
            outputs=(
                OutputInfo("hidden", "hidden", "hidden_state"),
                OutputInfo("embedding", "embedding", "embedding"),
            ),
            hidden_size=self.channels,
            num_layers=0,
            vocab_size=len(VOCABULARY),
            type_vocab_size=2,
            max_sequence_length=16,
            pad_token_id=self.pad_token_id,
            source="a test",
            source_sha256="00" * 32,
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """The JSON document that goes into the library."""
        vocabulary = "\n".join(VOCABULARY).encode()
        encoded = base64.b64encode(zlib.compress(vocabulary)).decode()
        document = {
            "format": 1,
            "target": {"name": "host", "description": "the test machine"},
            "required_cpu_features": list(self.features),
            "functions": [
                {"name": f"main_b{b}_s{s}", "batch": b, "seq_len": s} for b, s in self.shapes
            ],
            "inputs": [{"name": n, "dtype": "int32"} for n in self.info.inputs],
            "outputs": [
                {
                    "name": "hidden",
                    "dtype": "int32",
                    "scale": 0.5,
                    "kind": "hidden_state",
                    "shape": ["batch", "seq_len", self.channels],
                },
                {
                    "name": "embedding",
                    "dtype": "int32",
                    "scale": 0.25,
                    "kind": "embedding",
                    "shape": ["batch", self.channels],
                },
            ],
            "info": self.info.to_json(),
            "versions": {"tvm": "0.27.0.post1", "ibert_tvm": "0.1.0"},
            "source_sha256": "00" * 32,
            "tokenizer": {"vocab.txt": encoded} if self.tokenizer else None,
        }
        return {**document, **self.metadata_changes}

    def module(self) -> Any:
        """What it computes, as Relax operators."""
        from tvm import relax

        builder = relax.BlockBuilder()
        for batch, seq_len in self.shapes:
            inputs = [
                relax.Var(name, relax.TensorType([batch, seq_len], "int32"))
                for name in self.info.inputs
            ]
            table = relax.Var("table", relax.TensorType(self.table.shape, "int8"))
            bias = relax.Var("bias", relax.TensorType(self.bias.shape, "int32"))
            with builder.function(f"main_b{batch}_s{seq_len}", [*inputs, table, bias]):
                with builder.dataflow():
                    ids, mask, types = inputs
                    rows = relax.op.astype(relax.op.take(table, ids, axis=0, mode="clip"), "int32")
                    mask = builder.emit(relax.op.expand_dims(mask, 2))
                    types = relax.op.expand_dims(types, 2) * relax.const(1000, "int32")
                    hidden = builder.emit((rows + types) * mask + bias)
                    pooled = builder.emit(relax.op.sum(hidden * mask, axis=1))
                    output = builder.emit_output(relax.Tuple([hidden, pooled]))
                builder.emit_func_output(output)
        return builder.get()

    def build(self, path: Path) -> Path:
        """Compile and export it; equal ones are built once."""
        with cached("tiny", repr(self), version_of(TinyModel)) as (place, work):
            if work is not None:
                self._export(work / "model.so")
            copy = path.with_name(f"{path.name}.copy")
            shutil.copy((work or place) / "model.so", copy)
        copy.replace(path)  # as an export does: what was there may be loaded
        return path

    def _export(self, path: Path) -> None:
        import tvm

        from ibert_tvm.targets import get_target
        from ibert_tvm.targets.export import export_library

        target = get_target("x86-64")
        executable = tvm.compile(self.module(), target=tvm.target.Target(target.tvm_target))
        parameters = {"table": self.table, "bias": self.bias}
        export_library(executable, parameters, self.metadata, target, path)


@pytest.fixture(scope="session")
def tiny() -> TinyModel:
    return TinyModel()


@pytest.fixture(scope="session")
def library_path(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("library") / "model.so")
