"""A cap on the weight that clients declare: no client has more than a share of the total."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from private_clients import where
from site_tables import REGRESSION, Given, Wire, named

from skcfl import FedAvgRegressor
from skcfl.federation import ClientPrivacy, FanOutFederation, InProcessFederation, SitePolicy
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.shares import largest_weight

HEAVY = np.unique(named())[3]
WEIGHTS = np.where(named() == HEAVY, 1e12, 1.0)
SHARE = 0.25


def test_no_share_is_larger_and_the_light_clients_keep_their_weights():
    rng = np.random.RandomState(0)
    for _ in range(500):
        n = rng.randint(1, 9)
        weights = np.exp(rng.normal(size=n) * rng.uniform(0, 20)) * (rng.uniform(size=n) < 0.9)
        n_heavy = int((weights > 0).sum())
        if n_heavy == 0:
            continue
        share = 1 / n_heavy if rng.uniform() < 0.2 else rng.uniform(1 / n_heavy, 1)
        most = largest_weight(weights, share)
        kept = np.minimum(weights, most)
        assert kept.max() <= share * kept.sum() * (1 + 1e-9)
        if weights[weights > 0].min() * (1 + 1e-9) < most < weights.max() * (1 - 1e-9):
            assert kept.max() >= share * kept.sum() * (1 - 1e-9)  # and no lower than needed


def capped_rows():
    """The rows as they would be if the heavy client had a share of a quarter."""
    heavy = WEIGHTS > 1.0
    return np.where(heavy, (~heavy).sum() / heavy.sum() * SHARE / (1 - SHARE), 1.0)


def places(kind, **options):
    rows = REGRESSION.X, REGRESSION.y, named(), WEIGHTS
    if kind == "one":
        return InProcessFederation(*rows, **options)
    north = np.char.startswith(named(), "north/")
    parts = {"north": where(rows, north), "south": where(rows, ~north)}
    if kind == "two":
        whole = [InProcessFederation(*part) for part in parts.values()]
        return FanOutFederation(whole, **options)
    bare = [(X, y, np.char.partition(ids, "/")[:, 2], w) for X, y, ids, w in parts.values()]
    sites = [Wire(Given(*part)) for part in zip(parts, bare, strict=True)]
    return RemoteFederation(sites, **options)


@pytest.mark.parametrize("kind", ["one", "two", "remote"])
def test_a_heavy_client_counts_as_much_as_it_may(kind):
    model, rows = FedAvgRegressor(alpha=0.01), (REGRESSION.X, REGRESSION.y, named())
    free = model.fit_federation(places(kind)).params_[0]
    X, y, groups = where(rows, WEIGHTS > 1.0)
    decides = model.fit(X, y, groups=groups).params_[0]  # by itself
    assert_allclose(free, decides, rtol=1e-6)
    found = model.fit_federation(places(kind, max_share=SHARE))
    assert found.missing_clients_.size == 0
    params = found.params_
    # Caps that nobody reaches change nothing.
    assert_array_equal(model.fit_federation(places(kind, max_share=1.0)).params_[0], free)
    model.fit(*rows[:2], groups=rows[2], sample_weight=capped_rows())
    assert_allclose(params, model.params_, rtol=1e-9)


@pytest.mark.parametrize("share", [0, -0.1, 1.5, "1", np.nan, True])
def test_bad_shares(share):
    for make in (
        lambda: InProcessFederation(np.eye(2), np.ones(2), [0, 1], max_share=share),
        lambda: FanOutFederation([places("one")], max_share=share),
        lambda: RemoteFederation([], max_share=share),
    ):
        with pytest.raises(ValueError, match="max_share must be a number above 0 and up to 1"):
            make()
    with pytest.raises(ValueError, match="max_share=0.1 is too small for 6 clients"):
        FedAvgRegressor().fit_federation(places("one", max_share=0.1))


def test_a_site_answers_under_one_cap_that_few_clients_reach():
    """The difference of sums under two caps is about the clients that they change."""
    X, ids = np.random.RandomState(0).normal(size=(60, 2)), np.repeat(np.arange(6), 10)
    weights = np.array([1.0, 1, 1, 2, 3, 4])[ids]
    policy = SitePolicy(min_clients=2)
    model = FedAvgRegressor(alpha=0.01)

    def fit(federation, share):
        federation.max_share = share
        return model.fit_federation(federation)

    federation = InProcessFederation(X, X[:, 0], ids, weights, policy=policy)
    with pytest.raises(Exception, match="1 of its clients, fewer than min_clients=2"):
        fit(federation, 0.3)  # of the heaviest alone
    fit(federation, 0.2)
    fit(federation, 0.2)
    with pytest.raises(Exception, match="weights that have another cap"):
        fit(federation, 0.19)


@pytest.mark.parametrize("where_from", ["here", "sites", "folds"])
def test_released_second_moments_keep_the_limits_of_their_federation(where_from, tmp_path):
    X, ids = np.random.RandomState(0).choice([-1.0, 1.0], (640, 2)), np.repeat(np.arange(4), 160)
    ids[ids == 1] = 0  # half of the rows are one client's
    y = np.where(ids == 0, 1.0, -1.0) * X[:, 0]
    bounds = {"features": (-2, 2), "target": (-2, 2)}
    if where_from == "sites":
        how = {"epsilon": 1e9, "unit": "record", "bounds": bounds}
        federation = RemoteFederation(
            [
                Wire(Given(name, where((X, y, ids), here), SitePolicy(privacy=privacy)))
                for name, here in (("a", ids == 0), ("b", ids > 0))
                for privacy in [ClientPrivacy(account=tmp_path / name, **how)]
            ],
            max_share=0.4,
        )
        released = federation.released()
    else:
        federation = InProcessFederation(X, y, ids, max_share=0.4, min_clients=2)
        released = federation.released(1e9, bounds=bounds, n_folds=1 + (where_from == "folds"))
    if where_from == "folds":
        released = released.train(0)
    assert (released.min_clients, released.max_share) == (federation.min_clients, 0.4)
    options = {"alpha": 0.0, "fit_intercept": False, "standardize": False}
    found = FedAvgRegressor(**options).fit_federation(released).cluster_coef_[0, 1]
    # Shares of .4 and .6 of clients with slopes of 1 and -1.
    assert_allclose(found, -0.2, atol=0.05)
    with pytest.raises(ValueError, match=r"max_share must be None for pooled\(\), got 0.4"):
        released.pooled()
    released.max_share = None
    assert released.pooled().min_clients == federation.min_clients


@pytest.mark.parametrize("limit", [{"max_share": 0.5}, {"min_clients": 3}])
def test_parts_have_no_limits_of_their_own(limit):
    (name,) = limit
    with pytest.raises(ValueError, match=f"part 1 has {name}=.* set it on the FanOutFederation"):
        FanOutFederation([places("one"), places("one", **limit)])
