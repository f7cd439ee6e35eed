"""Gradients: those of float where nothing rounds, none where something is clamped."""

from __future__ import annotations

from dataclasses import replace

import torch

from ibert_tvm.train.straight_through import FloatTwin, replaced
from tests.train.small import batch, integer_model, tensors


def test_without_rounding_gradients_are_those_of_the_float_model() -> None:
    model = integer_model("bert")
    given = tensors(batch(1))
    labels = torch.tensor([0, 1, 2, 0])
    model.model(**given, labels=labels).loss.backward()
    wanted = {name: p.grad.clone() for name, p in model.model.named_parameters()}
    model.zero_grad()
    weights = {**model.weights(), **model._inputs(dict(given))}
    values = {variable: weights[name] for name, variable in model._variables.items()}
    logits = FloatTwin(model._steps, {}, {}).run(values, {})[model.info.outputs[0].value]
    torch.nn.functional.cross_entropy(logits, labels).backward()
    for name, parameter in model.model.named_parameters():
        if wanted[name].abs().max() > 0:  # a token type that no input names has none
            assert parameter.grad is not None, name
            torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-3, atol=1e-6)


def test_with_integers_gradients_are_nearly_those_of_float() -> None:
    model = integer_model("bert")
    given, labels = tensors(batch(2, rows=16)), torch.arange(16) % 3
    model.model(**given, labels=labels).loss.backward()
    wanted = {name: p.grad.clone() for name, p in model.model.named_parameters()}
    model.zero_grad()
    lowered = model.lowered()
    # What random texts have clamped beyond the calibration's few is masked, which is tested below.
    lowered.forms = {key: replace(form, bounds=None) for key, form in lowered.forms.items()}
    model(**given, labels=labels).loss.backward()
    compared = 0
    for name, parameter in model.model.named_parameters():
        if wanted[name].norm() > 1e-6:  # the keys' bias has none: it is the same for all keys
            one, other = parameter.grad.flatten(), wanted[name].flatten()
            assert torch.nn.functional.cosine_similarity(one, other, dim=0) > 0.99, name
            torch.testing.assert_close(one.norm(), other.norm(), rtol=0.03, atol=0)
            compared += 1
    assert compared > 15


def test_what_was_clamped_has_no_gradient() -> None:
    value = torch.tensor([-3.0, -0.5, 0.5, 3.0], requires_grad=True)
    real = torch.tensor([-1.0, -0.5, 0.5, 1.0])
    result = replaced(value, real, (torch.tensor(-1.0), torch.tensor(1.0)))
    assert torch.equal(result, real)
    result.sum().backward()
    assert value.grad is not None and value.grad.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_the_gradient_of_a_scale_is_that_of_lsq() -> None:
    # Esser et al. 2020, equation 3: of a value within the range the rounding error in steps,
    # beyond it the last integer; all over the root of values times levels.
    value = torch.tensor([0.3, 9.0, -9.0], requires_grad=True)
    scale = torch.tensor(0.5, requires_grad=True)
    real = torch.tensor([0.5, 3.5, -4.0])  # integers 1, 7 and -8
    bounds = torch.tensor(-4.25), torch.tensor(3.75)
    replaced(value, real, bounds, scale, 7).sum().backward()
    wanted = ((0.5 - 0.3) / 0.5 + 7 - 8) / (3 * 7) ** 0.5
    assert scale.grad is not None
    torch.testing.assert_close(scale.grad, torch.tensor(wanted))
