"""Record-level privacy: second moments with noise, pseudo-rows, fits to these, and sites."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from private_clients import BOUNDS, schools, where
from site_tables import Given, Wire
from sklearn.metrics import r2_score
from trials import examples

import skcfl
from skcfl import FedAvgRegressor, PartialPoolingRegressor
from skcfl.exceptions import FederationError, PrivacyError
from skcfl.federation import ClientPrivacy, FanOutFederation, InProcessFederation, SitePolicy
from skcfl.federation.hosted_parts import Host
from skcfl.federation.journal import Journal
from skcfl.federation.released import clipped_rows, kept_release, pseudo_rows
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.sites import Refused
from skcfl.models import LinearModel
from skcfl.numerics.gaussian_mechanism import multiplier_of

PLAIN = {"fit_intercept": False, "standardize": False}
pytestmark = pytest.mark.filterwarnings("ignore:No answer of site")


DATA, TEST = schools()


def released(epsilon=4.0, **how):
    how = {"random_state": 0} | how
    return InProcessFederation(*DATA).released(epsilon, bounds=BOUNDS, **how)


@given(st.lists(st.floats(-1e150, 1e150), min_size=4, max_size=4))
@examples(35)
def test_no_record_moves_a_matrix_by_more_than_its_bound(row):
    Z, bound = clipped_rows(np.array([row]))
    assert np.linalg.norm(Z.T @ Z) <= bound**2 * (1 + 1e-9)
    assert_allclose(bound, 1.3 * 2.0)


def test_noise_has_the_standard_deviation_that_was_promised():
    exact = released(1e12).moments[0]
    draws = np.array([released(2.0, random_state=k).moments[0] for k in range(20)]) - exact
    sd = multiplier_of(2.0, 1e-5) * 1.3**2 * 4
    diagonal = draws[..., np.arange(4), np.arange(4)]
    beside = draws[..., 0, 1]
    assert abs(diagonal.std() / sd - 1) < 6 / np.sqrt(2 * diagonal.size)
    assert abs(beside.std() / (sd / np.sqrt(2)) - 1) < 6 / np.sqrt(2 * beside.size)
    assert_array_equal(draws, np.swapaxes(draws, -1, -2))
    assert_allclose(released(2.0).noise, sd)
    # The last bits of floats would show more than the noise hides.
    steps = released(2.0).moments / 2.0 ** np.floor(np.log2(sd / 1024))
    assert_array_equal(steps, np.round(steps))


def test_pseudo_rows_have_the_second_moments_of_the_matrix():
    A = released(2.0).moments[0]
    rows, weights = pseudo_rows(A)
    values, vectors = np.linalg.eigh(A)
    positive = np.einsum("iab,ib,icb->iac", vectors, np.maximum(values, 0), vectors)
    found = np.einsum("ir,ira,irb->iab", weights, rows, rows)
    assert_allclose(found, positive, atol=1e-8)
    assert (weights > 0).all()


def test_without_noise_fits_are_those_of_the_rows():
    exact = released(1e12)
    X = exact.design(DATA[0])
    inside = np.linalg.norm(np.column_stack([X, DATA[1]]), axis=1) < 1.3 * 2
    data = DATA[0][inside], DATA[1][inside], DATA[2][inside]
    federation = InProcessFederation(*data).released(1e12, bounds=BOUNDS, random_state=0)
    found = FedAvgRegressor(alpha=0.0, **PLAIN).fit_federation(federation)
    plain = FedAvgRegressor(alpha=0.0, **PLAIN).fit(X[inside], data[1], groups=data[2])
    assert_allclose(found.cluster_coef_, plain.cluster_coef_, atol=1e-3)


@pytest.mark.parametrize("name", ["Ditto", "IFCA", "ConvexClusteredFL"])
def test_quadratic_methods_run_unchanged(name):
    cls = getattr(skcfl, f"{name}Regressor")
    known = cls().get_params()
    how = {"n_clusters": 2, "lam": 0.1, "random_state": 0, "alpha": 1e-3}
    model = cls(**{k: v for k, v in how.items() if k in known}, **PLAIN)
    federation = released(4.0)
    model.fit_federation(federation)
    predicted = federation.target(model.predict(federation.design(TEST[0]), groups=TEST[2]))
    assert r2_score(TEST[1], predicted) > 0.35


@pytest.mark.parametrize(
    "model",
    [
        skcfl.GTVRegressor(search=skcfl.LamSearch(cv=3, lams=[0.1, 1.0]), **PLAIN),
        skcfl.DittoRegressor(**PLAIN),
        skcfl.IFCARegressor(**PLAIN),
        skcfl.PerFedAvgRegressor(**PLAIN),
    ],
)
def test_pseudo_rows_are_not_held_out(model):
    with pytest.raises(ValueError, match="no rows to hold out.*release with n_folds"):
        model.fit_federation(released())


def test_fits_to_released_moments_go_on_from_a_checkpoint(tmp_path, monkeypatch):
    path, model = tmp_path / "fit", skcfl.IFCARegressor(2, random_state=0, **PLAIN)
    wanted = model.fit_federation(released()).params_
    with monkeypatch.context() as killed:
        killed.setattr(Journal, "take", lambda self, key: 1 / (self.n_added < 5) and None)
        with pytest.raises(ZeroDivisionError):
            model.fit_federation(released(), path)
    model.fit_federation(released(), path, resume=True)
    assert_array_equal(model.params_, wanted)
    assert not path.exists()


def test_partial_pooling_knows_the_noise():
    plain = PartialPoolingRegressor(1, basis="linear").fit(*DATA[:2], groups=DATA[2])
    wanted = plain.score(*TEST[:2], groups=TEST[2])
    how = {"covariance": "diag", "df": np.inf, "basis": "linear", **PLAIN}
    for epsilon, lost in ((1.0, 0.25), (4.0, 0.05)):
        federation, scores = released(epsilon), []
        for rows, more in ((federation.pooled(), {"dispersion": 1.0}), (federation, {})):
            model = PartialPoolingRegressor(1, **how, **more).fit_federation(rows)
            predicted = model.predict(federation.design(TEST[0]), groups=TEST[2])
            scores.append(r2_score(TEST[1], federation.target(predicted)))
        assert scores[0] > wanted - lost
        # A model that takes noise for differences between clients falls behind or collapses.
        assert scores[0] > scores[1] - 0.01
    assert wanted > 0.6


@pytest.mark.reports
def test_folds_add_up():
    federation = released(8.0, n_folds=3)
    assert federation.n_folds == 3
    total = federation.moments.sum(axis=0)
    for k in range(3):
        train, held_out = federation.train(k), federation.held_out(k)
        assert (train.n_folds, held_out.n_folds) == (2, 1)
        both = train.moments.sum(axis=0) + held_out.moments.sum(axis=0)
        assert_allclose(both, total)
    model = FedAvgRegressor(**PLAIN).fit_federation(federation.train(0))
    assert model.cluster_coef_.shape == (1, 3)
    # Pseudo-rows are not tested.
    report = model.report()
    assert np.isnan(report.findings["p_no_difference"])
    assert "need rows, not released second moments" in str(report)


def test_units_are_those_of_the_bounds(monkeypatch):
    # Noise depends on the features.
    monkeypatch.setattr(InProcessFederation, "_noise_rng", lambda *_: np.random.default_rng(0))
    bounds = {"features": ([-2, 8], [2, 16]), "target": (90, 110)}
    X = DATA[0] * [1.0, 2.0] + [0.0, 12.0]
    y = 100 + 5 * DATA[1]
    other = InProcessFederation(X, y, DATA[2]).released(4.0, bounds=bounds, random_state=0)
    assert_allclose(other.moments, released(4.0).moments, atol=1e-8)
    assert_allclose(other.target(np.array([0.0, 1.0])), [100, 105])
    assert_allclose(other.design(X)[:, 1:], DATA[0], atol=1e-12)


@pytest.mark.parametrize(
    "model",
    [
        FedAvgRegressor(),
        FedAvgRegressor(fit_intercept=False),
        FedAvgRegressor(loss="huber", **PLAIN),
        FedAvgRegressor(hidden_layer_sizes=(3,)),
    ],
)
def test_models_that_need_more_than_second_moments(model):
    with pytest.raises(ValueError, match="fit_intercept=False and standardize=False"):
        model.fit_federation(released())


def test_bad_declarations():
    federation = InProcessFederation(*DATA)
    for how, message in (
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"bounds": None}, "bounds must be declared"),
        ({"bounds": {"features": (0, 1)}}, "must declare 'target'"),
        ({"n_folds": 0}, "n_folds must be an integer"),
    ):
        with pytest.raises(ValueError, match=message):
            federation.released(**({"epsilon": 1.0, "bounds": BOUNDS} | how))
    with pytest.raises(ValueError, match="dense rows in this process"):
        FanOutFederation([federation]).released(1.0, bounds=BOUNDS)
    weighted = InProcessFederation(*DATA, np.ones(len(DATA[1])))
    with pytest.raises(ValueError, match="sample_weight must be None"):
        weighted.released(1.0, bounds=BOUNDS)
    privacy = ClientPrivacy(1.0, unit="record", bounds=BOUNDS)
    with pytest.raises(ValueError, match="account must be a file"):
        SitePolicy(privacy=privacy)
    with pytest.raises(ValueError, match="epsilon must be positive and finite"):
        ClientPrivacy(np.inf, unit="record", bounds=BOUNDS, masked=3, account="file")


# ------------------------------------------------------------------------------------------- sites


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
