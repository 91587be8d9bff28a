"""New rows of known clients."""

from inspect import signature
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import PickledHost
from sklearn.base import clone
from sklearn.utils.class_weight import compute_class_weight

from skcfl import (
    CLoVERegressor,
    DittoRegressor,
    FedAvg,
    FedEMRegressor,
    FedRepRegressor,
    FlexCFLRegressor,
    IFCAClassifier,
    IFCARegressor,
    LocalModels,
    LocalModelsClassifier,
    LocalModelsRegressor,
    PartialPoolingClassifier,
    PartialPoolingRegressor,
    PerFedAvgRegressor,
    PFedMeRegressor,
)
from skcfl.calls import CALLS
from skcfl.federation import Faults, InProcessFederation, SitePolicy
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.row_calls import ROW_CALLS
from skcfl.models import MLP
from skcfl.rounds.mixture import share_weights

RNG = np.random.default_rng(0)
GROUPS = np.repeat(np.arange(12), 10)
MODELS = np.where(np.arange(12) % 2, 3.0, -1.0)[:, None] + 0.3 * RNG.normal(size=(12, 2))
X = RNG.normal(size=(120, 2))
Y = (X * MODELS[GROUPS]).sum(axis=1) + RNG.normal(size=120)
NEW_GROUPS = np.array([3, 3, 3, 5, 5, 7])
NEW_X = RNG.normal(size=(6, 2))
NEW_Y = (NEW_X * MODELS[NEW_GROUPS]).sum(axis=1) + RNG.normal(size=6)
OTHERS = ~np.isin(np.arange(12), NEW_GROUPS)


@pytest.mark.parametrize(
    "how",
    [
        {"n_clusters": 1, "df": np.inf},
        {"n_clusters": 1, "df": 4.0},
        {"n_clusters": 2, "covariance": "full"},
        {"n_clusters": 1, "random": "intercept", "covariance": "diag"},
    ],
    ids=str,
)
def test_posteriors_are_those_of_all_rows(how):
    """As of a new client who comes with the old and the new rows at once."""
    model = PartialPoolingRegressor(**how, basis="linear", random_state=0).fit(X, Y, groups=GROUPS)
    before = model.params_.copy()
    updated = model.update(NEW_X, NEW_Y, groups=NEW_GROUPS)
    for client in (3, 5, 7):
        old, new = client == GROUPS, client == NEW_GROUPS
        both = np.vstack([X[old], NEW_X[new]]), np.append(Y[old], NEW_Y[new])
        whole = model.adapt(*both, groups=np.full(old.sum() + new.sum(), 100))
        assert_allclose(updated.params_[client], whole.params_[-1], rtol=1e-8, atol=1e-10)
        assert_allclose(updated.responsibilities_[client], whole.responsibilities_[-1], atol=1e-10)
        assert_allclose(updated.client_dispersion_[client], whole.client_dispersion_[-1])
        assert_allclose(updated.params_std_[client], whole.params_std_[-1], rtol=1e-7)
    assert_array_equal(updated.params_[OTHERS], model.params_[OTHERS])
    assert_array_equal(model.params_, before)


def test_in_steps_is_at_once_and_after_adapt():
    model = PartialPoolingRegressor(1, basis="linear", random_state=0).fit(X, Y, groups=GROUPS)
    once = model.update(NEW_X, NEW_Y, groups=NEW_GROUPS)
    steps = model.update(NEW_X[:2], NEW_Y[:2], groups=NEW_GROUPS[:2])
    steps = steps.update(NEW_X[2:], NEW_Y[2:], groups=NEW_GROUPS[2:])
    assert_allclose(steps.params_, once.params_, rtol=1e-8)
    larger = model.adapt(NEW_X[:3], NEW_Y[:3], groups=np.full(3, -1))
    more = larger.update(NEW_X[3:], NEW_Y[3:], groups=np.full(3, -1))
    whole = model.adapt(NEW_X, NEW_Y, groups=np.full(6, -1))
    assert_allclose(more.params_, whole.params_, rtol=1e-8, atol=1e-12)
    assert_allclose(more.params_std_, whole.params_std_, rtol=1e-7)


def test_clients_of_a_masked_or_private_fit_have_their_rows_here():
    """The fit has kept nothing of a client, but `adapt` knows the posteriors of its rows."""
    plain = InProcessFederation(X, Y, GROUPS)
    private = plain.private(40.0, bounds={"features": (-2, 2), "target": (-8, 8)})
    ids = np.array([9, 5, 9, 5, 9, 5])
    for federation in (plain.masked(3), private):
        model = PartialPoolingRegressor(1, basis="linear", random_state=0)
        model.fit_federation(federation)
        more = model.adapt(NEW_X[:2], NEW_Y[:2], groups=ids[:2])
        more = more.update(NEW_X[2:], NEW_Y[2:], groups=ids[2:])
        whole = model.adapt(NEW_X, NEW_Y, groups=ids)
        assert_allclose(more.params_, whole.params_, rtol=1e-8, atol=1e-12)


def test_clusters_are_those_of_old_and_new_rows():
    model = IFCARegressor(2, random_state=0).fit(X, Y, groups=GROUPS)
    agreeing = model.update(NEW_X, NEW_Y, groups=NEW_GROUPS)
    assert_array_equal(agreeing.labels_, model.labels_)
    many = RNG.normal(size=(300, 2))
    moved = model.update(many, many @ MODELS[0], groups=np.full(300, 3))
    assert moved.labels_[3] == model.labels_[0] != model.labels_[3]
    assert_array_equal(moved.coef_[3], model.coef_[0])
    assert moved.cluster_sizes_.tolist() == [7, 5]
    # A new client changes nothing of that, and moves itself.
    larger = model.adapt(NEW_X[:3], NEW_Y[:3], groups=np.full(3, -1))
    for client, place in ((3, 4), (-1, 0)):
        moved = larger.update(many, many @ MODELS[0], groups=np.full(300, client))
        assert moved.labels_[place] == model.labels_[0] != larger.labels_[place]


@pytest.mark.reports
@pytest.mark.parametrize("kind", [IFCARegressor, CLoVERegressor, FlexCFLRegressor, FedEMRegressor])
def test_certainties_are_those_of_the_rows_so_far(kind):
    """A client that moved kept the losses of the fit, and new clients were sure."""
    model = kind(2, random_state=0).fit(X, Y, groups=GROUPS)
    many = RNG.normal(size=(300, 2))
    moved = model.update(many, many @ MODELS[0], groups=np.full(300, 3))
    assert moved.labels_[3] == model.labels_[0] and not moved.report().findings["unsure"]
    larger = model.adapt(np.zeros((2, 2)), np.zeros(2), groups=[-1, 100])
    assert_array_equal(np.sort(larger.report().findings["unsure"]), [-1, 100])
    assert "certainty of" not in str(larger.report().findings["not_settled"])


@pytest.mark.reports
def test_certainties_that_are_not_known_are_no_numbers():
    model = IFCARegressor(2, random_state=0).fit(X, Y, groups=GROUPS)
    odd = np.arange(12)[:, None] % 2 == 1  # as of clients that are silent at the end
    model._seen_marginals = np.where(odd[:, None], np.nan, model._seen_marginals)
    report = model.report()
    assert "the certainty of 6 clients: " in str(report.findings["not_settled"])
    (members,) = [s.parts[0].rows for s in report.sections if "in which" in s.title]
    assert ["unknown" in row for row in members] == [k == model.labels_[1] for k in range(2)]
    model._seen_marginals = None  # of more clients than losses are kept of
    assert "certainty of" not in str(model.report())
    larger = model.adapt(NEW_X, NEW_Y, groups=NEW_GROUPS + 100).report()
    assert "the certainty of 3 clients: " in str(larger) and "nan" not in larger._repr_html_()


def test_clients_that_did_not_answer_for_their_old_rows_are_not_moved():
    model = IFCARegressor(2, random_state=0).fit(X, Y, groups=GROUPS)
    model._seen_losses[3] = np.nan  # as of those who are silent at the end
    with pytest.raises(ValueError, match="of clients that answered. Fit again"):
        model.update(NEW_X[:3], NEW_Y[:3], groups=NEW_GROUPS[:3])
    assert_array_equal(model.update(NEW_X[3:], NEW_Y[3:], NEW_GROUPS[3:]).labels_, model.labels_)


@pytest.mark.filterwarnings("ignore::skcfl.exceptions.MissingClientWarning")
def test_what_one_client_did_not_answer_is_kept_of_the_others():
    faults = Faults(dead=[3], calls=["hessian_diagonals"])
    model = LocalModelsRegressor()
    model.fit_federation(InProcessFederation(X, Y, GROUPS, faults=faults))
    with pytest.raises(ValueError, match="of clients that answered. Fit again"):
        model.update(NEW_X[:3], NEW_Y[:3], groups=NEW_GROUPS[:3])
    updated = model.update(NEW_X[3:], NEW_Y[3:], groups=NEW_GROUPS[3:])
    assert np.abs(updated.params_[5] - model.params_[5]).max() > 1e-3
    pool = SimpleNamespace(
        client_weights=np.ones(2),
        answered=np.array([True, False]),
        ask=lambda call, theta, shares, dispersion: (shares,),
    )
    weights = share_weights(pool, np.zeros((2, 1)), 1.0, np.full((2, 2), 0.5))
    assert_array_equal(weights, [0.0, np.nan])


@pytest.mark.parametrize("model", [LocalModelsRegressor(), FedEMRegressor(2, random_state=0)])
def test_the_place_of_a_new_client_does_not_matter(model):
    model.fit(X, Y, groups=GROUPS)
    first, last = (
        model.adapt(NEW_X[:3], NEW_Y[:3], np.full(3, client)).update(
            NEW_X[3:], NEW_Y[3:], np.full(3, client)
        )
        for client in (-1, 99)
    )
    assert_allclose(first.params_[0], last.params_[-1], rtol=1e-9)
    assert_array_equal(first.params_[1:], model.params_)


@pytest.mark.parametrize("how", ["elsewhere", "many", "network"])
def test_old_rows_have_their_say_or_update_is_refused(how, monkeypatch):
    model = IFCARegressor(2, random_state=0)
    if how == "network":
        model.set_params(hidden_layer_sizes=(4,), max_iter=30, tol=0.1)
    if how == "elsewhere":
        ids = np.unique(GROUPS, return_inverse=True)[1]
        parts = [
            (k, str(k), (X[ids % 2 == k], Y[ids % 2 == k], GROUPS[ids % 2 == k])) for k in (0, 1)
        ]
        model.fit_federation(RemoteFederation([PickledHost(parts)]))
        with pytest.raises(ValueError, match="update needs the losses of the clients' old rows"):
            model.update(NEW_X, NEW_Y, groups=NEW_GROUPS)
        own = LocalModelsRegressor().fit_federation(RemoteFederation([PickledHost(parts)]))
        with pytest.raises(ValueError, match="update needs the curvature of the clients' old"):
            own.update(NEW_X, NEW_Y, groups=NEW_GROUPS)
        mixed = FedEMRegressor(2, random_state=0)
        mixed.fit_federation(RemoteFederation([PickledHost(parts)]))
        with pytest.raises(ValueError, match="update needs what the clients' old rows say"):
            mixed.update(NEW_X, NEW_Y, groups=NEW_GROUPS)
        return
    if how == "many":  # of more clients a report asks some
        monkeypatch.setattr("skcfl.reports.evidence.MOST_CLIENTS", 6)
    model.fit(X, Y, groups=GROUPS)
    one = np.flatnonzero(model.labels_ == model.labels_[0])[1]
    many = RNG.normal(size=(300, 2))
    moved = model.update(many, many @ MODELS[3], groups=np.full(300, one))
    assert moved.labels_[one] == model.labels_[3] != model.labels_[one]


@pytest.mark.reports
@pytest.mark.parametrize(
    "limits",
    [
        {"min_clients": 3},
        {"calls": {*CALLS, *ROW_CALLS} - {"hessian_diagonals", "score_draws"}},
    ],
    ids=["min_clients", "calls"],
)
def test_fits_go_on_where_sites_refuse_what_updates_need(limits):
    federation = InProcessFederation(X, Y, GROUPS, policy=SitePolicy(**limits))
    for own in (LocalModelsRegressor(), DittoRegressor(0.1), PFedMeRegressor(0.1)):
        own.fit_federation(federation)
        assert not len(own.missing_clients_)
        with pytest.raises(ValueError, match="update needs the curvature of the clients' old"):
            own.update(NEW_X, NEW_Y, groups=NEW_GROUPS)
        assert own.adapt(NEW_X, NEW_Y, groups=NEW_GROUPS + 100).params_.shape == (15, 3)
    step = PerFedAvgRegressor().fit_federation(federation)
    assert step.update(NEW_X, NEW_Y, groups=NEW_GROUPS).params_.shape == (12, 3)
    for mixed in (FedEMRegressor(2, random_state=0), PartialPoolingRegressor(1)):
        mixed.fit_federation(federation)


@pytest.mark.reports
def test_a_report_whose_models_overflow_takes_no_update_away():
    """Clients answer nothing that overflows, and are out from then on."""
    rng = np.random.default_rng(0)
    groups, rows = np.repeat(np.arange(20), 25), rng.normal(size=(500, 2))
    models = rng.normal(size=(20, 3))
    rates = np.exp((rows * models[groups, :2]).sum(axis=1) + models[groups, 2] - 4.0)
    old, y = np.arange(500) % 25 < 20, rng.poisson(rates)
    model = LocalModelsRegressor(loss="poisson").fit(rows[old], y[old], groups=groups[old])
    updated = model.update(rows[~old], y[~old], groups=groups[~old])
    assert np.isfinite(updated.params_).all()


def test_new_clients_whose_posteriors_are_too_large_cannot_be_updated(monkeypatch):
    model = PartialPoolingRegressor(1, basis="linear").fit(X, Y, groups=GROUPS)
    monkeypatch.setattr("skcfl.pooling.updates.MOST_BYTES", 0)
    larger = model.adapt(NEW_X[:3], NEW_Y[:3], groups=np.full(3, -1))
    assert larger.coef_.shape == (13, 2)
    with pytest.raises(ValueError, match="update needs the clients' posteriors"):
        larger.update(NEW_X[:3], NEW_Y[:3], groups=np.full(3, -1))


@pytest.mark.parametrize("lam", [0.0, 0.7, np.inf])
def test_pulls_and_penalties_hold_for_new_rows(lam):
    """Of features whose squares sum to one the parabola is exact, and the update the old fit."""
    rng = np.random.default_rng(0)
    olds = [np.sqrt(8.0) * np.linalg.qr(rng.normal(size=(8, 3)))[0] for _ in range(4)]
    new, groups = rng.normal(size=(5, 3)), np.repeat(np.arange(4), 8)
    y, y_new = rng.normal(size=32), 3.0 + rng.normal(size=5)
    how = {"alpha": 0.2, "fit_intercept": False, "standardize": False}
    models = [DittoRegressor(lam, **how)] if lam in (0.0, np.inf) else []
    models += [LocalModelsRegressor(**how)] if lam == 0.0 else []
    models += [cls(lam, **how) for cls in (DittoRegressor, PFedMeRegressor)] if lam == 0.7 else []
    for model in models:
        model.fit(np.concatenate(olds), y, groups=groups)
        updated = model.update(new, y_new, groups=np.full(5, 2))
        rows, targets = np.vstack([olds[2], new]), np.append(y[groups == 2], y_new)
        wanted = model.adapt(rows, targets, groups=np.full(13, 9)).coef_[4]
        assert_allclose(updated.coef_[2], wanted, rtol=1e-8)
        assert_array_equal(updated.coef_[[0, 1, 3]], model.coef_[[0, 1, 3]])
        if lam < np.inf:
            assert np.abs(updated.coef_[2] - model.coef_[2]).max() > 0.1


@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
@pytest.mark.parametrize("standardize", [False, True])
def test_updates_do_not_depend_on_units(loss, standardize):
    model = LocalModelsRegressor(loss=loss, alpha=0.0, standardize=standardize)
    ys = (Y, NEW_Y) if loss == "squared_error" else (np.abs(Y), np.abs(NEW_Y))
    found = []
    for unit in (1.0, np.array([100.0, 0.01])):
        fit = model.fit(X * unit, ys[0], groups=GROUPS)
        for some in (slice(0, 2), slice(2, 6)):
            fit = fit.update(NEW_X[some] * unit, ys[1][some], groups=NEW_GROUPS[some])
        found.append(fit.params_ * np.append(unit * np.ones(2), 1.0))
    assert_allclose(*found, rtol=1e-5, atol=1e-7)


def test_curvatures_are_those_of_all_rows_so_far():
    model = LocalModelsRegressor(alpha=0.0).fit(X, Y, groups=GROUPS)
    wide = 5.0 * NEW_X[:3]
    updated = model.update(wide, NEW_Y[:3], groups=np.full(3, 3))
    all_rows = np.vstack([X[GROUPS == 3], wide]), np.append(Y[GROUPS == 3], NEW_Y[:3])
    wanted = model.adapt(*all_rows, groups=np.full(13, 99))._seen_curvatures[-1]
    assert_allclose(updated._seen_curvatures[3], wanted, rtol=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.05])
def test_one_row_of_another_class_turns_no_client_over(alpha):
    y = (Y > 0) & (GROUPS != 0)
    rows, groups = np.tile(X, (2, 1)), np.tile(GROUPS, 2)
    model = LocalModelsClassifier(alpha=alpha).fit(rows, np.tile(y, 2), groups=groups)
    updated = model.update(NEW_X[:1], [True], groups=[0])
    assert updated.predict(X[GROUPS == 0], groups=np.zeros(10, dtype=int)).mean() < 0.5


def test_a_column_of_zeros_keeps_its_coefficient():
    rows = np.where((GROUPS == 3)[:, None] & [True, False], 0.0, X)
    model = LocalModelsRegressor(alpha=0.0).fit(rows, Y, groups=GROUPS)
    new = np.where([True, False], 0.0, NEW_X[:3])
    updated = model.update(new, NEW_Y[:3], groups=NEW_GROUPS[:3])
    moved = np.abs(updated.coef_[3] - model.coef_[3])
    assert moved[0] < 10**-0.5  # a standard error of ten rows that vary


@pytest.mark.parametrize("mean", [0.5, 50.0])
@pytest.mark.parametrize(
    "own", [LocalModelsRegressor(loss="poisson"), DittoRegressor(0.05, loss="poisson")]
)
def test_updates_by_counts_are_near_a_fit_of_all_rows(own, mean):
    rng = np.random.default_rng(0)
    groups, models = np.repeat(np.arange(12), 60), 0.4 * rng.normal(size=(12, 2))
    rows = rng.normal(size=(720, 2))
    y = rng.poisson(mean * np.exp((rows * models[groups]).sum(axis=1)))
    old = np.arange(720) % 60 < 50
    before = clone(own).fit(rows[old], y[old], groups=groups[old])
    wanted = clone(own).fit(rows, y, groups=groups).params_
    once = before.update(rows[~old], y[~old], groups=groups[~old])
    steps = before
    for k in range(50, 60):
        one = np.arange(720) % 60 == k
        steps = steps.update(rows[one], y[one], groups=groups[one])
    away, *after = (np.abs(fit.params_ - wanted).mean() for fit in (before, once, steps))
    assert max(after) < 0.5 * away


def test_what_clients_share_stays_shared():
    shared = FedRepRegressor().fit(X, Y, groups=GROUPS)
    updated = shared.update(NEW_X, NEW_Y + 5.0, groups=NEW_GROUPS)
    assert_array_equal(updated.coef_, shared.coef_)
    assert (updated.intercept_[3] - shared.intercept_[3]) > 0.5
    # One personal step is linear in the rows: that on all of them.
    step = PerFedAvgRegressor(inner_step=0.1, personal_steps=1).fit(X, Y, groups=GROUPS)
    moved = step.update(NEW_X, NEW_Y, groups=NEW_GROUPS)
    old, new = GROUPS == 3, NEW_GROUPS == 3
    rows = np.vstack([X[old], NEW_X[new]]), np.append(Y[old], NEW_Y[new])
    wanted = step.adapt(*rows, groups=np.full(len(rows[1]), 99)).coef_[-1]
    assert_allclose(moved.coef_[3], wanted, rtol=1e-8)


def test_shares_of_mixtures_move():
    model = FedEMRegressor(2, random_state=0).fit(X, Y, groups=GROUPS)
    many = RNG.normal(size=(300, 2))
    moved = model.update(many, many @ MODELS[0], groups=np.full(300, 3))
    k = model.labels_[3]
    assert moved.mixture_weights_[3, k] < 0.2 < model.mixture_weights_[3, k]
    predicted = [fit.predict(many, groups=np.full(300, 3)) for fit in (moved, model)]
    away, before = np.abs(predicted - many @ MODELS[0]).mean(axis=1)
    assert away < before


@pytest.mark.parametrize("kind", [0, 1, [0, 1]], ids=["its kind", "another", "both"])
@pytest.mark.parametrize("size", [1, 60])
def test_shares_of_mixtures_are_near_those_of_all_rows(kind, size):
    rng = np.random.default_rng(0)
    groups, x = np.repeat(np.arange(20), 40), rng.normal(size=(800, 1))
    y = np.where(groups % 2, 1.0, -1.0) * x[:, 0] + rng.normal(size=800)
    model = FedEMRegressor(2, random_state=0).fit(x, y, groups=groups)
    more = rng.normal(size=(60, 1))
    signs = np.where(rng.choice(kind, size=60) if isinstance(kind, list) else kind, 1.0, -1.0)
    more_y = signs * more[:, 0] + rng.normal(size=60)
    updated = model
    for k in range(0, 60, size):
        updated = updated.update(more[k : k + size], more_y[k : k + size], np.full(size, 4))
    all_rows = np.vstack([x[groups == 4], more]), np.append(y[groups == 4], more_y)
    wanted = model.adapt(*all_rows, groups=np.full(100, 99)).mixture_weights_[-1]
    assert_allclose(updated.mixture_weights_[4], wanted, atol=0.1)


def test_mixtures_of_one_model_are_updated():
    model = FedEMRegressor(1, random_state=0).fit(X, Y, groups=GROUPS)
    updated = model.update(NEW_X, NEW_Y, groups=NEW_GROUPS)
    assert_array_equal(updated.params_, model.params_)


def test_classes():
    model = PartialPoolingClassifier(1, basis="linear").fit(X, Y > 0, groups=GROUPS)
    updated = model.update(NEW_X, NEW_Y > 0, groups=NEW_GROUPS)
    mine = GROUPS == 3
    both = np.vstack([X[mine], NEW_X[:3]]), np.append(Y[mine], NEW_Y[:3]) > 0
    whole = model.adapt(*both, groups=np.full(13, 100))
    assert_allclose(updated.params_[3], whole.params_[-1], atol=0.3)
    assert np.abs(updated.params_[3] - model.params_[3]).max() > 1e-3


@pytest.mark.parametrize(
    "method", [IFCAClassifier, LocalModelsClassifier, PartialPoolingClassifier]
)
@pytest.mark.parametrize("factors", ["balanced", {False: 0.5, True: 4.0}], ids=str)
def test_new_rows_have_the_weights_of_their_classes(method, factors):
    """Those of the fit, as rows that are weighed by hand."""
    y, new_y = Y > 1.5, NEW_Y > 0.0
    by_class = compute_class_weight(factors, classes=np.array([False, True]), y=y)
    options = {"random_state": 0, "n_clusters": 2, "basis": "linear", "alpha": 0.05}
    options = {name: options[name] for name in options.keys() & signature(method).parameters}
    model = method(class_weight=factors, **options).fit(X, y, groups=GROUPS)
    by_hand = method(**options).fit(X, y, groups=GROUPS, sample_weight=by_class[y * 1])
    rows, weights = (NEW_X, new_y, NEW_GROUPS), by_class[new_y * 1]
    compared = [(model.params_, by_hand.params_)]
    compared.append((model.cluster_losses(*rows), by_hand.cluster_losses(*rows, weights)))
    compared.append((model.update(*rows).params_, by_hand.update(*rows, weights).params_))
    rows = NEW_X, new_y, NEW_GROUPS + 100
    compared.append((model.adapt(*rows).params_, by_hand.adapt(*rows, weights).params_))
    for found, wanted in compared:
        assert_allclose(found, wanted, rtol=1e-7, atol=1e-9)


def test_clusters_of_new_clients_are_by_weighed_classes():
    """Three rows of one class are of the first cluster, one of the other class of the second."""
    x = np.tile(np.linspace(-1, 1, 20), 6)[:, None]
    y = (x[:, 0] > 0) == (np.arange(120) < 60)
    model = IFCAClassifier(2, class_weight={False: 1.0, True: 8.0}, random_state=0)
    model.fit(x, y, groups=np.repeat(np.arange(6), 20))
    rows = -np.ones((4, 1)), np.array([False, False, False, True]), np.zeros(4, dtype=int)
    second = model.labels_[-1]
    assert model.labels_[0] != second
    assert model.assign(*rows) == model.assign_federation(InProcessFederation(*rows)) == second


def test_who_is_not_known_is_refused():
    model = CLoVERegressor(2, random_state=0).fit(X, Y, groups=GROUPS)
    with pytest.raises(ValueError, match="adapt\\(\\) for new ones"):
        model.update(NEW_X, NEW_Y, groups=np.full(6, 77))
    with pytest.raises(ValueError, match="pass groups="):
        model.update(NEW_X, NEW_Y)
    network = {"model": MLP((2,), loss="squared_error"), "max_iter": 2, "random_state": 0}
    with pytest.warns(Warning):
        own = LocalModels(**network).fit(X, Y, groups=GROUPS)
        shared = FedAvg(**network).fit(X, Y, groups=GROUPS)
    with pytest.raises(ValueError, match="needs a linear local model"):
        own.update(NEW_X, NEW_Y, groups=NEW_GROUPS)
    assert_array_equal(shared.update(NEW_X, NEW_Y, groups=NEW_GROUPS).params_, shared.params_)
