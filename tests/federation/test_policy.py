"""What a site agrees to, wherever it is."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skcfl import FedAvgRegressor, LocalModelsRegressor
from skcfl.datasets import make_clustered_regression
from skcfl.federation import FanOutFederation, InProcessFederation, SitePolicy
from skcfl.federation.inprocess import InProcessSite
from skcfl.federation.messages import CALLS
from skcfl.federation.policy import Guard, PolicySite
from skcfl.federation.sites import Refused
from skcfl.models import LinearModel

DATA = make_clustered_regression(4, 2, 3, n_samples=10, random_state=0)
SIZES = np.array([2, 5, 0, 9])


def site_of(policy=None):
    codes = np.repeat(np.arange(4), SIZES)
    rng = np.random.RandomState(0)
    X, y = rng.normal(size=(len(codes), 2)), rng.normal(size=len(codes))
    site = InProcessSite(LinearModel(alpha=0.1, standardize=False).bind(2), X, y, codes, 4)
    return site if policy is None else Guard(policy).wrapper()(site)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"min_rows": 0}, "min_rows must be a positive integer, got 0"),
        ({"min_rows": None}, "min_rows"),
        ({"min_rows": 2.5}, "min_rows"),
        ({"max_calls": True}, "max_calls must be a positive integer, got True"),
        ({"calls": ["losses", "rows"]}, "calls must be names of calls, .*got rows"),
        ({"calls": "everything"}, "got everything"),
    ],
)
def test_bad_policies(arguments, message):
    with pytest.raises(ValueError, match=message):
        SitePolicy(**arguments)


def test_policies_are_read():
    policy = SitePolicy(min_rows=3, calls=["losses", "assign"], max_calls=9)
    assert repr(policy) == "SitePolicy(min_rows=3, calls=['assign', 'losses'], max_calls=9)"
    assert SitePolicy(calls="losses").calls == {"losses"}


def test_clients_of_few_rows_are_silent():
    plain, site = site_of(), site_of(SitePolicy(min_rows=5))
    theta = np.ones((2, 3))
    answers = site.answer("losses", {"theta": theta})
    # One without rows says so: there is nothing to know.
    assert answers["answered"].tolist() == [False, True, True, True]
    wanted = plain.answer("losses", {"theta": theta})["losses"]
    assert_allclose(answers["losses"][1:], wanted[1:])
    assert not answers["losses"][0].any()


def test_sums_are_of_those_who_answer():
    arguments = {
        "theta": np.ones((1, 3)),
        "labels": np.zeros(4, dtype=int),
        "weights": np.ones(4),
        "damping": np.zeros(1),
        "members": np.array([4]),
    }
    site = site_of(SitePolicy(min_rows=5))
    found = site.answer("hessians", arguments)
    some = {k: v if k in ("theta", "damping", "members") else v[1:] for k, v in arguments.items()}
    wanted = site_of().subset(np.array([1, 2, 3])).answer("hessians", some)["H"]
    assert_allclose(found["H"], wanted)
    assert found["answered"].tolist() == [False, True, True, True]


def test_parts_of_rows_are_few_too():
    """A client of nine rows has three in a fold of three."""
    site = site_of(SitePolicy(min_rows=5))
    train, held = site.folds(3, 0)[0]
    assert train.answer("present", {})["answered"].tolist() == [False, False, True, True]
    assert held.answer("present", {})["answered"].tolist() == [False, False, True, False]
    train, held = site.held_out(0.3, 0)
    assert held.answer("present", {})["answered"].tolist() == [False, False, True, False]
    some = site.subset(np.array([3, 0])).penalised(0.5)
    assert some.answer("present", {})["answered"].tolist() == [True, False]
    assert (some.n_clients, some.client_sizes.tolist()) == (2, [9, 2])


def test_calls_that_are_not_agreed_to():
    site = site_of(SitePolicy(calls={"losses"}))
    theta = np.ones((1, 3))
    site.answer("losses", {"theta": theta})
    site.answer("assign", {"labels": np.zeros(4, dtype=int)})  # nothing comes up
    with pytest.raises(Refused, match="it does not answer spectrum"):
        site.answer("spectrum", {})
    # From then on the site takes no part, nor do sites made of it.
    for other in (site, site.subset(np.arange(2)), site.penalised(1.0)):
        with pytest.raises(Refused, match="spectrum"):
            other.answer("losses", {"theta": theta})


def test_calls_are_counted_in_all_fits():
    guard = Guard(SitePolicy(max_calls=3))
    first, second = (guard.wrapper()(site_of()) for _ in range(2))
    first.answer("present", {})
    first.subset(np.array([1])).answer("present", {})
    second.answer("present", {})
    for site in (first, second):
        with pytest.raises(Refused, match="it has answered max_calls=3 calls"):
            site.answer("present", {})


def test_a_policy_in_one_process():
    policy = SitePolicy(calls=set(CALLS) - {"hessians"})
    federation = InProcessFederation(DATA.X, DATA.y, DATA.groups, policy=policy)
    model = FedAvgRegressor(alpha=0.1)
    with pytest.raises(Refused, match="it does not answer hessians"):
        model.fit_federation(federation)
    assert not hasattr(model, "params_")
    wanted = LocalModelsRegressor(alpha=0.1).fit(DATA.X, DATA.y, groups=DATA.groups)
    found = LocalModelsRegressor(alpha=0.1).fit_federation(federation)
    assert_array_equal(found.params_, wanted.params_)


def test_a_policy_in_one_of_two_places():
    here = DATA.groups < np.unique(DATA.groups)[2]
    keep = here.copy()
    first = np.flatnonzero(DATA.groups == np.unique(DATA.groups)[0])
    keep[first[3:]] = False
    rows = [(DATA.X[m], DATA.y[m], DATA.groups[m]) for m in (keep, ~here)]
    parts = [
        InProcessFederation(*rows[0], policy=SitePolicy(min_rows=5)),
        InProcessFederation(*rows[1]),
    ]
    model = LocalModelsRegressor().fit_federation(FanOutFederation(parts))
    assert model.missing_clients_.tolist() == [np.unique(DATA.groups)[0]]
    with pytest.raises(Refused, match="no client has min_rows=50 rows"):
        model.fit_federation(InProcessFederation(*rows[0], policy=SitePolicy(min_rows=50)))


def test_a_policy_site_is_a_site():
    site = site_of(SitePolicy(min_rows=3))
    assert isinstance(site, PolicySite)
    assert_array_equal(site.client_sizes, SIZES)
    assert_array_equal(site.client_weights, SIZES)
    assert_array_equal(site.without_rows, SIZES == 0)
