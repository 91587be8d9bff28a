"""FedRep, FedPer and FedALA: all layers shared or none, fixed effects, blends."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from personal_tables import CLASSES, CODES, DATA, fit, without

from skcfl import (
    FedALA,
    FedALAClassifier,
    FedALARegressor,
    FedAvg,
    FedAvgClassifier,
    FedRepClassifier,
    FedRepRegressor,
    LocalModelsClassifier,
    Training,
)
from skcfl.calls.first_order import Objectives, ObjectivesGradients
from skcfl.calls.kept_models import BlendedUpdate, Keep, PartialUpdate, Recall
from skcfl.datasets import make_clustered_regression
from skcfl.exceptions import MessageError
from skcfl.federation.inprocess import open_rows
from skcfl.models import MLP, LinearModel, LocalModel

NETWORK = {"hidden_layer_sizes": (5, 4), "random_state": 0, "max_iter": 3, "tol": 0}


OLD, NEW = 0.5 * np.random.RandomState(0).normal(size=(2, 8, 4))


def blend_pool(alpha=0.1, kept=OLD):
    """A pool of a linear model, and models that its clients keep."""
    bound = LinearModel("log_loss", alpha=alpha, standardize=False).bind(3, 2)
    pool = open_rows(bound, CLASSES.X, CLASSES.y, CODES, 8, random_state=0)
    pool.ask(Keep, kept)
    return pool


@pytest.mark.parametrize("batch_size", [None, 6])
def test_all_layers_shared_or_none_blended_is_federated_averaging(batch_size):
    options = {"training": Training(batch_size=batch_size), **NETWORK}
    wanted = fit(FedAvgClassifier(**options))
    for layers, alternate in ((3, True), (["output", "hidden2", "hidden1"], False)):
        model = fit(FedRepClassifier(shared_layers=layers, alternate=alternate, **options))
        assert_array_equal(model.cluster_params_, wanted.cluster_params_)
        assert_array_equal(model.params_, wanted.params_)
    model = fit(FedALAClassifier(blended_layers=0, **options))
    assert_array_equal(model.cluster_params_, wanted.cluster_params_)


@pytest.mark.parametrize("alternate", [True, False])
def test_no_layer_shared_is_local(alternate):
    # A penalty: "auto" has one prior for each model, of which one is shared here.
    network = NETWORK | {"alpha": 0.01}
    model = fit(FedRepClassifier(shared_layers=0, alternate=alternate, **network))
    assert_array_equal(model.params_, fit(LocalModelsClassifier(**network)).params_)
    assert len(model.history_["objective"]) == 3


def test_first_layers_are_shared_and_sent_alone():
    model = fit(FedRepClassifier(**NETWORK))
    head = model.model_.layer_slices()["output"]
    p, s = model.params_.shape[1], head.start
    assert (model.params_[:, :s] == model.cluster_params_[:, :s]).all()
    assert len(np.unique(model.params_[:, s:], axis=0)) == 8
    assert_allclose(model.cluster_params_[0, s:], model.params_[:, s:].mean(axis=0), rtol=1e-5)
    assert model.history_["floats_down"][1] == 8 * s
    assert model.history_["floats_up"][1] == 8 * (s + 1)
    # The common start, once, at the end all of a model; means and scales of three features, alpha.
    assert model.floats_down_ == 8 * (p + 3 * s + p + 2 * 3 + 1)


def test_frozen_layers_stay():
    """Only the head is trained while the body is frozen, and the other way round."""
    model = MLP((5, 4), precision="double").bind(3, 2)
    pool = open_rows(model, CLASSES.X, CLASSES.y, CODES, 8)
    w = np.tile(model.start(0), (8, 1))
    everything, head = np.ones(model.n_params, dtype=bool), model.head_mask()
    for trained in (head, ~head):
        new, values = pool.ask(PartialUpdate, w, everything, [(4, trained)], 0.1, "adam")
        assert_array_equal(new[:, ~trained], w[:, ~trained])
        assert (new[:, trained] != w[:, trained]).mean() > 0.5
        assert_allclose(values, pool.ask(Objectives, w), rtol=1e-12)
        # One step is that of the gradient, the frozen part left out.
        step = pool.ask(PartialUpdate, w, everything, [(1, trained)], 0.1)[0]
        assert_allclose(step, w - 0.1 * trained * pool.ask(ObjectivesGradients, w)[1], rtol=1e-12)


@pytest.mark.parametrize("shift", [0.0, 30.0])
@pytest.mark.parametrize("local_steps", ["auto", 3])
def test_linear_models_have_fixed_effects(shift, local_steps):
    """Far from each other clients' rows had 300 rounds of steps, and other slopes."""
    codes = np.unique(DATA.groups, return_inverse=True)[1]
    X = DATA.X + shift * np.random.RandomState(1).normal(size=8)[codes][:, None]
    training = Training(weights="n_samples", local_steps=local_steps)
    model = FedRepRegressor(training=training, alpha=0.0).fit(X, DATA.y, groups=DATA.groups)
    Z = np.column_stack([X, DATA.groups[:, None] == np.unique(DATA.groups)])
    wanted = np.linalg.lstsq(Z, DATA.y, rcond=None)[0]
    if local_steps == "auto":
        assert_allclose(model.coef_, np.tile(wanted[:3], (8, 1)), rtol=1e-6)
        assert_allclose(model.intercept_, wanted[3:], rtol=1e-6, atol=1e-8)
    # Clients' intercepts are at their minimum, those of new ones too.
    means = np.bincount(codes, DATA.y - model.predict(X, groups=DATA.groups))
    assert_allclose(means, 0.0, atol=1e-6)
    mine = codes == 2
    new = model.adapt(X[mine] + 1.0, DATA.y[mine], groups=np.full(mine.sum(), "new"))
    assert_allclose(new.coef_[-1], model.coef_[2])
    assert_allclose(new.intercept_[-1], model.intercept_[2] - model.coef_[2].sum(), rtol=1e-6)
    assert model.n_iter_ < 12


def test_own_parameters_at_their_minimum():
    """Of the penalised objective, the shared ones as they are sent."""
    bound = LinearModel(alpha=0.3, standardize=False).bind(3, None)
    pool = open_rows(bound, CLASSES.X, CLASSES.X.sum(axis=1) ** 2, CODES, 8)
    pool.ask(Keep, OLD)
    shared = np.array([False, True, False, True])
    asked = shared, [], 0.1
    sent, values = pool.ask(PartialUpdate, NEW[:, shared], *asked, minimise=True)
    models = pool.ask(Recall, NEW)
    found, slopes = pool.ask(ObjectivesGradients, models)
    assert_array_equal(models[:, shared], sent)
    assert_allclose(sent, NEW[:, shared])
    assert_allclose(slopes[:, ~shared], 0.0, atol=1e-12)
    assert_allclose(values, found)
    with pytest.raises(MessageError, match="quadratic"):
        blend_pool().ask(PartialUpdate, NEW[:, shared], *asked, minimise=True)


def test_new_clients_train_their_own_layers():
    model, rows = without(FedRepClassifier(**{**NETWORK, "max_iter": 15}), 2)
    adapted = model.adapt(*rows)
    s = model.model_.layer_slices()["output"].start
    assert_array_equal(adapted.params_[2, :s], model.cluster_params_[0, :s])
    shared = (model.predict_cluster(rows[0], 0) == rows[1]).mean()
    assert adapted.score(*rows[:2], groups=rows[2]) >= shared


@pytest.mark.parametrize("layers", ["hidden7", 4, ["linear"], ["hidden1", "hidden2", "typo"]])
def test_layers_that_are_not_there(layers):
    with pytest.raises(ValueError, match="shared_layers.* up to all"):
        fit(FedRepClassifier(shared_layers=layers, **NETWORK))


def test_nothing_that_clients_could_have_of_their_own():
    with pytest.raises(ValueError, match="fit_intercept=True"):
        fit(FedRepRegressor(fit_intercept=False))


# ---------------------------------------------------------------------------------- FedALA


def test_one_client_blends_nothing():
    """The mean model is the client's own: there is nothing between them."""
    mine = CODES == 0
    options = {"max_iter": 4, "tol": 0, "random_state": 0}
    models = [kind(MLP(4, precision="double"), **options) for kind in (FedALA, FedAvg)]
    rows = CLASSES.X[mine], CLASSES.y[mine], CLASSES.groups[mine]
    assert_allclose(*(model.fit(*rows).params_ for model in models), rtol=1e-12)


def test_networks_learn_to_keep_their_own_where_clusters_differ():
    """With a step of 1, the paper's, the weights of networks stay at the shared model."""
    data = make_clustered_regression(12, 4, n_samples=60, random_state=1)
    train = np.random.RandomState(0).uniform(size=len(data.y)) < 0.75
    options = {"hidden_layer_sizes": (16,), "max_iter": 30, "tol": 0, "random_state": 0}
    known = np.isin(data.groups, np.unique(data.groups)[:8])

    def rows(which):
        return {"X": data.X[which], "y": data.y[which], "groups": data.groups[which]}

    scores = []
    for step, some in (("auto", True), (1.0, True), ("auto", known)):
        model = FedALARegressor(blend_rate=step, standardize=False, **options)
        model.fit(**rows(train & some))
        scores.append(model.score(**rows(~train & some)))
    assert scores[0] > scores[1] + 0.2
    # New clients train for as long as those of the fit.
    adapted = model.adapt(**rows(train & ~known))
    assert adapted.score(**rows(~train & ~known)) > scores[2] - 0.2


def test_the_step_of_the_blend():
    """The paper's for linear models; that of networks is shared among four batches of 6 rows."""
    options = {"max_iter": 5, "tol": 0, "random_state": 0}
    models = (fit(FedALAClassifier(blend_rate=step, **options)) for step in ("auto", 1.0))
    assert_array_equal(*(model.params_ for model in models))
    options = {**NETWORK, "training": Training(batch_size=6)}
    model, same, other = (
        fit(FedALAClassifier(blend_rate=step, **options)).params_ for step in ("auto", 250.0, 1e3)
    )
    assert_array_equal(model, same)
    assert (model != other).any()


def test_weights_are_learned_by_clipped_gradient_steps():
    """The public code's steps, one client and all rows, written out."""
    pool, old, w = blend_pool(), OLD, NEW
    blended = np.array([False, True, True, True])
    first, values = pool.ask(BlendedUpdate, w, blended, 0, 0.1, 1.0, 1.0, 0.01)
    u, x, losses = np.ones((8, 4)), w.copy(), []
    active = np.ones(8, dtype=bool)
    for t in range(60):
        x[active] = np.where(blended, old + (w - old) * u, w)[active]
        f, g = pool.ask(ObjectivesGradients, x)
        u[active] = np.clip(u - g * (w - old), 0, 1)[active]
        losses.append(f)
        if t >= 10:
            active &= np.std(losses[-10:], axis=0) >= 0.01
    wanted = np.where(blended, old + (w - old) * u, w)
    assert_allclose(first, wanted, rtol=1e-9)
    assert_allclose(values, pool.ask(Objectives, wanted), rtol=1e-9)
    assert (pool.ask(Objectives, wanted) < pool.ask(Objectives, w)).all()
    # The next time one step from there.
    again, _ = pool.ask(BlendedUpdate, w, blended, 0, 0.1, 1.0, 1.0, 0.01)
    x = np.where(blended, wanted + (w - wanted) * u, w)
    u = np.clip(u - pool.ask(ObjectivesGradients, x)[1] * (w - wanted), 0, 1)
    assert_allclose(again, np.where(blended, wanted + (w - wanted) * u, w), rtol=1e-9)


def test_some_rows_learn_the_weights():
    """Which rows depends on the client and the call, not on where clients are."""
    blended, terms = np.ones(4, dtype=bool), {"share": 0.5}
    whole = blend_pool().ask(BlendedUpdate, NEW, blended, 0, 0.1, **terms)[0]
    part = blend_pool().subset([5, 2]).ask(BlendedUpdate, NEW[[5, 2]], blended, 0, 0.1, **terms)[0]
    assert_allclose(part, whole[[5, 2]], rtol=1e-9)


@pytest.mark.parametrize("loss, n_classes", [("log_loss", 2), ("squared_error", None)])
def test_rows_pass_the_layers_below_a_blend_once(loss, n_classes, monkeypatch):
    """Upper layers as a network of their own: the models and objectives of the whole one."""
    found = []
    for batch_size in (None, 6):
        for whole in (False, True):
            if whole:
                monkeypatch.setattr(MLP, "upper_layers", LocalModel.upper_layers)
            model = MLP((5, 4), loss=loss, precision="double", alpha=0.1).bind(3, n_classes)
            pool = open_rows(model, CLASSES.X, CLASSES.y, CODES, 8, random_state=0)
            old, w = 0.5 * np.random.RandomState(0).normal(size=(2, 8, model.n_params))
            pool.ask(Keep, old)
            terms = {"tol": 1e-3, "batch_size": batch_size}
            found.append(pool.ask(BlendedUpdate, w, model.head_mask(), 2, 0.1, 3.0, **terms))
            monkeypatch.undo()
    for k in (0, 2):
        for a, b in zip(found[k], found[k + 1], strict=True):
            assert_allclose(a, b, rtol=1e-9)
    assert not np.allclose(found[0][1], found[2][1], rtol=1e-3)


def test_epochs_of_a_blend_end_with_the_rows_of_each_client():
    """Clients of fewer batches than others have no more steps for that."""
    sizes = np.array([9, 13, 17, 12])
    codes, rng = np.repeat(np.arange(4), sizes), np.random.RandomState(0)
    X, y = rng.normal(size=(len(codes), 3)), rng.randint(0, 2, len(codes))
    bound = LinearModel("log_loss", alpha=0.1, standardize=False).bind(3, 2)
    old, w = 0.5 * rng.normal(size=(2, 4, 4))
    blended, asked = np.ones(4, dtype=bool), {"share": 1.0, "batch_size": 4}
    found = []
    for clients in ([0, 1, 2, 3], [0], [1], [2], [3]):
        pool = open_rows(bound, X, y, codes, 4, random_state=0)
        pool.ask(Keep, old)
        pool = pool.subset(clients)
        found.append(pool.ask(BlendedUpdate, w[clients], blended, 0, 0.1, 3.0, **asked)[0])
    assert_allclose(np.concatenate(found[1:]), found[0], rtol=1e-9)


def test_an_epoch_of_the_blend_is_all_batches():
    """With a short step the weights move as often as there are batches, by as much in all."""
    moved = []
    for batch_size in (None, 5):
        terms = np.ones(4, dtype=bool), 0, 0.1, 1e-6, 1.0, 1e3
        x = blend_pool(alpha=0.0).ask(BlendedUpdate, NEW, *terms, batch_size=batch_size)[0]
        moved.append(x - NEW)
    # Others are held at 1 by some of the batches.
    some = np.abs(moved[0]) > 1e-6
    assert some.sum() > 5
    assert_allclose(moved[1][some], 4 * moved[0][some], rtol=0.05)
