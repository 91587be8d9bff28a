"""Client-level privacy: the account, bounds of what clients add, noise, hostile servers."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import PickledHost, named
from private_clients import BOUNDS, halves, places_of, where
from site_tables import Given, Wire
from sklearn.base import clone
from trials import examples, some

import skcfl
from skcfl import FedAvgRegressor, PartialPoolingClassifier, PartialPoolingRegressor
from skcfl.base.of_clients import PRIVATE_METHODS
from skcfl.calls.releases import (
    Block,
    Moves,
    PosteriorMoments,
    PosteriorSpread,
    SharedMoves,
    StartScores,
    clipped_sums,
)
from skcfl.exceptions import FederationError, PrivacyError, PrivacyWarning
from skcfl.federation import (
    ClientPrivacy,
    FanOutFederation,
    Faults,
    InProcessFederation,
    SitePolicy,
    fit_report,
)
from skcfl.federation.privacy import Account
from skcfl.federation.private_sums import Releases
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.serialization import dumps, loads
from skcfl.federation.sites import Refused
from skcfl.models import LinearModel
from skcfl.numerics.gaussian_mechanism import delta_of, epsilon_of, multiplier_of
from skcfl.pooling.private_population import spread_of_clients


def grouped(n_clients=200, n_rows=10, n_features=3, seed=0, loss="squared_error"):
    """Rows of clients with a continuum of coefficients, to fit and to judge."""
    rng = np.random.default_rng(seed)
    beta = np.array([0.6, -0.4, 0.3, 0.2][: n_features + 1])
    theta = beta + 0.4 * rng.standard_normal((n_clients, n_features + 1))

    def rows():
        ids = np.repeat(np.arange(n_clients), n_rows)
        X = rng.standard_normal((len(ids), n_features))
        z = theta[ids, -1] + (X * theta[ids, :-1]).sum(axis=1)
        if loss == "log_loss":
            return X, (rng.random(len(z)) < 1 / (1 + np.exp(-2 * z))).astype(int), ids
        if loss == "poisson":
            return X, rng.poisson(np.exp(z)).astype(float), ids
        if loss == "gamma":
            return X, np.exp(z) * rng.gamma(4.0, 0.25, len(z)), ids
        return X, z + 0.5 * rng.standard_normal(len(z)), ids

    return rows(), rows()


DATA, TEST = grouped()


def line_of(cls=PartialPoolingRegressor, data=DATA, **parameters):
    """The fit of one population of lines to all rows, as private clients have it."""
    return cls(1, basis="linear", **parameters).fit(*data[:2], groups=data[2])


def private(epsilon=4.0, data=DATA, bounds=BOUNDS, **how):
    how = {"random_state": 0} | how
    return InProcessFederation(*data).private(epsilon, bounds=bounds, **how)


# ------------------------------------------------------------------------------ accounting


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-9), (1.0, 1e-5), (20.0, 1e-3)])
def test_multiplier_and_epsilon_are_inverse(epsilon, delta):
    z = multiplier_of(epsilon, delta)
    assert_allclose(delta_of(epsilon, z), delta, rtol=1e-6)
    assert_allclose(epsilon_of(z, delta), epsilon, rtol=1e-6)
    # Nothing released costs nothing.
    assert epsilon_of(np.inf, delta) == epsilon_of(1e6, 1e-5) == multiplier_of(np.inf, delta) == 0
    assert epsilon_of(0.0, delta) == np.inf


@pytest.mark.parametrize("epsilon, n_releases", [(1.0, 5), (8.0, 8)])
def test_accounting_is_that_of_dp_accounting(epsilon, n_releases):
    accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    z = multiplier_of(epsilon, 1e-5) * np.sqrt(n_releases)
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(accounting.GaussianDpEvent(z), n_releases)
    assert_allclose(accountant.get_epsilon(1e-5), epsilon, rtol=2e-3)


# --------------------------------------------------------------------------- sensitivities


@given(
    st.lists(st.floats(-1e308, 1e308), min_size=4, max_size=4),
    st.floats(1e-3, 1e3),
    st.integers(0, 2**32 - 1),
)
@examples(35)
def test_no_client_moves_a_sum_by_more_than_its_bound(values, clip, seed):
    others = np.random.default_rng(seed).standard_normal((5, 4))
    blocks = {"a": Block((4,), clip, 1.0), "clipped": Block((1,), 1.0, 0.02)}
    without = clipped_sums({"a": others}, blocks)
    both = clipped_sums({"a": np.vstack([others, values])}, blocks)
    size = np.linalg.norm(both["a"] - without["a"])
    assert size <= clip + 1e-13 * np.abs(without["a"]).max()
    assert abs(both["clipped"] - without["clipped"]) <= 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_client_without_finite_numbers_adds_nothing(bad):
    blocks = {"a": Block((2,), 1.0, 0.5), "b": Block((1,), 1.0, 0.5)}
    arrays = {"a": np.array([[0.1, 0.2], [bad, 0.0]]), "b": np.array([[0.3], [0.4]])}
    sums = clipped_sums(arrays, blocks)
    assert_allclose(sums["a"], [0.1, 0.2])
    assert_allclose(sums["b"], [0.3])


def test_a_client_with_rows_that_raise_adds_nothing(monkeypatch):
    """An error would be an answer without noise."""
    X, y, ids = DATA
    model, some = LinearModel(alpha=0.0, standardize=False).bind(3), ids < 6
    arguments = arguments_of(Moves, model, 2, np.random.default_rng(0))
    rest = some & (ids != 4)
    wanted = Moves.sums(
        site_of(InProcessFederation(X[rest], y[rest], ids[rest]), model), arguments
    )
    site, kernel = site_of(InProcessFederation(X[some], y[some], ids[some]), model), Moves.kernel

    def raises(site, block, slots, **arguments):
        if (ids[some][0] + slots == 4).any():
            raise IndexError("a row")
        return kernel(site, block, slots, **arguments)

    monkeypatch.setattr(Moves, "kernel", raises)
    found = Moves.sums(site, arguments)
    for name in wanted:
        assert_allclose(found[name], wanted[name], rtol=1e-9, atol=1e-12)


def arguments_of(release, model, K, rng, scale=1.0):
    theta = scale * rng.standard_normal((K, model.n_params))
    if release is Moves:
        how = dict(theta=theta, unit=1.0, rho=0.3, step_size=0.01, steps=2, draw=3)
        return how | {"known": None, "sizes": None}
    if release is SharedMoves:
        shared = np.arange(model.n_params) > 0
        how = dict(shared=shared, unit=1.0, rho=0.3, step_size=0.01, head_steps=2, steps=2, draw=3)
        return how | {"theta": theta[:1]}
    weights = rng.dirichlet(np.ones(K))
    root = np.abs(rng.standard_normal(model.n_params)) * scale
    if release is PosteriorSpread:
        return dict(theta=theta[:1], root=root, dispersion=0.5, scatters=True)
    if release is StartScores:
        starts = np.vstack([theta, theta + root])
        return dict(theta=starts, root=root, dispersion=0.5, n_starts=2)
    about = dict(theta=theta, root=root, weights=weights, dispersion=0.5, scatters=True)
    return about | {"sizes": None}


def site_of(federation, model):
    (part,) = places_of(federation, model)
    return part.site(model)


@pytest.mark.parametrize(
    "release", [Moves, SharedMoves, PosteriorMoments, PosteriorSpread, StartScores]
)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1e-6, 1.0, 1e4, 1e9]))
@examples(9)
def test_no_neighbour_moves_a_release_by_more_than_its_bound(release, seed, size):
    """A client with the worst rows, and the federation without it, under any models."""
    rng = np.random.default_rng(seed)
    K, n_rows = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    X, y = rng.standard_normal((30, 2)), rng.standard_normal(30)
    ids = np.repeat(np.arange(6), 5)
    worst = size * rng.standard_normal((n_rows, 2)), size * rng.standard_normal(n_rows)
    more = np.vstack([X, worst[0]]), np.r_[y, worst[1]], np.r_[ids, np.full(n_rows, 6)]
    model = LinearModel(alpha=0.0, standardize=False).bind(2)
    arguments = arguments_of(release, model, K, rng, scale=float(rng.choice([0.1, 1.0, 100.0])))
    blocks = release.blocks(model, arguments)
    assert_allclose(sum(block.share for block in blocks.values()), 1.0)
    without, found = (
        release.sums(site_of(InProcessFederation(*rows), model), arguments)
        for rows in ((X, y, ids), more)
    )
    moved = {
        name: np.linalg.norm(found[name] - without[name]) / block.clip
        for name, block in blocks.items()
    }
    assert max(moved.values()) <= 1 + 1e-9
    # The whole release is one mechanism of sensitivity 1.
    assert sum(block.share * moved[name] ** 2 for name, block in blocks.items()) <= 1.0 + 1e-9


def test_noise_has_the_standard_deviation_that_was_promised():
    model = LinearModel(alpha=0.0).bind(3)
    arguments = arguments_of(PosteriorMoments, model, 2, np.random.default_rng(0))
    blocks = PosteriorMoments.blocks(model, arguments)
    site = SimpleNamespace(model=model, each=lambda work: None)  # of no client
    rng = np.random.default_rng(1)
    draws = [PosteriorMoments.answer(site, arguments, 3.0, rng) for _ in range(400)]
    wanted = PosteriorMoments.noise(blocks, 3.0)
    for name, block in blocks.items():
        values = np.array([draw[name] for draw in draws])
        assert_allclose(wanted[name], 3.0 * block.clip / np.sqrt(block.share))
        # Six standard errors.
        assert abs(values.std() / wanted[name] - 1) < 6 / np.sqrt(2 * values.size)
        assert abs(values.mean()) < 6 * wanted[name] / np.sqrt(values.size)


def test_noise_comes_from_the_sites_and_not_from_the_server():
    found = []
    for _ in range(2):
        federation = InProcessFederation(*DATA).private(4.0, bounds=BOUNDS)
        model = FedAvgRegressor(random_state=0, max_iter=2).fit_federation(federation)
        found.append(model.cluster_coef_)
    assert np.abs(found[0] - found[1]).max() > 1e-3


# -------------------------------------------------------------------------------- the fits


def test_partial_pooling_of_private_clients_is_close_to_that_of_all_rows():
    plain = line_of()
    model = PartialPoolingRegressor(random_state=0).fit_federation(private(4.0))
    wanted = plain.score(*TEST[:2], groups=TEST[2])
    adapted = model.adapt(*DATA[:2], groups=DATA[2])
    assert adapted.score(*TEST[:2], groups=TEST[2]) > wanted - 0.02
    assert_allclose(model.epsilon_, 4.0, rtol=1e-9)
    assert model.delta_ == 1e-5
    assert_array_equal(np.unique(model.releases_["release"]), np.arange(1, 6))
    shifts = model.releases_["block"] == "shifts"
    assert_allclose(model.releases_["clip"][shifts], np.sqrt(4) + 0.5)
    z = multiplier_of(4.0, 1e-5) * np.sqrt(5)
    assert_allclose(
        model.releases_["noise"][shifts], z * (np.sqrt(4) + 0.5) / np.sqrt(0.35 * 0.98)
    )
    assert model.calls_ == 5
    assert_allclose(np.sqrt(np.diag(model.covariance_)), 0.4, atol=0.12)
    assert_allclose(model.dispersion_, 0.25, atol=0.1)


def test_the_start_of_clusters_does_not_decide():
    """Three crisp clusters are found in slots whatever the seed of the start."""
    rng = np.random.default_rng(0)
    centres = np.array([[1.6, 0.0, 0.5], [-0.8, 1.4, 0.5], [-0.8, -1.4, 0.5]])
    ids = np.repeat(np.arange(600), 10)
    X = rng.standard_normal((6000, 2))
    y = (np.column_stack([X, np.ones(6000)]) * centres[ids % 3]).sum(axis=1)
    y += 0.5 * rng.standard_normal(6000)
    for seed in some([0, 1], 1):
        federation = private(8.0, (X, y, ids), {"features": (-2, 2), "target": (-4, 4)})
        model = PartialPoolingRegressor(3, random_state=seed).fit_federation(federation)
        found = np.column_stack([model.cluster_coef_, model.cluster_intercept_])
        distances = np.linalg.norm(found[:, None] - centres, axis=2)
        assert distances.min(axis=0).max() < 0.3
        # The start spends releases of the fit, and no more of the budget.
        assert model.n_iter_ == 10
        assert_allclose(model.epsilon_, 8.0)
        calls = dict(zip(model.releases_["release"], model.releases_["call"], strict=True))
        wanted = ["posterior_spread", "start_scores", "posterior_moments"]
        assert list(calls.values())[:3] == wanted
    assert model.n_clusters_ == 3
    labels = model.assign(X, y, groups=ids)
    assert_array_equal(labels[:9], distances.argmin(axis=0)[np.arange(9) % 3])


def test_the_spread_of_clients_is_found_beside_that_of_their_errors():
    """Means of posteriors have the covariance W S W + ratio (W - W W) about W times the mean."""
    p, total, ratio = 3, 1000.0, 0.7
    rng, upper = np.random.default_rng(0), np.triu_indices(p)
    double = np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0))
    axes = np.linalg.qr(rng.standard_normal((p, p)))[0]
    W = axes @ np.diag([0.5, 0.7, 0.9]) @ axes.T
    S = np.diag([2.0, 1.2, 0.3])
    shift = np.array([0.4, -0.2, 0.1])
    mean = W @ shift
    products = W @ S @ W + ratio * (W - W @ W) + np.outer(mean, mean)
    sums = {"shifts": mean, "information": double * W[upper], "products": double * products[upper]}
    sums = {name: total * value for name, value in sums.items()}
    found = spread_of_clients(sums, {"information": 0.0, "products": 0.0}, total, ratio, p)
    assert_allclose(found[0], shift)
    assert_allclose(found[1].T @ found[1], S, atol=1e-12)


def test_more_clusters_than_directions():
    federation = private(8.0, grouped(100, 10, n_features=1)[0])
    model = PartialPoolingRegressor(6, random_state=0).fit_federation(federation)
    assert model.cluster_coef_.shape == (6, 1)
    assert np.isfinite(model.cluster_coef_).all()


@pytest.mark.parametrize(
    "release, name, value",
    [
        (PosteriorSpread, "theta", np.zeros((2, 4))),
        (PosteriorSpread, "dispersion", -1.0),
        (StartScores, "n_starts", 3),
        (StartScores, "n_starts", 0),
        (PosteriorMoments, "sizes", np.ones(5)),
        (StartScores, "root", np.full(4, -1.0)),
        (SharedMoves, "shared", None),
        (SharedMoves, "shared", np.ones(3, bool)),
        (SharedMoves, "shared", np.zeros(4, bool)),
        (SharedMoves, "shared", np.ones(4)),
        (SharedMoves, "head_steps", -1),
        (SharedMoves, "head_steps", 10**9),
        (SharedMoves, "head_steps", 1.5),
        (SharedMoves, "theta", np.zeros((2, 4))),
        (SharedMoves, "unit", 0.0),
    ],
)
def test_wrong_arguments_are_refused(release, name, value):
    model = LinearModel(alpha=0.0).bind(3)
    arguments = arguments_of(release, model, 2, np.random.default_rng(0))
    release.check(model, arguments)
    with pytest.raises(ValueError, match="takes"):
        release.check(model, {**arguments, name: value})


@pytest.mark.parametrize("loss", some(["log_loss", "poisson", "gamma"], 1))
def test_partial_pooling_of_other_losses(loss):
    data, _ = grouped(400, 12, seed=1, loss=loss)
    cls = PartialPoolingClassifier if loss == "log_loss" else PartialPoolingRegressor
    bounds = {"features": (-2, 2)}
    bounds |= {"classes": [0, 1]} if loss == "log_loss" else {"target": (0.0, 4.0)}
    plain = line_of(cls, data, loss=loss)
    model = cls(loss=loss, random_state=0).fit_federation(private(8.0, data, bounds))
    adapted = model.adapt(*data[:2], groups=data[2])
    assert_allclose(model.cluster_coef_, plain.cluster_coef_, atol=0.15)
    # The clients' models differ by less than a quarter of what clients differ by.
    spread = 0.8 if loss == "log_loss" else 0.4
    assert np.sqrt(np.mean((adapted.coef_ - plain.coef_) ** 2)) < spread / 4


def test_fedavg_is_that_of_all_rows_where_rows_of_a_client_are_alike():
    """The slope within clients is 2, that of all rows 0.5: client drift would take the first."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(800), 8)
    mean = rng.standard_normal(800)
    X = 0.95 * mean[ids] + 0.3 * rng.standard_normal(len(ids))
    y = 2.0 * (X - 0.95 * mean[ids]) + 0.35 * mean[ids] + 0.3 * rng.standard_normal(len(ids))
    data = X[:, None], y, ids
    slope = np.polyfit(X, y, 1)[0]
    model = FedAvgRegressor(random_state=0).fit_federation(private(8.0, data))
    assert abs(model.cluster_coef_[0, 0] - slope) < 0.25


def clusters_of_two(n_clients=800, seed=4):
    """Clients of two clusters that are far from each other."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(n_clients), 10)
    X = rng.standard_normal((len(ids), 2))
    centres = np.array([[1.0, -0.6], [-1.0, 0.6]])
    y = (X * centres[ids % 2]).sum(axis=1) + 0.3 * rng.standard_normal(len(ids))
    return (X, y, ids), centres


KNOWN = {k: "even" if k % 2 == 0 else "odd" for k in range(800)}


@pytest.mark.parametrize(
    ("model", "atol"),
    [
        (skcfl.IFCARegressor(2, random_state=1), 0.15),
        (skcfl.OracleClustersRegressor(labels=KNOWN), 0.12),
    ],
    ids=["ifca", "oracle"],
)
def test_moves_are_put_into_slots(model, atol):
    data, centres = clusters_of_two()
    model.fit_federation(private(8.0, data))
    order = np.argsort(-model.cluster_coef_[:, 0])
    assert_allclose(model.cluster_coef_[order], centres, atol=atol)
    adapted = model.adapt(*data[:2], groups=data[2])
    assert_array_equal(adapted.labels_ == adapted.labels_[0], np.arange(800) % 2 == 0)
    assert_array_equal(model.assign(*data[:2], groups=data[2]), adapted.labels_)


def test_clients_outside_the_known_clusters_add_nothing():
    federation = InProcessFederation(*clusters_of_two(20)[0])
    model = LinearModel(alpha=0.0, standardize=False).bind(2)
    site = site_of(federation, model)
    site.client_ids = federation.ids
    arguments = arguments_of(Moves, model, 2, np.random.default_rng(0))
    arguments["known"] = np.array([3, 5, 99]), np.array([1, 1, 0])
    sums = Moves.sums(site, arguments)
    assert_allclose(sums["counts"], [0.0, 2.0])
    assert_allclose(sums["moves"][0], 0.0)


@pytest.mark.parametrize("cls", [skcfl.DittoRegressor, skcfl.PFedMeRegressor])
def test_shared_parts_of_personal_methods(cls):
    model = cls(random_state=0).fit_federation(private(8.0))
    plain = FedAvgRegressor().fit(*DATA[:2], groups=DATA[2])
    assert_allclose(model.cluster_coef_, plain.cluster_coef_, atol=0.2)
    assert model.lam_ == 0.3
    adapted = model.adapt(*DATA[:2], groups=DATA[2])
    shared = plain.score(*TEST[:2], groups=TEST[2])
    assert adapted.score(*TEST[:2], groups=TEST[2]) > shared + 0.1
    assert cls(lam=2.0).fit_federation(private(8.0)).lam_ == 2.0


def stays(model):
    """What is a client's is no part of a private fit."""
    for name in ("labels_", "coef_", "params_", "responsibilities_", "loglik_", "objective_"):
        with pytest.raises(AttributeError, match=f"^{name} is no part of a private.*stays with t"):
            getattr(model, name)
    with pytest.raises(AttributeError, match="stays with them"):
        model.report()


def test_what_is_a_clients_stays_with_it():
    federation = InProcessFederation(*DATA)
    guarded = federation.private(4.0, bounds=BOUNDS, random_state=0)
    model = PartialPoolingRegressor(random_state=0).fit_federation(guarded)
    stays(model)
    assert len(model.groups_) == 0
    with pytest.raises(ValueError, match="knows no client"):
        model.predict(TEST[0], groups=TEST[2])
    adapted = model.adapt(*DATA[:2], groups=DATA[2])
    predicted = model.predict_federation(federation)
    assert_allclose(predicted, adapted.predict(DATA[0], groups=DATA[2]))
    assert_allclose(model.score_federation(federation), adapted.score(*DATA[:2], groups=DATA[2]))
    with pytest.raises(PrivacyError, match="are its own"):
        model.predict_federation(guarded)
    model.unseen = "average"
    average = model.predict(TEST[0], groups=TEST[2])
    assert_allclose(average, TEST[0] @ model.cluster_coef_[0] + model.cluster_intercept_[0])
    # Names of the clients are ids of any type.
    texts = np.array([f"c{k}" for k in DATA[2]])
    assert model.adapt(*DATA[:2], groups=texts).groups_[0] == "c0"


@pytest.mark.parametrize("basis", ["splines", "trees"])
def test_private_and_other_fits_leave_nothing_to_each_other(basis):
    """No curves or trees of a fit before either."""
    model = PartialPoolingRegressor(1, basis=basis, covariance="diag", unseen="average")
    model.fit(DATA[0][:300], DATA[1][:300], groups=DATA[2][:300])
    model.set_params(basis="linear", random_state=0)
    fresh = clone(model).fit_federation(private(4.0)).predict(TEST[0], groups=TEST[2])
    stays(model.fit_federation(private(4.0)))
    assert_allclose(model.predict(TEST[0], groups=TEST[2]), fresh)
    model.fit(*DATA[:2], groups=DATA[2])
    assert not hasattr(model, "epsilon_")
    plain = clone(model).fit(*DATA[:2], groups=DATA[2])
    assert_allclose(model.predict(TEST[0], groups=TEST[2]), plain.predict(*TEST[::2]))
    assert len(model.labels_) == 200
    assert model.report().findings
    with pytest.warns(PrivacyWarning):
        model.fit_federation(private(0.01))
    model.fit_federation(private(4.0))
    # Nothing is left of the fit whose signal was drowned.
    assert model.epsilon_ == pytest.approx(4.0)
    assert not model._is_local


def test_a_server_is_sent_nothing_of_the_rows():
    guarded = private()
    hello = guarded.hello("regressor")
    assert_array_equal([hello.sizes, hello.weights], np.ones((2, 200)))
    assert hello.n_rows == 200
    assert hello.classes is None
    assert np.intersect1d(hello.ids, DATA[2]).size == 0
    assert_array_equal(hello.ids, guarded.hello().ids)
    classes = private(bounds={"features": (-2, 2), "classes": [0, 1, 2]})
    classes.y, classes._kind = (DATA[1] > 0).astype(int), False
    assert_array_equal(classes.hello("classifier").classes, [0, 1, 2])


# ------------------------------------------------------------------------------ the account


def test_fits_share_a_budget():
    guarded = private(4.0, n_fits=2)
    first = FedAvgRegressor().fit_federation(guarded)
    second = PartialPoolingRegressor().fit_federation(guarded)
    z = multiplier_of(4.0, 1e-5) * np.sqrt(2)
    assert_allclose([first.epsilon_, second.epsilon_], epsilon_of(z, 1e-5))
    for model in (first, second):
        with pytest.raises(PrivacyError, match="spent: 0% of it is left"):
            model.fit_federation(guarded)


def test_jobs_at_the_same_time_share_the_file_of_an_account(tmp_path):
    privacy = ClientPrivacy(4.0, bounds=BOUNDS, account=tmp_path / "account.json")
    most, multiplier = 30, privacy.multiplier * np.sqrt(30)

    def charged(account):
        count = 0
        with suppress(Refused):
            while count <= most:
                account.charge(multiplier)
                count += 1
        return count

    with ThreadPoolExecutor(3) as jobs:
        accounts = [Account(privacy, np.random.default_rng()) for _ in range(3)]
        assert sum(jobs.map(charged, accounts)) == most


def test_hostile_servers_are_refused():
    model = LinearModel(alpha=0.0).bind(3)
    (place,) = places_of(private(4.0), model)
    arguments = arguments_of(Moves, model, 1, np.random.default_rng(0))
    z = multiplier_of(4.0, 1e-5)

    def refused(message, name="moves", multiplier=z, error=Refused, **more):
        with pytest.raises(error, match=message):
            place.release(name, {**arguments, **more}, multiplier)

    # More than the budget, by a little or in one go; noise of no size.
    for multiplier in (0.999 * z, 1e-9):
        refused("account is spent", multiplier=multiplier)
    for multiplier in (0.0, -1.0, np.inf, np.nan, True, None):
        refused("positive multiplier", multiplier=multiplier)
    # Calls that are no releases, and rows in any other way.
    refused("no release", "gradient_sums")
    for name in ("site", "moments", "scored", "folds", "scaled", "weighed", "testable", "X"):
        with pytest.raises(Refused, match="private releases only"):
            getattr(place, name)
    for more in (
        {"clip": 1e-3},  # bounds are none of the server's choice, shares neither
        {"share": 1.0},
        {"theta": np.zeros((1, 3))},
        {"theta": np.full((1, 4), np.nan)},
        {"theta": "all"},
        {"unit": 0.0},
        {"steps": 10**9},
        {"rho": -1.0},
        {"known": ["a"]},
        {"known": (np.array(["a"]), np.array([1]))},
        {"sizes": np.ones(5)},
    ):
        refused("moves takes", error=ValueError, **more)
    # Nothing of that was booked.
    place.release("moves", arguments, z)
    refused("account is spent", multiplier=100 * z)


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_a_private_site_tells_nothing_of_its_targets(kind):
    """Whole numbers could be classes, and huge, tiny or negative ones are no targets elsewhere."""
    policy = SitePolicy(privacy=ClientPrivacy(8.0, bounds={"features": (-2, 2), "target": (0, 9)}))
    X, y, ids = DATA
    hellos, answers = set(), set()
    for targets in (*np.multiply.outer([1e200, 1e-300, 0.0, 0.5], np.rint(y)), np.abs(y)):
        host = Wire(Given("north", (X, targets, ids), policy)).host
        hellos.add(loads(host.handle(dumps((0, [], [], "hello", (kind,)))))[0])
        for classes in (None, np.unique(y)[1:]):
            settings = np.arange(200), LinearModel("poisson").bind(3), np.dtype(float), classes
            rows = 1, 0, "rows", settings
            answers.add(loads(host.handle(dumps((1, [rows], [], "mask_key", ()))))[:2])
    assert hellos == {"done"} and len(answers) == 1
    # A loss that the declared bounds do not suit is refused, whatever the targets.
    rows = 1, 0, "rows", (np.arange(100), LinearModel("poisson").bind(3), np.dtype(float), None)
    reply = loads(wires()[0].host.handle(dumps((1, [rows], [], "mask_key", ()))))
    assert reply[1] == "Site 'north': an error, see its log"


def test_a_server_that_asks_for_more_releases_gets_an_error():
    guarded = private(4.0)
    hello, model = guarded.hello("regressor"), LinearModel(alpha=0.0).bind(3)
    releases = Releases(guarded, hello, model, 2, np.random.RandomState(0))
    arguments = arguments_of(Moves, model, 1, np.random.default_rng(0))
    for _ in range(2):
        releases.ask(Moves, **arguments)
    with pytest.raises(PrivacyError, match=r"raise epsilon to 5\.\d+"):
        releases.ask(Moves, **arguments)


def wires():
    """Two sites with a part of the clients each, under privacy."""
    policy = SitePolicy(privacy=ClientPrivacy(8.0, bounds=BOUNDS, random_state=0))
    north = DATA[2] < 100
    parts = ("north", where(DATA, north)), ("south", where(DATA, ~north))
    return [Wire(Given(*part, policy)) for part in parts]


def test_privacy_over_a_wire():
    federation = RemoteFederation(wires())
    names = federation.hello("regressor").ids
    assert {name.split("/")[0] for name in names} == {"north", "south"}
    model = PartialPoolingRegressor(random_state=0).fit_federation(federation)
    assert_allclose(model.epsilon_, 8.0, rtol=1e-9)
    adapted = model.adapt(*DATA[:2], groups=DATA[2])
    wanted = line_of().score(*TEST[:2], groups=TEST[2])
    assert adapted.score(*TEST[:2], groups=TEST[2]) > wanted - 0.02
    # Each place adds the noise that protects its clients from the server.
    shifts = model.releases_["block"] == "shifts"
    z = multiplier_of(8.0, 1e-5) * np.sqrt(10)
    assert_allclose(model.releases_["noise"][shifts], z * 2.5 / np.sqrt(0.35 * 0.98))
    with pytest.raises(PrivacyError, match="spent"):
        FedAvgRegressor().fit_federation(federation)


def test_the_page_of_a_private_fit_says_what_was_released():
    model = FedAvgRegressor(random_state=0, max_iter=2).fit_federation(private())
    report = fit_report(model)
    spent = report.content["epsilon"], report.content["delta"]
    assert spent == pytest.approx((4.0, 1e-5))
    assert report.content["releases"]["call"] == ["moves"] * 4
    assert report.content["rows"] is None
    assert '"epsilon"' in report.to_json()
    page = report.to_html()
    assert "moves" in page and ">epsilon</th><td>4</td>" in page


def test_places_have_to_declare_the_same():
    parts = [InProcessFederation(*half) for half in halves(DATA)]
    one, other = parts[0].private(4.0, bounds=BOUNDS), parts[1].private(5.0, bounds=BOUNDS)
    for mixed in ([one, parts[1]], [one, other]):
        with pytest.raises(PrivacyError, match="same privacy"):
            FedAvgRegressor().fit_federation(FanOutFederation(mixed))
    both = FanOutFederation(parts).private(4.0, bounds=BOUNDS)
    assert FedAvgRegressor().fit_federation(both).epsilon_ == pytest.approx(4.0)


def test_a_host_of_several_parts_has_one_account():
    policy = SitePolicy(privacy=ClientPrivacy(8.0, bounds=BOUNDS, random_state=0))
    federation = RemoteFederation([PickledHost(named(halves(DATA)), policy=policy)])
    model = FedAvgRegressor(random_state=0).fit_federation(federation)
    assert_allclose(model.epsilon_, 8.0, rtol=1e-9)
    plain = FedAvgRegressor().fit(*DATA[:2], groups=DATA[2])
    assert_allclose(model.cluster_coef_, plain.cluster_coef_, atol=0.15)
    assert model.n_iter_ == model.calls_ == 10
    adapted = model.adapt(*DATA[:2], groups=DATA[2])
    assert_allclose(adapted.coef_, np.tile(model.cluster_coef_, (200, 1)))
    with pytest.raises(PrivacyError, match="their owners keep the account"):
        federation.private(4.0, bounds=BOUNDS)


def test_a_client_in_two_places_is_not_charged_once_for_both():
    parts = [where(DATA, slice(k, None, 2)) for k in range(2)]  # of each client's rows
    federations = [InProcessFederation(*part) for part in parts]
    policy = SitePolicy(privacy=ClientPrivacy(8.0, bounds=BOUNDS))
    for federation in (
        FanOutFederation(federations).private(8.0, bounds=BOUNDS),
        FanOutFederation(federations).masked(3, bounds=BOUNDS),
        RemoteFederation([PickledHost(named(parts), policy=policy)]),
    ):
        with pytest.raises(ValueError, match="A client's rows must be in one place"):
            FedAvgRegressor().fit_federation(federation)


def test_lost_places_are_no_part_of_the_sums():
    policy = SitePolicy(privacy=ClientPrivacy(50.0, bounds=BOUNDS, random_state=0))
    hosts = [PickledHost([part], policy=policy) for part in named(halves(DATA))]
    hosts[1].lost_after = 4
    model = FedAvgRegressor(random_state=0).fit_federation(RemoteFederation(hosts))
    assert model.calls_ == 10
    n = len(np.unique(DATA[2]))
    assert len(model.missing_clients_) == len(np.unique(halves(DATA)[1][2]))
    hosts = [PickledHost([part], policy=policy) for part in named(halves(DATA))]
    hosts[1].lost_after = 4
    with pytest.raises(FederationError, match=f"places of {n // 2} clients answer, and min_clie"):
        FedAvgRegressor().fit_federation(RemoteFederation(hosts, min_clients=n // 2 + 1))
    for host in hosts:
        host.host, host.lost_after = None, 0
    with pytest.raises(FederationError, match="do not answer"):
        FedAvgRegressor().fit_federation(RemoteFederation(hosts[:1]))


# --------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize("hidden", [(), (3,)])
def test_unseen_clients_of_any_name_have_the_mean_of_clusters(hidden):
    """Of networks their mean output, before a client adapts and after."""
    model = skcfl.IFCARegressor(2, hidden_layer_sizes=hidden, max_iter=3, random_state=0)
    model.set_params(unseen="average")
    model.fit_federation(InProcessFederation(*DATA).masked(3, bounds=BOUNDS))
    X, adapted = TEST[0][:6], model.adapt(*(part[:40] for part in DATA[:2]), groups=["a"] * 40)
    found = model.predict(X, groups=["zoe"] * 6)
    each = np.array([model.predict_cluster(X, k) for k in range(2)])
    share = (found - each[1]) / (each[0] - each[1])
    assert_allclose(share, share[0], rtol=1e-4)  # of the larger cluster
    assert 0.5 <= share[0] <= 1.0
    assert_allclose(adapted.predict(X, groups=["zoe"] * 6), found)


def test_what_was_promised_is_not_taken_back_by_a_method():
    """In one process, too: the federation from which it was made is another one."""
    parts = [InProcessFederation(*part) for part in halves(DATA)]
    guarded = parts[1].private(4.0, bounds=BOUNDS)
    with pytest.raises(PrivacyError, match=r"released\(\) is refused"):
        guarded.released(50.0, bounds=BOUNDS)
    with pytest.raises(PrivacyError, match=r"released\(\) is refused"):
        parts[1].masked(3).released(50.0, bounds=BOUNDS)
    for mixed in ([parts[0], guarded], [guarded, parts[0]]):
        with pytest.raises(PrivacyError, match="must declare the same privacy"):
            FanOutFederation(mixed).masked(3)
    # Masks leave each part the account that it has.
    FedAvgRegressor().fit_federation(guarded)
    both = FanOutFederation([parts[0].private(4.0, bounds=BOUNDS), guarded])
    with pytest.raises(PrivacyError, match="budget .* is spent: 0% of it is left at part 1,"):
        FedAvgRegressor().fit_federation(both.masked(3))
    for policy in (SitePolicy(min_rows=5), SitePolicy(privacy=ClientPrivacy(1.0, bounds=BOUNDS))):
        owned = InProcessFederation(*halves(DATA)[0], policy=policy)
        for federation in (owned, FanOutFederation([owned])):
            for make in (
                partial(federation.private, 9.0, bounds=BOUNDS),
                partial(federation.released, 9.0, bounds=BOUNDS),
                federation.masked,
            ):
                with pytest.raises(PrivacyError, match="the policy says what clients answer"):
                    make()
    with pytest.raises(PrivacyError, match="max_share must be None .* got 0.5"):
        both = InProcessFederation(*DATA, max_share=0.5).masked(3, bounds=BOUNDS)
        FedAvgRegressor().fit_federation(both)


def test_places_in_places_draw_noise_of_their_own():
    parts = [where(DATA, DATA[2] % 4 == k) for k in range(4)]
    single = [InProcessFederation(*part) for part in parts]
    nested = [FanOutFederation(single[:2]), FanOutFederation(single[2:])]
    both = FanOutFederation(nested).private(4.0, bounds=BOUNDS, random_state=0)
    drawn = [p._account.rng.standard_normal() for some in both.parts for p in some.parts]
    assert len(set(drawn)) == 4


def test_sites_with_the_same_seed_draw_noise_of_their_own():
    policy = SitePolicy(privacy=ClientPrivacy(4.0, bounds=BOUNDS, random_state=0))

    def noise(X, y, ids, order=slice(None)):
        site = InProcessFederation(X[order], y[order], ids[order], policy=policy)
        return site._account.rng.standard_normal(5000)

    X, y, ids = DATA
    half = len(ids) // 2
    north = X[:half], y[:half], ids[:half]
    # Sites may call their clients by the same names.
    for other in (ids[half:], ids[:half]):
        south = noise(X[half:], y[half:], other)
        assert_allclose(np.std(noise(*north) + south), np.sqrt(2.0), rtol=0.05)
    assert_array_equal(noise(*north), noise(*north, slice(None, None, -1)))
    assert abs(np.corrcoef(noise(*north), noise(*north[:2], ids[half:]))[0, 1]) < 0.05


@pytest.mark.parametrize(
    "changes, message",
    [
        *(
            ({"epsilon": e}, "epsilon must be positive and finite")
            for e in (0, -1.0, np.inf, np.nan)
        ),
        ({"delta": 0.0}, "delta must be above 0"),
        ({"delta": 1.0}, "delta must be above 0"),
        ({"unit": "record"}, r"unit must be 'client'.*released\(\) protects single records"),
        ({"bounds": None}, "bounds must be declared"),
        ({"bounds": {"target": (0, 1)}}, "bounds must be declared"),
        ({"bounds": {"features": (1, 0)}}, "low < high"),
        ({"bounds": {"features": (0, np.inf)}}, "finite"),
        ({"bounds": {"features": 3}}, "pair"),
        ({"bounds": {"features": ("a", "b")}}, "numbers"),
        ({"bounds": {**BOUNDS, "other": 1}}, "got other"),
        ({"bounds": {"features": (0, 1), "classes": [1]}}, "two classes"),
        ({"n_fits": 0}, "n_fits must be an integer of at least 1"),
        ({"random_state": -1}, "random_state"),
        ({"on_noise": "ignore"}, "on_noise must be"),
    ],
)
def test_bad_declarations(changes, message):
    how = {"epsilon": 1.0, "bounds": BOUNDS} | changes
    with pytest.raises(ValueError, match=message):
        InProcessFederation(*DATA).private(**how)


@pytest.mark.parametrize(
    "how, message",
    [
        ({"delta": 1e-2}, "one over the number of clients, 200"),
        ({"bounds": {"features": (-2, 2)}}, r"must declare 'target' for a.*got \['features'\]"),
        ({"bounds": {**BOUNDS, "features": ([0, 0], [1, 1])}}, "two arrays of 3"),
    ],
)
def test_bad_terms_are_found_before_anything_is_released(how, message):
    with pytest.raises(ValueError, match=message):
        FedAvgRegressor().fit_federation(private(**how))


@pytest.mark.parametrize(
    "model, message",
    [
        (PartialPoolingRegressor(covariance="full"), "must be"),
        (PartialPoolingRegressor(random="intercept"), "must be"),
        (PartialPoolingRegressor(prior=1.0), "must be"),
        (PartialPoolingRegressor(df=5.0), "must be"),
        (PartialPoolingRegressor(crossed=[0]), "must be"),
        (PartialPoolingRegressor(basis="splines"), "must be"),
        (FedAvgRegressor(aggregation="median"), "must be"),
        (PartialPoolingClassifier(class_weight="balanced"), "must be"),
        (skcfl.IFCARegressor(), "n_clusters must be a number"),
        (skcfl.IFCARegressor(2, init="same"), "init must be"),
        (skcfl.OracleClustersRegressor(labels=np.zeros(200)), "labels must be a dict"),
        (skcfl.DittoRegressor(within=skcfl.IFCARegressor(2)), "within must be None"),
        (skcfl.FedRepRegressor(shared_layers=0), "shared_layers must name layers"),
    ],
)
def test_options_that_need_more_than_sums(model, message):
    data = DATA[0], (DATA[1] > 0).astype(int), DATA[2]
    guarded = private(4.0, data, {**BOUNDS, "classes": [0, 1]})
    with pytest.raises(PrivacyError, match=message):
        model.fit_federation(guarded)
    assert guarded._account.spent == 0.0


def test_errors_name_the_methods_that_can():
    plain = skcfl.base.BaseFederated._private_plan
    able = [
        name
        for name in skcfl.__all__
        if getattr(getattr(skcfl, name), "_private_plan", plain) is not plain
        and not name.endswith(("Classifier", "Regressor"))
    ]
    assert sorted(PRIVATE_METHODS) == sorted(able)
    message = "needs single answers .*" + ", ".join(PRIVATE_METHODS)
    for cls in (skcfl.CLoVERegressor, skcfl.LocalModelsRegressor, skcfl.GTVRegressor, skcfl.KFED):
        with pytest.raises(PrivacyError, match=message):
            cls(**({"n_clusters": 2} if cls is skcfl.KFED else {})).fit_federation(private())


@pytest.mark.parametrize("make", ["private", "masked", "released"])
def test_faults_are_not_ignored(make):
    """Clients of sums do not fail one by one: simulated faults are refused, not forgotten."""
    federation = InProcessFederation(*DATA, faults=Faults(dead=[3]))
    how = {} if make == "masked" else {"epsilon": 4.0}
    with pytest.raises(ValueError, match="faults must be None"):
        getattr(federation, make)(bounds=BOUNDS, **how)


# ----------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("cls", [PartialPoolingRegressor, FedAvgRegressor])
def test_a_drowned_signal_is_no_fit(cls):
    data, test = where(DATA, DATA[2] < 20), where(TEST, TEST[2] < 20)
    guarded = private(0.5, data)
    with pytest.warns(PrivacyWarning, match=r"20 clients, epsilon=0.5 .* more than 0.\d+"):
        model = cls().fit_federation(guarded)
    assert model.epsilon_ == model.calls_ == guarded._account.spent == 0.0
    assert len(model.releases_["call"]) == 0
    # Clients have models of their own rows.
    adapted = model.adapt(*data[:2], groups=data[2])
    local = skcfl.LocalModelsRegressor().fit(*data[:2], groups=data[2])
    wanted = local.score(*test[:2], groups=test[2])
    assert adapted.score(*test[:2], groups=test[2]) > wanted - 0.05
    assert len(np.unique(adapted.coef_[:, 0])) == 20
    with pytest.raises(PrivacyError, match="Nothing was released"):
        cls().fit_federation(private(0.5, data, on_noise="error"))
