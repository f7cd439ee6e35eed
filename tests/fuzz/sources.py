"""Readers of what others write: models, tokenizers, texts, arrays."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.mutation import Files
from tests.fuzz.reader import Reader, arrays_of, built, write_files

# -- models of others ---------------------------------------------------------------------------


@cache
def _model_folders() -> list[Files]:
    def build(work: Path) -> None:
        import torch

        from tests.encoder.small_encoders import save_bert
        from tests.frontend import sentence_folders as folders
        from tests.ibert_checkpoint import checkpoints

        torch.manual_seed(0)
        folders.save(
            work / "a", [folders.TRANSFORMER, folders.pooling("mean"), folders.dense(32, 8)]
        )
        checkpoints.save(checkpoints.make_model("none"), work / "b")
        # Weights in several files, with an index of them, and a tokenizer.
        model = folders.make("bert", "none", num_hidden_layers=1).eval()
        model.save_pretrained(work / "c", max_shard_size="20KB")
        write_files(work / "c", _tokenizers()[0])
        # Everything that sentence-transformers is told about a model.
        save_bert(work / "d")
        settings = {"prompts": {"query": "a: ", "document": ""}, "default_prompt_name": "query"}
        settings |= {"similarity_fn_name": "dot", "truncate_dim": 16}
        write_files(
            work / "d", {"config_sentence_transformers.json": json.dumps(settings).encode()}
        )
        # A cross-encoder, its weights pickled.
        model = folders.make("bert", "sequence_classification", num_hidden_layers=1, num_labels=1)
        function = {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5.0.0"}
        model.config.sentence_transformers = function
        model.config.save_pretrained(work / "e")
        torch.save(model.state_dict(), work / "e" / "pytorch_model.bin")

    return built("folders", build)


def _read_folder(folder: Path) -> object:
    from ibert_tvm.frontend.hf_folder import HfFolder
    from ibert_tvm.model.tokenization import tokenizer_files

    read = HfFolder.read(folder)
    _ = read.pipeline, read.pooling
    tokenizer_files(folder)
    return repr(read.provenance(read.default_head))


def _import_folder(folder: Path) -> object:
    import ibert_tvm as ibert

    model = ibert.load(folder)
    return model.info


@cache
def _onnx_models() -> list[Files]:
    def build(work: Path) -> None:
        from tests.frontend.qdq import encoder

        for name, quantised in (("a", False), ("b", True)):
            (work / name).mkdir()
            model = encoder.encoder(layers=1)
            if quantised:
                model = encoder.quantize(work / name, model)
                for file in (work / name).iterdir():
                    file.unlink()
            (work / name / "model.onnx").write_bytes(model.SerializeToString())

    return built("onnx", build)


def _import_onnx(folder: Path) -> object:
    import ibert_tvm as ibert

    return ibert.load(folder / "model.onnx").info


# -- tokens, texts, arrays ----------------------------------------------------------------------


def _tokenizers() -> list[Files]:
    from tests.runtime.conftest import VOCABULARY

    config = {"do_lower_case": True, "pad_token": "[PAD]", "model_max_length": 16}
    words = {
        "vocab.txt": "\n".join(VOCABULARY).encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }
    from tokenizers import Tokenizer, models, pre_tokenizers

    fast = Tokenizer(models.BPE({"<pad>": 0, "a": 1, "b": 2, "ab": 3}, [("a", "b")]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel()
    pairs = {
        "tokenizer.json": fast.to_str().encode(),
        "tokenizer_config.json": b'{"pad_token": "<pad>"}',
    }
    merges = {
        "vocab.json": b'{"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5, "ab": 6}',
        "merges.txt": b"#version: 0.2\na b\n",
        "tokenizer_config.json": b"{}",
    }
    from tokenizers import Regex, normalizers, processors

    fast.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" +"), " "), normalizers.Prepend("a")]
    )
    fast.post_processor = processors.TemplateProcessing(
        single="<pad> $A", pair="<pad> $A b $B:1", special_tokens=[("<pad>", 0), ("b", 2)]
    )
    parts = {**pairs, "tokenizer.json": fast.to_str().encode()}
    return [words, pairs, merges, parts]


def _tokenize(folder: Path) -> object:
    from ibert_tvm.model.tokenization import Tokenizer, tokenizer_files

    tokenizer = Tokenizer(tokenizer_files(folder))
    tokens = tokenizer.encode(["hello small world ab", ("ab", "b")], 12)
    tokenizer.windows(("ab b", "hello " * 20), 12, 2)
    return tokens.input_ids.tolist(), tokenizer.vocab_size


@cache
def _source_tokenizers() -> list[Files]:
    def build(work: Path) -> None:
        from tests.frontend import tokenizer_folders as folders

        settings: dict[str, Any] = {"model_max_length": 16, "do_lower_case": False}
        added = {"content": "[NEW]", "special": True, "lstrip": True, "normalized": False}
        folders.words(work / "a", {**settings, "added_tokens_decoder": {"11": added}})
        folders.pairs_of_bytes(work / "b", {**settings, "add_prefix_space": True})
        folders.pairs_of_bytes(work / "c", {**settings, "pad_token": "<pad>"}, template="<s> $A")
        folders.pieces(work / "d", settings)
        special = {"mask_token": {"content": "[MASK]", "lstrip": True}, "unk_token": "[UNK]"}
        sentence = {"max_seq_length": 12, "do_lower_case": True}
        write_files(
            work / "a",
            {
                "special_tokens_map.json": json.dumps(special).encode(),
                "sentence_bert_config.json": json.dumps(sentence).encode(),
                "modules.json": json.dumps(
                    [{"path": "", "type": "sentence_transformers.models.Transformer"}]
                ).encode(),
            },
        )

    return built("source-tokenizers", build)


def _read_source_tokenizer(folder: Path) -> object:
    from ibert_tvm.frontend.source_tokenizer import source_tokenizer
    from ibert_tvm.model.tokenization import Tokenizer

    files = source_tokenizer(folder)
    return files and Tokenizer(files).encode(["the cats sat", ("a", "C")], 8).input_ids.tolist()


def _texts() -> list[Files]:
    return [{"texts.txt": "hello\nworld \u00e9\n\n  big \r\nsmall\n".encode()}]


def _read_texts(folder: Path) -> object:
    from ibert_tvm.texts import read_texts

    return read_texts("--texts", folder / "texts.txt")


def _data() -> list[Files]:
    """A folder by the name of a task, with the file or the folder that it reads."""
    from ibert_tvm.tasks.glue import FORMATS
    from tests.tasks.test_readers import CORPUS, GLUE

    answers = [{"text": "cat", "answer_start": 4}]
    questions = [{"id": "1", "question": "Who?", "answers": answers, "is_impossible": False}]
    paragraphs = [{"context": "The cat.", "qas": questions}]
    files = {f"{name}/{FORMATS[name].file}": text for name, text in GLUE.items()}
    files |= {
        "classification/a.csv": 'label,text\nx,"a, ""b""\nc"\ny,d\n',
        "sts/a.tsv": "sentence1\tsentence2\tscore\na b\tc\t4.5\n",
        "token-classification/a.conll": "EU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\n",
        "squad/a.json": json.dumps({"data": [{"paragraphs": paragraphs}]}),
    }
    retrieval = {
        "corpus.jsonl": CORPUS,
        "queries.jsonl": '{"_id": "q", "text": "x"}\n{"_id": "r", "text": "y"}\n',
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq\t2\t1\n",
    }
    folder = {f"retrieval/{name}": text.encode() for name, text in retrieval.items()}
    return [folder, *({name: text.encode()} for name, text in files.items())]


def _read_data(folder: Path) -> object:
    from ibert_tvm.tasks.catalogue import TASKS, Options

    found = []
    for place in sorted(folder.iterdir()):
        files = sorted(place.iterdir())
        path = place if place.name == "retrieval" or not files else files[0]
        found.append(repr(TASKS[place.name].read(path, Options())))
    return found


def _npz_files() -> list[Files]:
    ids = np.arange(12).reshape(3, 4)
    result = []
    for save in (np.savez, np.savez_compressed):
        stream = io.BytesIO()
        save(stream, input_ids=ids, attention_mask=np.ones_like(ids))
        result.append({"inputs.npz": stream.getvalue()})
    return result


def _read_npz(folder: Path) -> object:
    from ibert_tvm.cli.run import _read_inputs
    from ibert_tvm.common.errors import IbertError
    from ibert_tvm.quantization.batch_file import read_batches
    from ibert_tvm.quantization.batches import batches_of_arrays
    from tests.runtime.conftest import TinyModel

    file = folder / "inputs.npz"
    arrays = None
    try:
        batches_of_arrays(read_batches(file), TinyModel().info)
    except IbertError as error:
        str(error)
        arrays = _read_inputs(file)
    return arrays and arrays_of(arrays)


READERS: dict[str, Reader] = {
    "folder": Reader(_model_folders, _read_folder),
    "import": Reader(_model_folders, _import_folder),
    "onnx": Reader(_onnx_models, _import_onnx),
    "tokenizer": Reader(_tokenizers, _tokenize),
    "source-tokenizer": Reader(_source_tokenizers, _read_source_tokenizer),
    "data": Reader(_data, _read_data),
    "texts": Reader(_texts, _read_texts),
    "npz": Reader(_npz_files, _read_npz),
}
