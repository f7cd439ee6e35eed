"""`ibert verify --rpc`: bits are compared on a board, here a server on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ibert_tvm
from ibert_tvm.common.integrity import check_sealed
from ibert_tvm.model.artefact import QuantizedModel
from tests.commands import Ibert
from tests.processes import free_port

from .servers import HOST, Servers, free_boards

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def compiled(artefact: Path) -> Path:
    library = ibert_tvm.compile(QuantizedModel.load(artefact), "host", [(1, 8), (2, 4)])
    return library.export(artefact.parent / "small.so")


def test_bits_are_compared_on_the_board(
    ibert: Ibert, servers: Servers, compiled: Path, artefact: Path, tmp_path: Path
) -> None:
    words = ("verify", compiled, "--model", artefact, "--inputs", "4")
    board = ("--rpc", f"{HOST}:{servers.tracker_port}", "--rpc-key", servers.key)
    there = ibert(*words, "-o", tmp_path / "there.json", *board)
    assert there.code == 0, there.stderr
    here = ibert(*words, "-o", tmp_path / "here.json")
    assert here.code == 0, here.stderr
    on_board, local = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("there", "here"))
    check_sealed(on_board)
    bits, same = on_board["checks"][-1], local["checks"][-1]
    assert (bits["name"], bits["passed"], on_board["complete"]) == ("same bits", True, True)
    assert bits["facts"]["on"] == str(servers.tracker)
    # The digest is that of every target that passes.
    assert bits["facts"]["outputs_sha256"] == same["facts"]["outputs_sha256"]
    assert free_boards(servers) == 1


def test_other_weights_are_found_on_the_board(
    ibert: Ibert, servers: Servers, compiled: Path, artefact: Path, tmp_path: Path
) -> None:
    model = QuantizedModel.load(artefact)
    name = max(model.parameters, key=lambda key: model.parameters[key].size)
    rolled = np.roll(model.parameters[name], 1)
    other = replace(model, parameters={**model.parameters, name: rolled})
    words = ("verify", compiled, "--model", other.save(tmp_path / "other.ibert"), "--inputs", "2")
    board = ("--rpc", f"{HOST}:{servers.tracker_port}", "--rpc-key", servers.key)
    outcome = ibert(*words, "-o", tmp_path / "verify.json", *board)
    assert outcome.code == 5
    *before, bits = json.loads((tmp_path / "verify.json").read_text())["checks"]
    failed = [check["name"] for check in before if not check["passed"]]
    assert failed == ["made from the model"]
    assert "integers of hidden differ" in bits["findings"][0]
    assert free_boards(servers) == 1


def test_no_board(ibert: Ibert, compiled: Path, artefact: Path, tmp_path: Path) -> None:
    """No certificate is written of a board that was not reached."""
    output, port = tmp_path / "verify.json", free_port()
    where = ("--rpc", f"{HOST}:{port}", "-o", output)
    outcome = ibert("verify", compiled, "--model", artefact, "--inputs", "1", *where)
    assert (outcome.code, output.exists()) == (4, False)
    assert outcome.stderr.startswith(f"error: cannot connect to {HOST}:{port}\n  where: --rpc\n")
