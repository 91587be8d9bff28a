"""Honest places whose rows are odd answer what a server accepts: none is rejected."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from pickled_hosts import PickledHost, named

from skcfl import FedAvgClassifier, FedAvgRegressor, IFCARegressor, PartialPoolingRegressor
from skcfl.federation import InProcessFederation, SitePolicy
from skcfl.federation.bounds import EXITS, Limits
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.rows import Rows
from skcfl.models import LinearModel

K, N = 5, 20
CODES = np.repeat(np.arange(K), N)
GROUPS = np.array([f"c{i}" for i in range(K)])[CODES]


def one_host_a_client(X, y, groups):
    """A federation in which each client is at a host of its own."""
    parts = [(X[own], y[own], groups[own]) for own in groups == np.unique(groups)[:, None]]
    return RemoteFederation([PickledHost([part]) for part in named(parts)])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "estimator, zero",
    [
        (FedAvgRegressor(loss="poisson"), "y"),
        (IFCARegressor(n_clusters=2, random_state=0), "y"),
        (FedAvgClassifier(), "X"),
    ],
)
def test_zeros_only(estimator, zero):
    rng = np.random.RandomState(0)
    X = rng.normal(size=(len(CODES), 1))
    y = rng.poisson(np.exp(X[:, 0])).astype(float)
    (X if zero == "X" else y)[CODES == 2] = 0
    y = (y > 0).astype(int) if zero == "X" else y
    found = estimator.fit_federation(one_host_a_client(X, y, GROUPS)).params_
    assert_allclose(found, estimator.fit(X, y, groups=GROUPS).params_, rtol=1e-7)


@pytest.mark.parametrize("n_rows", [0, 3])
@pytest.mark.parametrize("policy", [None, SitePolicy()])
def test_types_do_not_depend_on_the_number_of_rows(n_rows, policy):
    """A part of the rows, such as a fold, may have none of a place."""
    X, y, codes = np.zeros((3, 2)), np.zeros(3, int), np.zeros(3, int)
    limits, model = Limits(np.array([3]), np.array([3.0]), 2), LinearModel("log_loss")
    federation = InProcessFederation(X, y, codes, policy=policy)
    model = model.bind(2, n_classes=2)
    (rows,) = federation.rows(model, federation.hello("classifier"))
    site = rows.site_of(model, np.arange(n_rows))
    assert site.facts()[1].dtype == float
    limits.check_facts(site.facts())
    rows = Rows(X[:n_rows], y[:n_rows], codes[:n_rows], None, np.arange(1))
    assert rows.class_totals(2).dtype == rows.capped(2.0).weights.dtype == float
    for step in ("sums", "levels", "means"):
        EXITS["moments"](rows.moments("features", step), ("features", step), limits, {})


def test_fits_in_double_precision_leave_single_precision():
    X = np.random.RandomState(0).normal(size=(len(CODES), 3)).astype(np.float32)
    y = np.sin(2 * X[:, 0])
    parts = named([(X[own], y[own], GROUPS[own]) for own in (CODES == 0, CODES == 1, CODES > 1)])
    federation = RemoteFederation([PickledHost(parts[:2]), PickledHost(parts[2:])])
    model = PartialPoolingRegressor(basis="splines", n_clusters=1).fit_federation(federation)
    assert np.isfinite(model.score_federation(federation))
    assert federation.hello().dtype == np.float32
