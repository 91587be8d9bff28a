"""FedEM: clients whose rows are mixtures of shared models."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.metrics import adjusted_rand_score
from trials import some

from skcfl import FedEM, FedEMClassifier, FedEMRegressor, Training
from skcfl.calls import CALLS
from skcfl.calls.mixtures_asked import Mixture
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.federation import InProcessFederation
from skcfl.models import LinearModel, Location
from skcfl.models._mixed_outputs import mixed_decision
from skcfl.rounds.mixture import StillModels, fit_shares

DATA = make_clustered_regression(12, 3, 4, n_samples=(15, 30), noise=0.7, random_state=0)
CLASSES = make_clustered_classification(12, 3, 4, n_samples=60, random_state=0)


def mixed_rows(seed=0, n=60):
    """Six clients, whose rows come from two lines in shares of their own."""
    rng = np.random.RandomState(seed)
    shares = np.linspace(0.1, 0.9, 6)
    groups = np.repeat(np.arange(6), n)
    X = rng.standard_normal((6 * n, 1))
    first = rng.uniform(size=6 * n) < shares[groups]
    y = np.where(first, 2 * X[:, 0] + 3, -X[:, 0] - 2) + 0.3 * rng.standard_normal(6 * n)
    return X, y, groups, shares


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (FedEMRegressor(3, random_state=0), DATA),
        (FedEMRegressor(3, alpha=5.0, standardize=False, random_state=1), DATA),
        (FedEMRegressor(3, loss="huber", random_state=0), DATA),
        (FedEMRegressor(3, share_steps=1, random_state=0), DATA),
        (FedEMClassifier(2, init="random", n_init=1, random_state=3), CLASSES),
    ],
    ids=["squares", "penalty", "huber", "paper", "classes"],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_likelihood_never_falls(model, data):
    model = clone(model).set_params(max_iter=60).fit(data.X, data.y, groups=data.groups)
    objective = np.append(model.history_["objective"], model.objective_)
    assert (np.diff(objective) <= 1e-10 * np.abs(objective[:-1])).all()
    assert objective[-1] < objective[0]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_likelihood_of_counts_never_falls_for_long():
    """Their curvature has no bound: a step that was too long is halved until it is not."""
    rng = np.random.RandomState(0)
    X, groups = rng.standard_normal((240, 2)), np.repeat(np.arange(8), 30)
    y = rng.poisson(np.exp(np.where(groups % 2, 1.5, -1.5) * X[:, 0] + 1))
    model = FedEMRegressor(2, loss="poisson", random_state=0, max_iter=60).fit(X, y, groups=groups)
    assert adjusted_rand_score(np.arange(8) % 2, model.labels_) == 1.0
    objective = model.history_["objective"]
    assert objective[-1] <= objective.min() + 1e-12


def test_steps_under_which_counts_overflow_are_the_models_matter():
    """Rows that overflow under all models end no client's part; its shares are taken back, too."""
    rng = np.random.RandomState(4)
    groups = np.repeat(np.arange(30), 3)
    X = 3 * rng.standard_normal((90, 4))
    each = np.clip(0.5 * rng.standard_normal((30, 4))[groups] * X, -5, 5)
    y = rng.poisson(np.exp(each.sum(axis=1).clip(-5, 6)))
    for n_models in some((3, 2, "auto"), 1):
        model = FedEMRegressor(n_models, loss="poisson", random_state=0, max_iter=1000)
        model.fit(X, y, groups=groups)
        assert len(model.rejected_clients_) == 0
        np.testing.assert_allclose(model.mixture_weights_.sum(axis=1), 1.0)
        assert np.isfinite(model.predict(X, groups=groups)).all()


@pytest.mark.parametrize("data", [DATA, CLASSES], ids=["squares", "classes"])
def test_steps_of_shares(data):
    """Several in one exchange are as many exchanges of one, and settle in fewer rounds."""
    classes = data is CLASSES
    model = LinearModel("log_loss" if classes else "squared_error", alpha=0.1)
    pool = InProcessFederation(data.X, data.y, data.groups).open(
        model.bind(4, 3 if classes else None)
    )
    theta = np.random.RandomState(0).standard_normal((2, pool.n_params))
    shares = np.tile([1.0, 0.0], (12, 1))
    shares[3:] = [0.2, 0.8]
    for name in ("mixture", "mixture_sums"):
        several, once = pool.ask(CALLS[name], theta, shares, 0.7, 4), shares
        for _ in range(3):
            once = pool.ask(Mixture, theta, once, 0.7)[0]
        for found, wanted in zip(several, pool.ask(CALLS[name], theta, once, 0.7), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    cls = FedEMClassifier if classes else FedEMRegressor
    fits = [cls(3, share_steps=s, n_init=1, random_state=0) for s in (1, 5)]
    fits = [one.fit(data.X, data.y, groups=data.groups) for one in fits]
    assert fits[1].n_iter_ < fits[0].n_iter_
    assert fits[1].objective_ < fits[0].objective_ + 1e-3


@pytest.mark.parametrize("unit", some([0.36, 1e3, 1.0], 1))
def test_the_number_of_models_does_not_depend_on_the_unit(unit):
    """At .36 the log-density is nearly zero, of which any gain is many per cent."""
    data = make_clustered_regression(12, 4, 6, n_samples=60, random_state=2)
    model = FedEMRegressor(random_state=0).fit(data.X, unit * data.y, groups=data.groups)
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0
    assert model.search_["n_clusters"].tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(ValueError, match="Location has no losses of single rows"):
        FedEM(Location(), 2).fit(data.X, groups=data.groups)


def test_a_round_is_the_papers():
    """Responsibilities, shares and models in plain code; least squares is solved exactly."""
    X = np.column_stack([DATA.X, np.ones(len(DATA.X))])
    codes = np.unique(DATA.groups, return_inverse=True)[1]
    theta = np.random.RandomState(1).standard_normal((2, 5))
    loss = 0.5 * (X @ theta.T - DATA.y[:, None]) ** 2
    sizes = np.bincount(codes)
    best = np.array([loss[codes == i].mean(axis=0).min() for i in range(12)])
    phi = 2 * np.average(best, weights=sizes)
    q = np.exp(-loss / phi)
    q /= q.sum(axis=1, keepdims=True)
    shares = np.array([q[codes == i].mean(axis=0) for i in range(12)])
    alpha, n = 0.1, len(X)
    options = {"init": theta, "max_iter": 1, "tol": 0, "share_steps": 1}
    model = FedEM(LinearModel(alpha=alpha, standardize=False), 2, **options)
    model.fit(DATA.X, DATA.y, groups=DATA.groups)
    wanted = []
    for k in range(2):
        ridge = Ridge(alpha=alpha * n / 2).fit(DATA.X, DATA.y, sample_weight=q[:, k])
        wanted.append(np.append(ridge.coef_, ridge.intercept_))
    found = model.mixture_params_
    swapped = np.abs(found[0] - wanted[0]).max() > 1e-6
    np.testing.assert_allclose(found[::-1] if swapped else found, wanted, rtol=1e-7)
    penalty = 0.5 * alpha * (theta[:, :4] ** 2).sum() / 2
    scatter = (q * loss).sum() / n
    assert model.dispersion_ == pytest.approx(2 * (scatter + penalty))
    # The shares published are those of one more look.
    loss = 0.5 * (X @ np.array(wanted).T - DATA.y[:, None]) ** 2
    q = shares[codes] * np.exp(-loss / model.dispersion_)
    q /= q.sum(axis=1, keepdims=True)
    last = np.array([q[codes == i].mean(axis=0) for i in range(12)])
    got = model.mixture_weights_
    np.testing.assert_allclose(got[:, ::-1] if swapped else got, last, rtol=1e-6)


@pytest.mark.parametrize("unit", [1.0, 1e3])
def test_shares_and_lines_of_mixed_clients(unit):
    """Clients are no clusters here: their shares are what is found, whatever the unit."""
    X, y, groups, shares = mixed_rows()
    model = FedEMRegressor(2, random_state=0).fit(X, unit * y, groups=groups)
    first = int(model.mixture_params_[0, 0] < 0)
    np.testing.assert_allclose(model.mixture_weights_[:, first], shares, atol=0.15)
    lines = unit * np.array([[2, 3], [-1, -2]])
    found = model.mixture_params_[[first, 1 - first]]
    np.testing.assert_allclose(found, lines, atol=0.15 * unit)
    assert np.sqrt(model.dispersion_) == pytest.approx(0.3 * unit, rel=0.1)
    # A regression predicts by the mean of its models, which is a plain one.
    table = model.mixture_weights_ @ model.mixture_params_
    wanted = np.einsum("rp,rp->r", np.column_stack([X, np.ones(len(X))]), table[groups])
    np.testing.assert_allclose(model.predict(X, groups), wanted, rtol=1e-9)
    plain = model.client_model(2)
    np.testing.assert_allclose(plain.predict(X[:3]), model.predict(X[:3], [2, 2, 2]), rtol=1e-9)
    # New clients fit their shares only.
    known = groups < 4
    some = FedEMRegressor(2, random_state=0).fit(X[known], unit * y[known], groups=groups[known])
    new = some.adapt(X[~known], unit * y[~known], groups[~known])
    first = int(new.mixture_params_[0, 0] < 0)
    np.testing.assert_allclose(new.mixture_weights_[:, first], shares, atol=0.15)
    np.testing.assert_array_equal(
        some.assign(X[~known], unit * y[~known], groups[~known]), new.labels_[4:]
    )


def test_classifiers_mix_probabilities():
    model = FedEMClassifier(3, random_state=0).fit(CLASSES.X, CLASSES.y, groups=CLASSES.groups)
    assert adjusted_rand_score(CLASSES.labels, model.labels_) == 1.0
    codes = np.unique(CLASSES.groups, return_inverse=True)[1]
    decisions = [
        model.model_.decision(CLASSES.X, theta[None], 0 * codes) for theta in model.mixture_params_
    ]
    each = np.stack([model.model_.proba(decision) for decision in decisions], axis=1)
    wanted = np.einsum("rk,rkc->rc", model.mixture_weights_[codes], each)
    found = model.predict_proba(CLASSES.X, groups=CLASSES.groups)
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    assert model.score(CLASSES.X, CLASSES.y, groups=CLASSES.groups) > 0.8
    with pytest.raises(ValueError, match="A mixture of 3 models is no estimator of scikit-learn"):
        model.client_model(model.groups_[0])
    model.set_params(unseen="average")
    proba = model.predict_proba(CLASSES.X[:4], groups=["new"] * 4)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)


def test_networks():
    options = {"hidden_layer_sizes": (8,), "max_iter": 20, "tol": 0, "random_state": 0}
    model = FedEMClassifier(3, training=Training(batch_size=10), **options)
    model.fit(CLASSES.X, CLASSES.y, groups=CLASSES.groups)
    assert adjusted_rand_score(CLASSES.labels, model.labels_) == 1.0


@pytest.mark.parametrize("steps", [1, 10])
def test_shares_of_zero_stay_and_the_others_sum_to_one(steps):
    """A model that a client has no share of may be the only one that explains its row."""
    X, y, groups = np.ones((3, 1)), np.array([0.0, 0.0, 5.0]), np.arange(3)
    pool = InProcessFederation(X, y, groups).open(LinearModel(alpha=0.0).bind(1), 0)
    theta = np.array([[0.0, 0.0], [0.0, 5.0]])
    shares = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    found, values, _ = pool.ask(Mixture, pool.units.from_user(theta), shares, 1e-6, steps)
    assert np.isfinite(values).all() and not pool.rejected.any()
    np.testing.assert_allclose(found, [[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]], atol=1e-12)


def test_shares_of_a_client_whose_rows_weigh_nothing_stay_at_the_start():
    y, groups = np.array([0.0, 0.0, 0.0, 0.0, 5.0, 5.0]), np.repeat([0, 1, 2], 2)
    weights = np.array([1.0, 1.0, 0.0, 0.0, 1.0, 1.0])
    federation = InProcessFederation(np.ones((6, 1)), y, groups, sample_weight=weights)
    pool = federation.open(LinearModel(alpha=0.0).bind(1), 0)
    theta = pool.units.from_user(np.array([[0.0, 0.0], [0.0, 5.0]]))
    found = fit_shares(pool, theta, 1.0, np.array([0.25, 0.75]))
    assert found[0, 0] > 0.9 and found[2, 1] > 0.9
    np.testing.assert_allclose(found[1], [0.25, 0.75])


@pytest.mark.filterwarnings("error:.*overflow.*:RuntimeWarning")
def test_expected_counts_are_mixed_and_may_be_far_out():
    data = make_clustered_regression(4, 2, 2, n_samples=20, random_state=0)
    y = np.random.RandomState(0).poisson(np.exp(data.X[:, 0] / 2))
    model = FedEMRegressor(n_clusters=2, loss="poisson", random_state=0)
    model = model.fit(data.X, y, groups=data.groups)
    X = np.column_stack([data.X, np.ones(len(y))])
    shares = model.mixture_weights_[np.searchsorted(model.groups_, data.groups)]
    wanted = (shares * np.exp(X @ model.mixture_params_.T)).sum(axis=1)
    np.testing.assert_allclose(model.predict(data.X, groups=data.groups), wanted, rtol=1e-10)
    far = model.predict(1e4 * data.X, groups=data.groups)
    assert np.isinf(far).any() and not np.isnan(far).any()


@pytest.mark.filterwarnings("error")
def test_subnormal_shares_of_counts():
    params, shares = np.array([[1.0, 0.5], [3.0, -0.5]]), np.array([[1.0, 5e-324], [0.0, 1.0]])
    model = LinearModel("poisson").bind(1)
    raw = mixed_decision(model, np.ones((2, 1)), params, shares)
    np.testing.assert_allclose(raw, [[1.5], [2.5]])


@pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")
def test_rounds_end_where_models_are_the_same():
    """Of counts that are all zero, under which labels flip by rounding."""
    X, groups = np.random.RandomState(0).normal(size=(120, 3)), np.repeat(np.arange(6), 20)
    model = FedEMRegressor(loss="poisson", random_state=0).fit(X, np.zeros(120), groups=groups)
    assert model.predict(X, groups=groups).max() < 1e-6


def test_a_model_that_is_no_clients_largest_is_no_cluster_of_new_rows():
    rng = np.random.RandomState(0)
    lines, X, groups = (
        np.array([4.0, -4.0, 0.0]),
        rng.standard_normal((600, 1)),
        np.arange(600) % 6,
    )
    kinds = np.where(rng.uniform(size=600) < 0.3, 2, groups % 2)
    y = lines[kinds] * X[:, 0] + 5 * (kinds == 2) + 0.1 * rng.standard_normal(600)
    init = np.column_stack([lines, [0, 0, 5]])
    model = FedEMRegressor(3, init=init).fit(X, y, groups=groups)
    assert (model.n_clusters_, len(model.mixture_params_)) == (2, 3)
    X, y = rng.standard_normal((600, 1)), 5 + 0.1 * rng.standard_normal(600)
    new, known = np.repeat([7, 8], 300), np.zeros(600, dtype=int)
    labels = model.assign(X, y, groups=new)
    model.predict_cluster(X[:2], labels)
    adapted, updated = model.adapt(X, y, groups=new), model.update(X, y, groups=known)
    np.testing.assert_array_equal(adapted.labels_[-2:], labels)
    for fit, ids in ((adapted, new), (updated, known)):
        assert fit.n_clusters_ == len(fit.cluster_sizes_) == len(fit.cluster_params_) == 2
        assert fit.cluster_sizes_.sum() == len(fit.labels_) and str(fit.report())
        # Predictions are still the mixture of all models.
        assert fit.mixture_weights_[np.searchsorted(fit.groups_, ids[0]), 2] > 0.8
    assert np.abs(adapted.predict(X, groups=new) - y).mean() < 0.5


def test_new_rows_do_not_change_the_average_model_of_unseen_clients():
    model = FedEMRegressor(3, unseen="average", random_state=0)
    model.fit(DATA.X, DATA.y, groups=DATA.groups)
    X, y = DATA.X[:8], DATA.y[:8]
    unseen, new, known = (np.repeat(name, 8) for name in ("unseen", "new", model.groups_[0]))
    wanted = model.predict(X, groups=unseen)
    adapted = model.adapt(np.tile(X, (9, 1)), np.tile(y, 9), groups=np.tile(new, 9))
    updated = model.update(X, 9 - y, groups=known)
    for fit in (model, adapted, updated, adapted.update(X, 9 - y, groups=new)):
        np.testing.assert_array_equal(fit.predict(X, groups=unseen), wanted)
        found = fit.client_model("unseen").predict(X)
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
    # The shares of another new client are the same before and after ``adapt``.
    again = adapted.adapt(X, y, groups=np.repeat("other", 8)).mixture_weights_
    direct = model.adapt(X, y, groups=np.repeat("other", 8)).mixture_weights_
    np.testing.assert_array_equal(again[-1], direct[-1])


def test_steps_under_which_counts_overflow_go_half_of_the_way():
    """From zero a step for means of a thousand goes beyond what an exponential bears."""
    rng = np.random.default_rng(0)
    X, groups = np.c_[rng.normal(size=(120, 2)), np.ones(120)], np.repeat(np.arange(6), 20)
    y = rng.poisson(1e3 * np.exp(0.3 * X[:, 0]))
    model = FedEMRegressor(1, loss="poisson", fit_intercept=False, standardize=False, alpha=1e-3)
    assert model.fit(X, y, groups=groups).score(X, y, groups=groups) > 0.98


def test_models_are_still_for_rounds_in_a_row():
    stop = StillModels(1e-4, 3)
    ends = [stop(SimpleNamespace(change=change)) for change in (0, 0, 1, 0, 0, 0)]
    assert ends == [False] * 5 + [True]
