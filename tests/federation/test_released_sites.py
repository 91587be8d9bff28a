"""Record-level releases of sites: drawn once, kept at the site, and joined at the server."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skcfl import FedAvgRegressor, PartialPoolingRegressor
from skcfl.exceptions import FederationError, PrivacyError
from skcfl.federation import ClientPrivacy, InProcessFederation, SitePolicy, SiteRows
from skcfl.federation.host import SiteHost
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.sites import Refused
from skcfl.federation.wire import WireTransport
from skcfl.models import LinearModel

BOUNDS = {"features": (-2, 2), "target": (-2, 2)}
PLAIN = {"fit_intercept": False, "standardize": False}
pytestmark = pytest.mark.filterwarnings("ignore:No answer of site")


def schools(n_clients=30, n_rows=80, seed=0):
    rng = np.random.default_rng(seed)
    theta = np.array([0.6, -0.4, 0.1]) + 0.3 * rng.standard_normal((n_clients, 3))
    ids = np.repeat(np.arange(n_clients), n_rows)
    X = rng.standard_normal((len(ids), 2))
    y = (np.column_stack([X, np.ones(len(X))]) * theta[ids]).sum(axis=1)
    return X, y + 0.6 * rng.standard_normal(len(ids)), ids


DATA = schools()


class Table(SiteRows):
    """Half of the schools at each site."""

    def __init__(self, name, folder, **how):
        super().__init__(name)
        how = {"epsilon": 8.0, "unit": "record", "bounds": BOUNDS, **how}
        account = folder / f"{name}.npz"
        self.policy = SitePolicy(privacy=ClientPrivacy(account=account, **how))

    def load(self):
        some = (DATA[2] % 2 == 0) == (self.name == "even")
        return tuple(values[some] for values in DATA)


class Wire(WireTransport):
    """Messages of this process, as bytes."""

    def __init__(self, rows):
        super().__init__(rows.name)
        self.host = SiteHost(rows)

    def send(self, message):
        reply = self.host.handle(message)
        return lambda: reply


def sites(folder, **how):
    return RemoteFederation([Wire(Table(name, folder, **how)) for name in ("even", "odd")])


def test_sites_release_what_one_process_does(tmp_path):
    released = sites(tmp_path, epsilon=1e9).released()
    whole = InProcessFederation(*DATA).released(1e9, bounds=BOUNDS)
    assert len(released.ids) == 30
    assert_allclose(released.noise, whole.noise)
    order = np.argsort(np.argsort([f"{'even' if k % 2 == 0 else 'odd'}/{k}" for k in range(30)]))
    assert_allclose(released.moments[:, order], whole.moments, rtol=1e-6, atol=1e-3)
    for model, one, other in (
        (FedAvgRegressor(alpha=1e-4, **PLAIN), released, whole),
        (
            PartialPoolingRegressor(1, dispersion=1.0, df=np.inf, basis="linear", **PLAIN),
            released.pooled(),
            whole.pooled(),
        ),
    ):
        found = model.fit_federation(one).cluster_coef_
        assert_allclose(found, model.fit_federation(other).cluster_coef_, atol=1e-3)


def test_a_release_is_drawn_once(tmp_path):
    first, second = (sites(tmp_path).released(n_folds=2) for _ in range(2))
    assert_array_equal(first.moments, second.moments)
    assert first.epsilon == 8.0
    with pytest.raises(PrivacyError, match="other folds, and does so once"):
        sites(tmp_path).released()
    with pytest.raises(PrivacyError, match="under other terms"):
        sites(tmp_path, epsilon=4.0).released(n_folds=2)
    with pytest.raises(PrivacyError, match="under other terms"):
        sites(tmp_path, bounds={**BOUNDS, "target": (-3, 3)}).released(n_folds=2)
    # Other noise than that of another file; a few of the rounded numbers may be the same.
    (tmp_path / "other").mkdir()
    other = sites(tmp_path / "other").released(n_folds=2)
    assert (other.moments != first.moments).mean() > 0.9


def test_jobs_at_the_same_time_get_one_release(tmp_path):
    with ThreadPoolExecutor(3) as jobs:
        made = list(jobs.map(lambda _: sites(tmp_path).released(), range(3)))
    for other in made[1:]:
        assert_array_equal(other.moments, made[0].moments)


def test_sites_that_release_records_answer_nothing_else(tmp_path):
    with pytest.raises(FederationError, match="answers nothing else"):
        FedAvgRegressor().fit_federation(sites(tmp_path))
    federation = InProcessFederation(*DATA, policy=Table("even", tmp_path).policy)
    with pytest.raises(Refused, match="answers nothing else"):
        FedAvgRegressor().fit_federation(federation)
    # A server that skips the hello.
    model, hello = LinearModel().bind(2), InProcessFederation(*DATA).hello("regressor")
    with pytest.raises(Refused, match="answers nothing else"):
        federation.rows(model, hello)
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="account must be a file"):
        SitePolicy(privacy=ClientPrivacy(4.0, unit="record", bounds=BOUNDS))
    with pytest.raises(ValueError, match="epsilon and bounds must be given"):
        InProcessFederation(*DATA).released()
    ways = [Wire(Table(name, tmp_path)) for name in ("even", "odd")]
    ways[1].host = SiteHost(Table("odd", tmp_path, epsilon=2.0))
    with pytest.raises(PrivacyError, match="same epsilon, delta and bounds"):
        RemoteFederation(ways).released()
    ways[1].host.rows.policy = None
    open_site = Wire(Table("odd", tmp_path))
    open_site.host = SiteHost(type("Open", (Table,), {})("odd", tmp_path))
    open_site.host._host._kept[0]._policy = None
    with pytest.raises(PrivacyError, match="declares no release of records"):
        RemoteFederation([open_site]).released()


LIES = {
    "names of another site": ({"ids": np.array([f"odd/{k}" for k in range(15)])}, "do not begin"),
    "no names": ({"ids": np.zeros(0, "U1"), "moments": np.zeros((1, 0, 4, 4))}, "no clients"),
    "huge numbers": ({"moments": np.full((1, 15, 4, 4), 1e308)}, "too large, or NaN"),
    "other features": ({"moments": np.zeros((1, 15, 5, 5))}, "must have the same features"),
    "no bounds": ({"features": None}, "must declare the same"),
}


def lying(folder, **lie):
    ways = [Wire(Table(name, folder)) for name in ("even", "odd")]
    root = ways[0].host._host._kept[0]
    released = root.released
    root.released = lambda n_folds: [{**part, **lie} for part in released(n_folds)]
    return RemoteFederation(ways)


@pytest.mark.parametrize("lie", LIES)
def test_lies_of_a_site_are_an_error(lie, tmp_path):
    change, message = LIES[lie]
    with pytest.raises(PrivacyError, match=message):
        lying(tmp_path, **change).released()


def test_a_site_does_not_choose_what_the_noise_of_all_is(tmp_path):
    honest = sites(tmp_path).released()
    for noise in (0.0, 1e9, np.nan, "none"):
        assert_allclose(lying(tmp_path, noise=noise).released().noise, honest.noise)
