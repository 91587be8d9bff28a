"""The unit of ``alpha="auto"``, where little is known."""

import numpy as np
import pytest

from skcfl import FedAvgRegressor, IFCARegressor, PerFedAvgRegressor


@pytest.mark.parametrize("cls", [FedAvgRegressor, IFCARegressor, PerFedAvgRegressor])
def test_few_rows_of_one_client_with_large_weights(cls):
    """Their Hessian would show them: the unit is that of no known noise."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(3, 8)), rng.normal(size=3)
    fitted = cls().fit(X, y, groups=np.zeros(3), sample_weight=[100.0, 100.0, 1.0])
    assert fitted.alpha_ == pytest.approx(1 / 201)
