"""Releases about clients that are drawn for each: less noise for the same promise."""

import json
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose
from private_clients import BOUNDS, grouped, moves, places_of
from scipy.stats import norm
from sklearn import clone
from trials import some

from skcfl import FedAvgRegressor, PartialPoolingRegressor
from skcfl.calls.releases import Moves
from skcfl.exceptions import PrivacyError
from skcfl.federation import ClientPrivacy, InProcessFederation, SitePolicy
from skcfl.federation.sites import Refused
from skcfl.models import LinearModel
from skcfl.numerics.gaussian_mechanism import (
    epsilon_of,
    multiplier_of,
    sampled_epsilon,
    sampled_multiplier,
)

pytest.importorskip("dp_accounting")

DELTA = 1e-5
# Multipliers are looked for once: where any will do, they are those of five releases at an epsilon
# of 8, to each of which 40 % of the clients are drawn.
DATA = grouped(600)


def private(**how):
    how = {"epsilon": 4.0, "bounds": BOUNDS, "random_state": 0, **how}
    return InProcessFederation(*DATA).private(**how)


@pytest.mark.parametrize("z, q", [(1.0, 0.1), (0.7, 0.5)])
def test_epsilon_of_one_release_is_that_of_the_mixture(z, q):
    """The hockey-stick divergence of the two sums, with and without a client, on a grid."""
    epsilon = sampled_epsilon(z, 1, q, DELTA)

    x = np.linspace(-12 * z, 12 * z + 1, 400_001)
    without = norm.pdf(x, 0, z)
    drawn = (1 - q) * without + q * norm.pdf(x, 1, z)
    for factor, sign in ((np.exp(epsilon * 0.999), 1), (np.exp(epsilon * 1.001), -1)):
        pairs = (drawn, without), (without, drawn)
        delta = max(np.maximum(p - factor * r, 0.0).sum() for p, r in pairs) * (x[1] - x[0])
        assert sign * (delta - DELTA) > 0


def test_accounts_of_drawn_clients():
    # All clients are the case that has a closed form.
    z = multiplier_of(4.0, DELTA) * np.sqrt(40)
    assert_allclose(sampled_epsilon(z, 40, 1.0 - 1e-9, DELTA), 4.0, rtol=2e-3)
    found = [sampled_multiplier(4.0, DELTA, 40, q) for q in (0.1, 0.6)]
    assert np.all(np.diff([*found, z]) > 0)
    for each, q in zip(found, (0.1, 0.6), strict=True):
        assert 3.9 < sampled_epsilon(each, 40, q, DELTA) <= 4.0
    # Without the draws it would be a larger epsilon.
    assert epsilon_of(found[0] / np.sqrt(40), DELTA) > 8.0


@pytest.mark.parametrize("cls", some([FedAvgRegressor, PartialPoolingRegressor], 1))
def test_fits_of_drawn_clients(cls):
    guarded = private(epsilon=8.0, participation=0.4)
    short = cls(random_state=0, max_iter=10)
    model = short.fit_federation(guarded)
    assert 7.9 < model.epsilon_ <= 8.0
    # One population of lines, whose mean is that of the model for all.
    plain = FedAvgRegressor().fit(*DATA[:2], groups=DATA[2])
    assert_allclose(model.cluster_coef_, plain.cluster_coef_, atol=0.2)
    noise = model.releases_["noise"]
    whole = clone(short).fit_federation(private(epsilon=8.0))
    assert (noise < 0.8 * whole.releases_["noise"]).all()
    with pytest.raises(PrivacyError, match="spent"):
        cls().fit_federation(guarded)
    # Behind masks, too.
    guarded = private(epsilon=8.0, participation=0.4).masked(500)
    model = FedAvgRegressor(max_iter=4, random_state=0).fit_federation(guarded)
    assert_allclose(model.cluster_coef_, plain.cluster_coef_, atol=0.2)


def test_clients_are_drawn_each_by_itself():
    z = sampled_multiplier(8.0, DELTA, 5, 0.4)
    counts = []
    for seed in range(4):
        (place,) = places_of(private(epsilon=8.0, participation=0.4, random_state=seed))
        counts += [place.release("moves", moves(), z)["counts"][0] for _ in range(5)]
    noise = Moves.noise(Moves.blocks(LinearModel(alpha=0.0).bind(2), moves()), z)["counts"]
    wanted = np.sqrt(600 * 0.4 * 0.6 + noise**2)
    assert abs(np.mean(counts) - 240) < 5 * wanted / np.sqrt(20)
    assert 0.4 < np.std(counts) / wanted < 1.8


def test_accounts_take_one_multiplier_until_it_is_spent(tmp_path):
    path = tmp_path / "account.json"
    privacy = ClientPrivacy(2.0, bounds=BOUNDS, participation=0.2, account=path)
    policy = SitePolicy(privacy=privacy)
    (place,) = places_of(InProcessFederation(*DATA, policy=policy))
    z = sampled_multiplier(2.0, DELTA, 3, 0.2)
    place.release("moves", moves(), z)
    # Accounts would count one release of twice the multiplier after this one as five of it.
    for factor in (1.01, 2.0, 0.5):
        with pytest.raises(Refused, match="one multiplier"):
            place.release("moves", moves(), factor * z)
    for _ in range(2):
        place.release("moves", moves(), z)
    with pytest.raises(Refused, match=r"account is spent: .* and 2 is the limit"):
        place.release("moves", moves(), z)
    assert json.loads(path.read_text())["spent"] > 0.0
    with pytest.raises(PrivacyError, match="spent"):
        FedAvgRegressor().fit_federation(InProcessFederation(*DATA, policy=policy))


def test_bad_declarations():
    for share in (0.0, -1.0, 1.5, np.nan, True, "all"):
        with pytest.raises(ValueError, match="participation must be above 0"):
            private(participation=share)
    for more in ({"n_fits": 2}, {"unit": "record"}, {"epsilon": np.inf, "masked": 3}):
        how = {"epsilon": 1.0, "bounds": BOUNDS, "participation": 0.5, **more}
        with pytest.raises(ValueError, match="participation below 1 needs"):
            ClientPrivacy(**how)


def test_without_dp_accounting(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"skcfl\[privacy\]"):
        FedAvgRegressor().fit_federation(private(epsilon=3.21, participation=0.4))
