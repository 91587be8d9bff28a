"""Reports about clients in other places, which are asked only where the fit says so."""

import warnings

import numpy as np
import pytest
from pickled_hosts import PickledHost, named, parts_of
from site_tables import Given, Wire

from skcfl import FedAvgRegressor, PartialPoolingRegressor
from skcfl.datasets import make_clustered_regression
from skcfl.federation import ClientPrivacy, InProcessFederation, SitePolicy
from skcfl.federation.remote import RemoteFederation

DATA = make_clustered_regression(9, 3, 3, n_samples=20, random_state=0)


def hosts(**options):
    parts = named(parts_of(DATA, 3))
    return [PickledHost(parts[k::2], **options) for k in (0, 1)]


@pytest.mark.parametrize("method", [FedAvgRegressor, PartialPoolingRegressor])
def test_reports_are_those_of_one_place(method):
    model = method(random_state=0)
    here = model.fit(DATA.X, DATA.y, groups=DATA.groups)
    wanted, calls = str(here.report()), here.calls_
    there = model.fit_federation(RemoteFederation(hosts()), evidence=True)
    assert str(there.report()) == wanted
    assert there.calls_ == calls and there._how_sure.n_calls <= 20
    silent = str(model.fit_federation(RemoteFederation(hosts())).report())
    assert "evidence=True" in silent and "Not tested" in silent


def test_who_is_lost_in_the_fit_is_in_no_test():
    """The fit starts again, and the others are tested as if the host had not been there."""
    first, second = hosts()
    second.lost_after = 12
    model = PartialPoolingRegressor(1, basis="linear", covariance="diag", random_state=0)
    found = model.fit_federation(RemoteFederation([first, second]), evidence=True)
    there = ~np.isin(DATA.groups, found.missing_clients_)
    tested, asked = found._how_sure.no_difference, len(found._how_sure.clients)
    assert tested.n_clients == asked == 9 - len(found.missing_clients_) < 9
    wanted = model.fit(DATA.X[there], DATA.y[there], groups=DATA.groups[there])._how_sure
    assert tested.ratio == pytest.approx(wanted.no_difference.ratio, rel=0.1)


def test_sums_of_other_clients_are_no_test():
    """A host that dies between two sums of a test."""
    model = FedAvgRegressor(alpha=0.01)
    first, second = hosts()
    model.fit_federation(RemoteFederation([first, second]))
    in_fit = second.n_asked
    first, second = hosts()
    second.lost_after = in_fit + 3
    found = model.fit_federation(RemoteFederation([first, second]), evidence=True)
    assert found.missing_clients_.size == 0
    assert "some of the clients did not answer" in str(found.report())


def test_who_is_silent_once_is_asked_again():
    """A message of the tests is lost, and the next one is answered."""
    model = FedAvgRegressor(alpha=0.01)

    def wires():
        north = np.isin(DATA.groups, np.unique(DATA.groups)[:4])
        made = [("north", north), ("south", ~north)]
        return [
            Wire(Given(name, (DATA.X[here], DATA.y[here], DATA.groups[here])))
            for name, here in made
        ]

    found, sites = [], wires()
    model.fit_federation(RemoteFederation(sites))
    for lost in (None, sites[1].messages + 4):
        sites = wires()
        sites[1].fails = lambda number, lost=lost: (
            ConnectionError("refused") if number == lost else None
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = model.fit_federation(RemoteFederation(sites), evidence=True)
        found.append(fitted.report().findings["p_no_difference"])
    assert found[0] == found[1] < 0.01


def test_who_is_private_is_not_asked():
    bounds = {"features": (-3, 3), "target": (-9, 9)}
    policy = SitePolicy(privacy=ClientPrivacy(5.0, bounds=bounds))
    private = InProcessFederation(DATA.X, DATA.y, DATA.groups, policy=policy)
    with pytest.raises(ValueError, match="evidence must be False where clients are private"):
        FedAvgRegressor(alpha=0.01).fit_federation(private, evidence=True)
