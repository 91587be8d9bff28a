"""Rows that no fit takes, at private sites: they add nothing, and only the site's log says so."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from private_clients import BOUNDS, grouped, places_of
from site_tables import Given, Wire

from skcfl import FedAvgRegressor, PartialPoolingRegressor
from skcfl.calls.releases import PosteriorMoments
from skcfl.federation import ClientPrivacy, InProcessFederation, SitePolicy
from skcfl.federation.released import kept_release
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.wrong_rows import targets
from skcfl.models import LinearModel

DATA = grouped(200)
N = len(DATA[0])
WRONG = {
    "X": [np.nan, np.inf, 1e300, None, "x", 10**400],
    "y": [np.nan, None, pd.NA, "x", 10**400],
    "class": [7, 0.5, np.nan, None, pd.NA, "x", [1]],
    "weight": [-1.0, np.nan, np.inf, 1e300, 0.0, None, 10**400],
}
MODELS = {"classifier": LinearModel("log_loss", alpha=0.0), "regressor": LinearModel(alpha=0.0)}
ABOUT = dict(theta=np.zeros((1, 3)), root=np.full(3, 0.5), weights=np.ones(1))
ABOUT |= dict(dispersion=0.5, scatters=True, sizes=None)
EVERY = pytest.mark.parametrize(
    "name, value",
    [(name, value) for name, values in WRONG.items() for value in values],
    ids=lambda value: f"{value!s:.9}",
)


def rows_with(name, value, at):
    """Rows of clients, those at some places with a value that no fit takes."""
    X, y, ids = DATA
    rows = [X.copy(), (y > 0).astype(float) if name == "class" else y.copy(), ids, np.ones(N)]
    place = {"X": 0, "y": 1, "class": 1, "weight": 3}[name]
    if not isinstance(value, float):
        rows[place] = rows[place].astype(object)
    for k in np.arange(N)[at]:
        rows[place][k] = value
    return rows


def policy_of(**how):
    bounds = {**BOUNDS, "classes": [0, 1]}
    return SitePolicy(privacy=ClientPrivacy(8.0, bounds=bounds, random_state=0, **how))


@pytest.mark.parametrize("some", [[5], slice(None)], ids=["one", "all"])
@EVERY
def test_a_site_leaves_wrong_rows_out_and_says_so_in_its_log(name, value, some, caplog):
    kind = "classifier" if name == "class" else "regressor"
    federation = RemoteFederation([Wire(Given("n", rows_with(name, value, some), policy_of()))])
    hello = federation.hello(kind)
    (place,) = federation.rows(hello.bound(MODELS[kind]), hello)
    place.start("release", "posterior_moments", ABOUT, 5.0)()
    n = 1 if some == [5] else N
    assert f"{n} of {N} rows add nothing" in caplog.text


@EVERY
def test_others_rows_are_as_if_wrong_ones_were_not_there(name, value):
    kind = "classifier" if name == "class" else "regressor"
    model = MODELS[kind].bind(2)
    rows, sums = rows_with(name, value, [5, 25, 26]), []
    for some in (np.ones(N, dtype=bool), ~np.isin(np.arange(N), [5, 25, 26])):
        site = InProcessFederation(*(part[some] for part in rows), policy=policy_of())
        (place,) = site.rows(model, site.hello(kind))
        sums.append(PosteriorMoments.sums(place._clients(), ABOUT))
    for key in sums[0]:
        assert_array_equal(*(one[key] for one in sums))


@pytest.mark.parametrize(
    "classes, name",
    [(["a", "b"], "string"), ([False, True], "boolean"), ([0, 1], "Int64")],
)
def test_frames_lack_classes_of_any_type(classes, name):
    X, y, ids = DATA
    y = pd.Series(np.array(classes)[(y > 0).astype(int)], dtype=name)
    bounds, kept = {**BOUNDS, "classes": classes}, y.to_numpy(object)
    y[5] = pd.NA
    policy = SitePolicy(privacy=ClientPrivacy(8.0, bounds=bounds))
    found = InProcessFederation(X, y, ids, policy=policy)._targets("classifier")
    assert_array_equal(np.delete(found, 5), np.delete(kept, 5))


def test_masked_targets_end_the_fit():
    X, y, ids = DATA
    for kind, values in (("classifier", y > 0), ("regressor", y)):
        masked = np.ma.masked_array(values, np.arange(N) == 5)
        with pytest.raises(ValueError, match="1 masked entries"):
            InProcessFederation(X, masked, ids, policy=policy_of()).hello(kind)


def test_records_with_wrong_values_are_not_released(tmp_path):
    X, y, ids, _ = rows_with("X", np.nan, [5])
    policy = policy_of(unit="record", account=tmp_path / "release.npz")
    found = kept_release(InProcessFederation(X, y, ids, policy=policy), 1)
    assert np.isfinite(found["moments"]).all()


@pytest.mark.parametrize("loss, low, wrong", [("poisson", 0.0, -3.0), ("gamma", 0.5, 0.0)])
def test_targets_that_a_loss_does_not_take_add_nothing(loss, low, wrong):
    X, y, ids = DATA
    y, right = np.round(np.abs(y)) + 1.0, np.arange(N) != 7
    model, sums = LinearModel(loss, alpha=0.0).bind(2), []
    bounds = {"features": (-2, 2), "target": (low, 4)}
    for rows in ((X, np.where(right, y, wrong), ids), (X[right], y[right], ids[right])):
        (place,) = places_of(InProcessFederation(*rows).private(8.0, bounds=bounds), model)
        sums.append(PosteriorMoments.sums(place._clients(), ABOUT))
    for key in sums[0]:
        assert_array_equal(*(one[key] for one in sums))


@pytest.mark.parametrize("bound", [0.7, 2.5])
@pytest.mark.parametrize("model", [PartialPoolingRegressor(), FedAvgRegressor()])
def test_bounds_are_units_and_targets_beyond_them_count(model, bound):
    """They were cut off there: slopes were .43 of what they are at +-.7."""
    X, y, ids = DATA
    bounds = {"features": (-2, 2), "target": (-bound, bound)}
    private = InProcessFederation(X, y, ids).private(200.0, bounds=bounds, random_state=0)
    found = model.fit_federation(private)
    plain = PartialPoolingRegressor(1, basis="linear").fit(X, y, groups=ids)
    assert_allclose(found.cluster_coef_, plain.cluster_coef_, rtol=0.05)
    if hasattr(found, "dispersion_"):
        assert_allclose(found.dispersion_, plain.dispersion_, rtol=0.15)


def test_targets_count_as_they_are_up_to_a_million_widths():
    y = np.array([-3e6, 0.0, 3e6, 1e9])
    found, right = targets(y, "regressor", {"target": (-2, 2)}, np.float64, True)
    assert_array_equal(found, [-3e6, 0.0, 3e6, 4e6])
    assert right.all()


def test_targets_of_any_size_are_no_error():
    """Those at an overflow are cut off, wherever the bounds are."""
    X, y, ids = DATA
    for values in (np.where(np.arange(N) == 5, 1e300, y), 1e-300 * y):
        for bounds in ((-2, 2), (-1e308, 1e308), (1e90, 2e90)):
            private = InProcessFederation(X.astype(np.float32), values, ids)
            bounds = {"features": (-2, 2), "target": bounds}
            places_of(private.private(8.0, bounds=bounds))
