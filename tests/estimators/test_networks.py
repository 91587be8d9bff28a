"""Networks in the everyday classes: recovery, reproducibility, refusals."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import PickledHost, named
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import skcfl
from skcfl import (
    FedAvg,
    FedAvgClassifier,
    IFCAClassifier,
    LocalModelsClassifier,
    LocalModelsRegressor,
    Training,
)
from skcfl.calls.first_order import LocalUpdate, Objectives
from skcfl.datasets import make_clustered_regression, make_rotated_digits
from skcfl.federation.inprocess import open_rows
from skcfl.federation.remote import RemoteFederation
from skcfl.models import MLP, LinearModel
from skcfl.rounds.alternate import Options, alternate
from skcfl.rounds.local_training import solve_local


@pytest.fixture(scope="module")
def digits():
    """Rows, targets and clients."""
    data = make_rotated_digits(2, 3, samples_per_client=60, random_state=0)
    return data.X, data.y, data.groups


def test_the_everyday_class_is_the_generic_one(digits):
    options = {"max_iter": 5, "tol": 0, "random_state": 0}
    net = FedAvgClassifier("squared_hinge", alpha=0.1, hidden_layer_sizes=[7], **options)
    model = MLP(7, loss="squared_hinge", alpha=0.1)
    assert_array_equal(net.fit(*digits).params_, FedAvg(model, **options).fit(*digits).params_)
    assert not hasattr(net, "coef_")
    weights = net.model_.weights(net.params_[0])
    assert [W.shape for W, _ in weights.values()] == [(64, 7), (7, 10)]


def test_without_hidden_layers_the_model_is_linear(digits):
    net = LocalModelsClassifier(activation="tanh", hidden_layer_sizes=[])
    assert isinstance(net._local_model(), LinearModel)
    assert isinstance(net.set_params(hidden_layer_sizes=5)._local_model(), MLP)


def make_pool(seed=0):
    rng = np.random.default_rng(seed)
    X, codes = rng.normal(size=(60, 3)), np.repeat([0, 1, 2], 20)
    model = MLP((4,), "tanh", "squared_error", precision="double").bind(3)
    return open_rows(model, X, np.sin(X[:, 0]), codes, 3, random_state=seed)


def test_local_training_stops_where_models_rest():
    rule = {"optimizer": "sgd", "step_size": 0.5, "max_iter": 5000}
    loose = solve_local(make_pool(), Options(**rule, tol=3e-2))
    tight = solve_local(make_pool(), Options(**rule, tol=1e-3))
    assert loose.converged and tight.converged
    assert 1 < loose.n_iter < tight.n_iter < 5000
    for result, tol in ((loose, 3e-2), (tight, 1e-3)):
        change = result.history["change"]
        assert len(change) == result.n_iter
        assert change[-1] < tol <= change[:-1].min()
    assert tight.objective == tight.history["objective"][-1] < loose.objective
    values = make_pool().ask(Objectives, tight.params)
    assert_allclose(tight.objective, values.mean(), rtol=1e-12)


def test_local_training_is_a_loop_over_clients():
    options = Options(max_iter=3, local_steps=4, optimizer="adam", step_size=0.01, tol=0)
    found = solve_local(make_pool(), options)
    assert found.converged
    pool = make_pool()
    start = pool.start()
    for i in range(3):
        w = np.tile(start, (3, 1))
        for _ in range(3):
            w[i] = pool.subset([i]).ask(LocalUpdate, w[i], 4, 0.01, "adam")[0]
        assert_allclose(found.params[i], w[i], rtol=1e-12)
    p = pool.n_params
    # objectives by round, and the models once they are trained; down goes the common start
    assert found.history["floats_up"].tolist() == [3, 3, 3 * p + 3]
    assert found.history["floats_down"].tolist() == [3 * p, 0, 0]


def test_local_training_that_falls_short_says_so(digits):
    plain = {"alpha": 1e-4, "standardize": False}  # nothing to send for either
    net = LocalModelsClassifier(hidden_layer_sizes=(4,), max_iter=2, **plain)
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        net.fit(*digits)
    assert net.n_iter_ == 2
    assert net.floats_up_ == net.history_["floats_up"].sum() > 0
    assert net.floats_down_ == net.history_["floats_down"].sum() > 0


def test_networks_train_for_their_rounds(digits):
    """Where the rounds are automatic, moving models are no shortfall; restless clients are."""
    for net in (FedAvgClassifier(), IFCAClassifier(2)):
        net.set_params(hidden_layer_sizes=(8,), random_state=0)
        assert net.fit(*digits).n_iter_ == 50  # warnings are errors
        assert net.history_["change"][-1] > net.tol
        with pytest.warns(ConvergenceWarning, match="max_iter=3"):
            net.set_params(max_iter=3).fit(*digits)
    restless = Options(max_iter=1, budget=True, averaging="model", step_size=0.01, polish=False)
    pool = make_pool()
    result = alternate(pool, pool.model.init_params(2, 0), restless, np.random.RandomState(0))
    assert "stable for 0 rounds" in result.shortfall


NETWORKS = [IFCAClassifier, LocalModelsRegressor]
EXACT = [Training(polish=True), Training(averaging="gradient")]
BAD = [
    ({"fit_intercept": False}, "fit_intercept=False"),
    ({"hidden_layer_sizes": (3, 0)}, "hidden_layer_sizes"),
    ({"activation": "swish"}, "activation"),
    ({"training": Training(optimizer="sgd")}, "training: step_size='auto'"),
    ({"training": Training(optimizer="momentum")}, "training: step_size='auto'"),
]
REFUSED = [(cls, options, message) for cls in NETWORKS for options, message in BAD]
REFUSED += [(FedAvgClassifier, {"training": training}, "training: .*MLP") for training in EXACT]


@pytest.mark.parametrize(("cls", "options", "message"), REFUSED)
def test_what_networks_cannot_do_is_refused(cls, options, message, digits):
    net = cls(**{"hidden_layer_sizes": (4,), **options})
    with pytest.raises(ValueError, match=message):
        net.fit(*digits)


def test_gradient_averaging_takes_a_step_of_the_users(digits):
    training = Training(averaging="gradient", step_size=0.5)
    net = FedAvgClassifier(hidden_layer_sizes=(16,), training=training, max_iter=60, tol=0)
    objective = net.fit(*digits).history_["objective"]
    assert objective[-1] < 0.7 * objective[0]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("method", "n_models"),
    [("LocalModels", 6), ("IFCA", 2), ("FedProto", 6)],
)
def test_alpha_is_a_prior_of_each_model(method, n_models):
    """Three tenths of one over the rows, a row of weight two counted twice; at sites, too."""
    kind = "Classifier" if method == "FedProto" else "Regressor"
    data = make_clustered_regression(6, 2, 3, n_samples=20, random_state=0)
    y = data.y > data.y.mean() if kind == "Classifier" else data.y
    more = {"random_state": 0} | ({"n_clusters": 2} if method == "IFCA" else {})
    model = getattr(skcfl, method + kind)(hidden_layer_sizes=3, max_iter=2, **more)
    rows = data.X, y, data.groups
    assert_allclose(clone(model).fit(*rows).alpha_, 0.3 * n_models / 120)
    twice = clone(model).fit(*rows, sample_weight=np.full(120, 2.0))
    assert_allclose(twice.alpha_, 0.3 * n_models / 240)
    host = PickledHost(named([rows]))
    there = clone(model).fit_federation(RemoteFederation([host]))
    here = clone(model).fit(*rows)
    assert there.alpha_ == here.alpha_
    assert_allclose(there.params_, here.params_, rtol=1e-4, atol=1e-6)
    given = clone(model).set_params(alpha=0.01).fit(*rows)
    assert given.alpha_ == 0.01
