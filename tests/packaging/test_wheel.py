"""The wheel: what it holds, and that it works where nothing else of the project is."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm.model.artefact import QuantizedModel
from tests.arm.small_bert import expected, inputs
from tests.installs import FIRMWARE, FOLDERS, Installation, copy_source
from tests.processes import ROOT, run_captured

_QUANTISE = """
import numpy as np, torch, transformers
import ibert_tvm as ibert
torch.manual_seed(1)
config = transformers.BertConfig(
    vocab_size=90, hidden_size=64, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=128, max_position_embeddings=40,
)
model = ibert.load(transformers.BertModel(config).eval(), head="pooled")
ids = np.random.default_rng(2).integers(3, 90, (2, 16))
batch = {"input_ids": ids, "attention_mask": ids > 0, "token_type_ids": ids % 2}
ibert.quantize(model, calibration=[batch]).save("small.ibert")
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without the network."""
    source = copy_source(tmp_path_factory.mktemp("source"))
    built = tmp_path_factory.mktemp("wheel")
    _run("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", built, source)
    (path,) = built.glob("*.whl")
    return path


def _run(*arguments: object, python: object = sys.executable, cwd: Path | None = None) -> str:
    """Run Python without what the environment would add to its path."""
    command = [str(python), "-I", *map(str, arguments)]
    done = run_captured(command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_it_holds_every_file_of_the_packages_under_one_name(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    names = {name for name in held if ".dist-info/" not in name}
    sources = {
        f"{'' if folder == 'ibert_tvm' else 'ibert_tvm/'}{path.relative_to(ROOT).as_posix()}"
        for folder in ("ibert_tvm", *FOLDERS)
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    # `ibert verify --emulate` runs packages in the example firmware.
    sources |= {
        f"ibert_tvm/firmware/{path.relative_to(ROOT / FIRMWARE).as_posix()}"
        for path in (ROOT / FIRMWARE).rglob("*")
        if path.suffix in (".S", ".c", ".h", ".ld")
    }
    assert names == sources
    (top,) = (name for name in held if name.endswith("/top_level.txt"))
    assert zipfile.ZipFile(wheel).read(top) == b"ibert_tvm\n"


def _installed(folder: Path, wheel: Path, extra: str) -> Path:
    """Python of an environment with the wheel and what an extra requires."""
    folder.mkdir()
    made = Installation(folder)
    made.type([f"pip install '{wheel}[{extra}]'"])
    return made.python


@pytest.mark.record
def test_installed_alone_it_quantises_compiles_and_runs_and_without_torch_the_latter_two(
    wheel: Path, tmp_path: Path
) -> None:
    complete, bare = (_installed(tmp_path / extra, wheel, extra) for extra in ("torch", "compiler"))
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    _run("-c", _QUANTISE, python=complete, cwd=folder)
    model = QuantizedModel.load(folder / "small.ibert")
    arrays = inputs(1, 12, seed=3, tokens=9)
    np.savez(folder / "inputs.npz", **arrays)
    for python in (complete, bare):
        place = _run("-c", "import ibert_tvm; print(ibert_tvm.__file__)", python=python, cwd=folder)
        assert Path(place).is_relative_to(python.parents[1])
        for line in (
            "compile small.ibert -o small.so --seq-len 12",
            "run small.so --inputs inputs.npz --integers -o outputs.npz",
        ):
            _run("-m", "ibert_tvm", *line.split(), python=python, cwd=folder)
        outputs = np.load(folder / "outputs.npz")
        for output, wanted in zip(model.info.outputs, expected(model, arrays), strict=True):
            np.testing.assert_array_equal(outputs[output.name], wanted)
        for made in ("small.so", "outputs.npz"):
            (folder / made).unlink()
    found = "import importlib.util; print(importlib.util.find_spec('torch') is None)"
    assert [_run("-c", found, python=python) for python in (complete, bare)] == [
        "False\n",
        "True\n",
    ]
