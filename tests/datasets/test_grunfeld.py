"""The table that comes with the package."""

import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skcfl.datasets import load_grunfeld


def test_firms_and_years():
    data = load_grunfeld()
    assert data.X.shape == (220, 2) and (data.X > 0).all() and (data.y > 0).all()
    firms, counts = np.unique(data.groups, return_counts=True)
    assert len(firms) == 11 and (counts == 20).all()
    for firm in firms:
        assert_array_equal(data.years[data.groups == firm], np.arange(1935, 1955))
    # The first and the last year of General Motors, as printed in Kleiber and Zeileis.
    motors = data.groups == "General Motors"
    assert_array_equal(data.y[motors][[0, -1]], [317.6, 1486.7])
    assert_array_equal(data.X[motors][0], [3078.5, 2.8])


def test_forms():
    data = load_grunfeld()
    X, y, groups = load_grunfeld(return_X_y_groups=True)
    assert_array_equal(X, data.X)
    assert_array_equal(y, data.y)
    assert_array_equal(groups, data.groups)
    frame = load_grunfeld(as_frame=True)
    assert list(frame.X) == ["value", "capital", "firm"]
    assert_array_equal(frame.X["firm"], data.groups)
    assert_array_equal(frame.X[data.feature_names], data.X)


def test_without_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="as_frame=True needs pandas"):
        load_grunfeld(as_frame=True)
