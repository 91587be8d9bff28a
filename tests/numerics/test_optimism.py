"""Held-out losses of models that will be fitted to more rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skcfl.numerics.optimism import with_all_rows


@pytest.mark.parametrize("p", [1, 2, 5])
@pytest.mark.parametrize("fitted", [10, 40])
def test_the_error_falls_as_one_over_the_rows(p, fitted):
    """Linear regression to first order: 1 + p / n on other rows, 1 - p / n on its own."""
    other, own, held = 1 + p / fitted, 1 - p / fitted, fitted / 4
    found = with_all_rows(np.array([other]), np.array([own]), np.array([held]), np.array([fitted]))
    assert_allclose(found, 1 + p / (fitted + held))


def test_means_of_rows_have_the_loss_of_one_row_more():
    rng = np.random.RandomState(0)
    rows = rng.standard_normal((40_000, 5))
    three, held, new = rows[:, :3].mean(axis=1), rows[:, 3], rows[:, 4]
    own = ((rows[:, :3] - three[:, None]) ** 2).mean(axis=1)
    ones = np.ones(len(rows))
    found = with_all_rows((held - three) ** 2, own, ones, 3 * ones).mean()
    assert_allclose(found, ((new - rows[:, :4].mean(axis=1)) ** 2).mean(), rtol=0.03)
    assert found < 0.96 * ((held - three) ** 2).mean()


def test_nothing_to_correct():
    """No rows to fit to, none held out, losses that are not finite."""
    losses = np.array([2.0, 3.0, np.inf, 5.0])
    own = np.array([0.0, 1.0, np.inf, 5.0])
    held, fitted = np.array([1.0, 0.0, 1.0, 1.0]), np.array([0.0, 4.0, 4.0, 4.0])
    assert_allclose(with_all_rows(losses, own, held, fitted), losses)
