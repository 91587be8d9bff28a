"""Record-level releases of sites: drawn once, kept at the site, and joined at the server."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from private_clients import BOUNDS, schools, where
from site_tables import Given, Wire

from skcfl import FedAvgRegressor, PartialPoolingRegressor
from skcfl.exceptions import FederationError, PrivacyError
from skcfl.federation import ClientPrivacy, InProcessFederation, SitePolicy
from skcfl.federation.hosted_parts import Host
from skcfl.federation.released import kept_release
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.sites import Refused
from skcfl.models import LinearModel

PLAIN = {"fit_intercept": False, "standardize": False}
pytestmark = pytest.mark.filterwarnings("ignore:No answer of site")


DATA = schools()[0]


PARTS = {name: where(DATA, DATA[2] % 2 == k) for k, name in enumerate(("even", "odd"))}


def policy(folder, name, **how):
    how = {"epsilon": 8.0, "unit": "record", "bounds": BOUNDS, **how}
    return SitePolicy(privacy=ClientPrivacy(account=folder / f"{name}.npz", **how))


def test_sites_with_the_same_seed_draw_noise_of_their_own(tmp_path):
    how = {"epsilon": 0.01, "random_state": 0}
    sites = [InProcessFederation(*PARTS[k], policy=policy(tmp_path, k, **how)) for k in PARTS]
    noise = [kept_release(site, 1)["moments"].ravel() for site in sites]
    assert abs(np.corrcoef(*noise)[0, 1]) < 0.4


def wires(folder, **how):
    """Half of the schools at each site."""
    return [Wire(Given(name, PARTS[name], policy(folder, name, **how))) for name in PARTS]


def sites(folder, **how):
    return RemoteFederation(wires(folder, **how))


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
    with ThreadPoolExecutor(3) as jobs:  # jobs at the same time
        made = list(jobs.map(lambda _: sites(tmp_path).released(n_folds=2), range(3)))
    first = made[0]
    for other in (*made[1:], sites(tmp_path).released(n_folds=2)):
        assert_array_equal(other.moments, first.moments)
    assert first.epsilon == 8.0
    with pytest.raises(PrivacyError, match="other folds, and does so once"):
        sites(tmp_path).released()
    for other in ({"epsilon": 4.0}, {"bounds": {**BOUNDS, "target": (-3, 3)}}):
        with pytest.raises(PrivacyError, match="under other terms"):
            sites(tmp_path, **other).released(n_folds=2)
    # Other noise than that of another file; a few of the rounded numbers may be the same.
    (tmp_path / "other").mkdir()
    other = sites(tmp_path / "other").released(n_folds=2)
    assert (other.moments != first.moments).mean() > 0.9


def test_a_worker_with_several_parts_spends_nothing(tmp_path):
    """Its account is of one release, which would be the second part's, too."""
    parts = [(k, name, PARTS[name]) for k, name in enumerate(PARTS)]
    host = Host(parts, policy=policy(tmp_path, "all"))
    status, error = host.ask(0, [], [], "released", (1,))
    assert status == "error" and isinstance(error, Refused) and "2 parts" in str(error)
    assert not list(tmp_path.iterdir())


def test_text_ids_of_a_table_are_released(tmp_path):
    X, y, schools = PARTS["even"]
    made = [
        kept_release(InProcessFederation(X, y, ids, policy=policy(tmp_path, "even")), 1)
        for ids in (schools.astype(str).astype(object), schools.astype(str))
    ]
    assert_array_equal(made[0]["ids"], np.unique(schools.astype(str)))
    assert_array_equal(made[0]["moments"], made[1]["moments"])


def test_sites_that_release_records_answer_nothing_else(tmp_path):
    with pytest.raises(FederationError, match="answers nothing else"):
        FedAvgRegressor().fit_federation(sites(tmp_path))
    federation = InProcessFederation(*DATA, policy=policy(tmp_path, "even"))
    with pytest.raises(Refused, match="answers nothing else"):
        FedAvgRegressor().fit_federation(federation)
    # A server that skips the hello.
    model, hello = LinearModel().bind(2), InProcessFederation(*DATA).hello("regressor")
    with pytest.raises(Refused, match="answers nothing else"):
        federation.rows(model, hello)
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="epsilon and bounds must be given"):
        InProcessFederation(*DATA).released()
    other = Wire(Given("odd", PARTS["odd"], policy(tmp_path, "odd", epsilon=2.0)))
    with pytest.raises(PrivacyError, match="same epsilon, delta and bounds"):
        RemoteFederation([wires(tmp_path)[0], other]).released()
    with pytest.raises(PrivacyError, match="declares no release of records"):
        RemoteFederation([Wire(Given("odd", PARTS["odd"]))]).released()


LIES = {
    "names of another site": ({"ids": np.array([f"odd/{k}" for k in range(15)])}, "do not begin"),
    "no names": ({"ids": np.zeros(0, "U1"), "moments": np.zeros((1, 0, 4, 4))}, "no clients"),
    "huge numbers": ({"moments": np.full((1, 15, 4, 4), 1e308)}, "too large, or NaN"),
    "other features": ({"moments": np.zeros((1, 15, 5, 5))}, "must have the same features"),
    "no bounds": ({"features": None}, "must declare the same"),
}


def lying(folder, **lie):
    ways = wires(folder)
    root = ways[0].host._host._kept[0]
    released = root.released
    root.released = lambda n_folds: [{**part, **lie} for part in released(n_folds)]
    return RemoteFederation(ways)


@pytest.mark.parametrize("lie", LIES)
def test_lies_of_a_site_are_an_error(lie, tmp_path):
    change, message = LIES[lie]
    with pytest.raises(PrivacyError, match=message):
        lying(tmp_path, **change).released()
    # Nor does a site choose what the noise of all is.
    honest = sites(tmp_path).released()
    for noise in (0.0, np.nan, "none"):
        assert_allclose(lying(tmp_path, noise=noise).released().noise, honest.noise)
