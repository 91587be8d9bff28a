"""Columns and rows of matrices."""

import numpy as np
import pytest

from skcfl.numerics.matrices import columns_of, count_different


@pytest.mark.parametrize("places", [[0], [4], [1, 2, 3], [0, 1, 2, 3, 4], [0, 2], [1, 4], []])
def test_columns_of_a_mask(places):
    mask = np.zeros(5, dtype=bool)
    mask[places] = True
    columns, W = columns_of(mask), np.arange(10.0).reshape(2, 5)
    np.testing.assert_array_equal(W[:, columns], W[:, mask])
    in_a_row = len(places) > 0 and places[-1] - places[0] < len(places)
    assert isinstance(columns, slice) == in_a_row
    assert np.shares_memory(W[:, columns], W) == in_a_row


def test_different_rows():
    rng = np.random.RandomState(0)
    rows = rng.randint(3, size=(40, 2)).astype(float)
    rows[rows == 0] *= rng.choice([-1.0, 1.0], size=np.count_nonzero(rows == 0))
    for some in (rows, rows.T, rows[:, ::-1], rows.astype(np.float32), rows[:0]):
        assert count_different(some) == len(np.unique(some, axis=0))
