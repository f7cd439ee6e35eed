"""Rotary embeddings, however a torch module writes them: what turns which channels, by what."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ibert_tvm.frontend import UnsupportedModelError, load
from ibert_tvm.frontend.canonicalise.mismatch import Mismatch
from ibert_tvm.frontend.canonicalise.rotations import Term, fit_rotation
from tests.examples import examples
from tests.frontend import rotary_modules as modules
from tests.frontend.imports import calls_of, ops, run, verified
from tests.frontend.onnx.exports import export
from tests.frontend.rotary_modules import CONFIGS, HEAD, LAYOUTS, Rotary, encoder
from tests.frontend.test_distances import check
from tests.snapshots import Messages


def test_heads_are_normalised_and_turned() -> None:
    model = load(modules.NormedHeads(), verify=False)
    assert (ops(model).count("rms_norm"), ops(model).count("rotate")) == (2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYOUTS)
def test_every_layout_is_a_rotation(kind) -> None:
    torch.manual_seed(0)
    module = kind().eval()
    model = load(module)
    calls = calls_of(model, "rotate")
    assert len(calls) == 2
    assert {int(call.attrs["num_heads"]) for call in calls} == {3}
    assert len({str(call.args[1].name) for call in calls}) == 1
    positions = 40 if kind in (modules.Cached, modules.LookedUp) else 512
    table = model.parameters[str(calls[0].args[1].name)]
    assert table.shape == (positions, kind.columns)
    assert model.info.max_sequence_length == positions
    np.testing.assert_allclose(table[0], [1] * (kind.columns // 2) + [0] * (kind.columns // 2))
    check(module, model, (7, 40))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "factor"),
    examples(
        [(modules.TurnedApart, 1.25), (modules.ScaledFirst, 0.3)],
        (modules.ScaledFirst, 0.3),
        unpack=True,
    ),
)
def test_an_amplitude_goes_to_the_scores(kind, factor) -> None:
    torch.manual_seed(0)
    model = load(kind().eval(), verify=False)
    (call,) = calls_of(model, "attention")
    assert float(call.attrs["scale"]) == pytest.approx(factor**2 / HEAD**0.5)


@pytest.mark.slow
def test_rows_of_neighbours_are_reordered() -> None:
    torch.manual_seed(0)
    module = modules.Neighbours().eval()
    model = load(module, verify=False)
    order = np.arange(24).reshape(3, 4, 2).swapaxes(1, 2).reshape(-1)
    weight = module.query.weight.detach().numpy()
    np.testing.assert_array_equal(model.parameters["query.weight"], weight[order])
    folded = [item.what for item in model.report.foldings if item.name == "query"]
    assert "rows reordered: pairs that are rotated lie half a head apart" in folded


class MaskedPositions(modules.Halves):
    """Positions that count tokens: they depend on the padding mask."""

    def attend(self, x, mask):
        self.counted = mask.cumsum(-1)
        return super().attend(x, mask)

    def angles(self, length):
        return self.counted[:, None, :, None].float() * self.frequencies


class Scaled(Rotary):
    """Numbers by position that turn nothing."""

    def turned(self, x, angles):
        return x * torch.cat((angles.cos(), angles.cos()), dim=-1)


class Reflected(Rotary):
    """Pairs that are mixed, and not turned."""

    def turned(self, x, angles):
        both = torch.cat((angles, angles), dim=-1)
        a, b = x.chunk(2, dim=-1)
        return x * both.cos() + torch.cat((b, a), dim=-1) * both.sin()


class AfterANorm(modules.Neighbours):
    """Neighbours of what no linear layer makes."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.nn.LayerNorm(24)

    def attend(self, x, mask):
        query, norm = self.query, self.own
        self.query = torch.nn.Sequential(query, norm)
        try:
            return super().attend(x, mask)
        finally:
            self.query = query


@pytest.mark.parametrize("kind", examples([MaskedPositions, Scaled, Reflected, AfterANorm], Scaled))
def test_what_turns_nothing_is_refused(kind, messages: Messages) -> None:
    with messages.raises(UnsupportedModelError):
        load(kind().eval(), verify=False)


def terms(*entries: tuple[int, int, float], lanes: int) -> tuple[Term, ...]:
    """One term for each (lane, channel, factor), the same at three positions."""
    made = []
    for lane, channel, factor in entries:
        channels, factors = np.zeros(lanes, np.int64), np.zeros((3, lanes))
        channels[lane], factors[:, lane] = channel, factor
        made.append(Term(channels, factors))
    return tuple(made)


def test_sums_that_are_no_rotation_say_why() -> None:
    own = [(lane, lane, 0.6) for lane in range(4)]
    far = terms(*own, (0, 1, -0.8), (1, 0, 0.8), (2, 0, 0.8), lanes=4)
    with pytest.raises(Mismatch, match="channels that lie 1, 2 apart are mixed by position"):
        fit_rotation(far, 4, 3)
    odd = terms(*own, (1, 2, -0.8), (2, 1, 0.8), lanes=4)
    with pytest.raises(Mismatch, match="channels 1 and 2 of a head of 4 are mixed by position"):
        fit_rotation(odd, 4, 3)
    rest = terms((0, 0, 0.6), (1, 1, 0.6), (0, 1, -0.8), (1, 0, 0.8), (2, 2, 3.0), lanes=3)
    with pytest.raises(Mismatch, match="a head of 3 are mixed"):
        fit_rotation(rest, 3, 3)
    alone = terms(*((lane, lane, 1.0) for lane in range(4)), lanes=4)
    assert fit_rotation(alone, 4, 3) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", examples(CONFIGS, "modernbert", "nomic_bert", "qwen3", otherwise="record")
)
def test_encoders(name: str) -> None:
    module = encoder(name)
    model = verified(module)
    assert model.info.max_sequence_length == 64
    tables = {str(call.args[1].name) for call in calls_of(model, "rotate")}
    windows = [int(call.attrs["before"]) for call in calls_of(model, "attention")]
    modern = name in ("modernbert", "granite")
    assert len(calls_of(model, "rotate")) == 4
    assert len(tables) == (2 if modern else 1)
    assert (windows[1] == 8) == modern
    check(module, model, (7, 33, 64))


@pytest.mark.record
def test_granite_is_modernbert_with_silu() -> None:
    modern, granite = (
        {*ops(load(encoder(name), verify=False))} for name in ("modernbert", "granite")
    )
    assert (modern - granite, granite - modern) == ({"gelu"}, {"silu"})


@pytest.mark.slow
def test_tables_are_as_long_as_the_configuration_says() -> None:
    """Longer than what is compared, and without masks of as many queries and keys."""
    module = encoder("modernbert")
    module.config.max_position_embeddings = 5000
    model = load(module)
    shapes = {model.parameters[str(c.args[1].name)].shape for c in calls_of(model, "rotate")}
    assert shapes == {(5000, 16)}
    longest = {name: np.ones((1, 1500), np.int64) for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        wanted = module(**{n: torch.tensor(a) for n, a in longest.items()}).last_hidden_state
    np.testing.assert_allclose(run(model, longest), wanted.numpy(), atol=1e-3)


@pytest.mark.slow_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("kind", [modules.Halves, modules.Neighbours])
def test_the_same_from_onnx(kind, dynamo: bool, tmp_path) -> None:
    torch.manual_seed(0)
    module, file = kind().eval(), tmp_path / "model.onnx"
    export(module, file, ["input_ids", "attention_mask"], dynamo, 18 if dynamo else 17)
    model, same = load(file), load(module)
    assert len(calls_of(model, "rotate")) == 2
    (table,), (other,) = (
        {str(c.args[1].name) for c in calls_of(m, "rotate")} for m in (model, same)
    )
    np.testing.assert_allclose(model.parameters[table], same.parameters[other], atol=1e-4)
    check(module, model, (7, 23, 38))
