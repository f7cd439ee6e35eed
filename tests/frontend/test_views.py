"""Layouts: every movement of data that a view accepts moves the elements as NumPy does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.frontend.canonicalise import views
from ibert_tvm.frontend.canonicalise.views import Atom, View, ViewError

BATCH, SEQUENCE, CHANNELS = 2, 13, 24
STANDARD: View = ((Atom("batch", BATCH),), (Atom("sequence", SEQUENCE),), (Atom("channel", 24),))


def elements(view: View) -> np.ndarray:
    """The tensor that `view` describes, each element holding its canonical index."""
    atoms = views.flatten(view)
    shape = [atom.extent for atom in atoms]
    total = np.zeros(shape, np.int64)
    place = {"batch": SEQUENCE * CHANNELS, "sequence": CHANNELS}
    for axis, atom in enumerate(atoms):
        step = place.get(atom.kind, atom.stride)
        index = np.arange(atom.extent).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        total = total + index * step
    return total.reshape(views.shape_of(view))


def factorisations(size: int) -> list[list[int]]:
    """Shapes of `size` elements with up to four axes."""
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    return [
        [*head, size // int(np.prod(head))]
        for count in range(4)
        for head in itertools.product(divisors, repeat=count)
        if size % int(np.prod(head)) == 0
    ]


SHAPES = factorisations(BATCH * SEQUENCE * CHANNELS)


@given(st.lists(st.one_of(st.sampled_from(SHAPES), st.randoms(use_true_random=False)), max_size=6))
def test_views_follow_numpy(steps):
    view, array = STANDARD, np.arange(BATCH * SEQUENCE * CHANNELS).reshape(BATCH, SEQUENCE, -1)
    for step in steps:
        if isinstance(step, list):
            try:
                view = views.reshape(view, step)
            except ViewError:
                continue  # refused, and then nothing is claimed
            array = array.reshape(step)
        else:
            axes = list(range(array.ndim))
            step.shuffle(axes)
            view, array = views.permute(view, axes), array.transpose(axes)
        np.testing.assert_array_equal(elements(view), array)


def test_heads_split_and_come_back():
    view = views.reshape(STANDARD, [2, 13, 4, 6])
    assert view[2:] == ((Atom("channel", 4, 6),), (Atom("channel", 6, 1),))
    view = views.reshape(views.permute(view, [0, 2, 1, 3]), [8, 13, 6])
    assert view[0] == (Atom("batch", 2), Atom("channel", 4, 6))
    view = views.permute(views.reshape(view, [2, 4, 13, 6]), [0, 2, 1, 3])
    assert views.reshape(view, [2, 13, 24]) == STANDARD
    assert views.shape_of(views.reshape(STANDARD, [26 * 24 // 8, 8])) == (78, 8)


def test_axes_of_one_element_come_and_go():
    view = views.expand_dims(STANDARD, [1, -1])
    assert views.shape_of(view) == (2, 1, 13, 24, 1)
    assert views.squeeze(view, None) == STANDARD
    assert views.squeeze(view, [1, 4]) == STANDARD


def test_a_missing_batch_may_appear_by_broadcasting():
    positions = (*((),), *STANDARD[1:])
    assert views.broadcast(positions, (2, 13, 24), STANDARD[0]) == STANDARD


@pytest.mark.parametrize(
    "action",
    [
        lambda: views.reshape(STANDARD, [4, 156]),
        lambda: views.reshape(STANDARD, [2, 13, 5]),
        lambda: views.reshape(STANDARD, [2, 13]),
        lambda: views.squeeze(STANDARD, [0]),
        lambda: views.broadcast(STANDARD, (5, 2, 13, 24), ()),
    ],
)
def test_refusals(action, messages):
    with messages.raises(ViewError):
        action()
