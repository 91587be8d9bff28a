"""Falsified rows: those of false clients and nobody else's."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from skcfl.datasets import corrupt, make_clustered_classification

DATA = make_clustered_classification(20, 2, 3, n_samples=15, random_state=0)
IDS, CODES = np.unique(DATA.groups, return_inverse=True)


@pytest.mark.parametrize("attack", ["label_flip", "sign_flip", "noise", "scale_y", "scale_X"])
@pytest.mark.parametrize("wrap", [np.asarray, sparse.csr_array])
def test_attacks(attack, wrap):
    X, y = wrap(DATA.X), DATA.y + 1.0
    out = corrupt(X, y, DATA.groups, attack=attack, fraction=0.3, random_state=1)
    assert out.is_false.sum() == 6
    assert_array_equal(out.false, IDS[out.is_false])
    assert sparse.issparse(out.X) == sparse.issparse(X)
    new = out.X.toarray() if sparse.issparse(X) else out.X
    rows = out.is_false[CODES]
    assert_array_equal(new[~rows], DATA.X[~rows])
    assert_array_equal(out.y[~rows], y[~rows])
    if attack == "noise":
        assert_allclose((new - DATA.X)[rows].std(axis=0), 3 * DATA.X.std(axis=0), rtol=0.3)
    else:
        wanted = {"scale_X": 1e6 * DATA.X}.get(attack, DATA.X)
        assert_allclose(new[rows], wanted[rows])
    targets = {"label_flip": 3.0 - y, "sign_flip": -y, "scale_y": 1e6 * y}.get(attack, y)
    assert_array_equal(out.y[rows], targets[rows])
    again = corrupt(X, y, DATA.groups, attack=attack, fraction=0.3, random_state=1)
    assert_array_equal(again.is_false, out.is_false)


def test_strength_and_strings():
    names = np.array(["no", "yes"])[DATA.y]
    out = corrupt(DATA.X, names, DATA.groups, random_state=0)
    rows = out.is_false[CODES]
    assert (out.y[rows] != names[rows]).all()
    out = corrupt(DATA.X, DATA.y, DATA.groups, attack="scale_X", strength=2.0, random_state=0)
    assert_allclose(out.X[rows], 2 * DATA.X[rows])


def test_ids_of_any_type_are_corrupted():
    pairs = [(str(one), 1) for one in DATA.groups]
    found = corrupt(DATA.X, DATA.y, pairs, fraction=0.5, random_state=0)
    assert len(found.false) == 10 and all(isinstance(one, tuple) for one in found.false)


N = len(DATA.y)
DATES = np.full(N, np.datetime64("2020-01-01"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attack": "none"}, "attack"),
        ({"fraction": 1.5}, "fraction"),
        ({"strength": -1.0}, "strength"),
        ({"groups": DATA.groups[1:]}, "one id per row"),
        ({"groups": [None, *DATA.groups[1:]]}, "groups must name a client"),
        ({"y": DATA.y[:-1]}, rf"y must have one class per row, {N}, got shape \({N - 1},\)"),
        ({"y": [None] * N}, "y is not valid: it has missing values"),
        (
            {"y": ["1.5"] * N, "attack": "sign_flip"},
            "y must be an array of real numbers, got .*1.5",
        ),
        ({"y": DATES, "attack": "scale_y"}, "y must be an array of real numbers, got .*2020"),
        ({"y": np.c_[DATA.y], "attack": "scale_y"}, rf"y must have shape \({N},\), got \({N}, 1"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        corrupt(**{"X": DATA.X, "y": DATA.y, "groups": DATA.groups, **changes})
