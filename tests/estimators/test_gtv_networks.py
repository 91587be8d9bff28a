"""GTV minimisation of networks: inexact message passing, clusters, what is refused."""

from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from trials import some

from skcfl import (
    GTV,
    ConvexClusteredFL,
    FedAvgClassifier,
    GTVClassifier,
    GTVRegressor,
    LamSearch,
    LocalModelsClassifier,
)
from skcfl.calls.first_order import ObjectivesGradients
from skcfl.certificates import certify_partition, duality_gap
from skcfl.datasets import make_rotated_digits
from skcfl.fusion.primal_dual_inexact import NetworkProblem, primal_dual_inexact
from skcfl.fusion.solvers import PDMM, InexactPrimalDual
from skcfl.graphs import Graph, chain_graph, complete_graph
from skcfl.inspection import EmpiricalGraphDisplay
from skcfl.model_selection import lam_max, lam_path
from skcfl.models import MLP, Autoencoder, LinearModel
from skcfl.penalties import L1, L2, SquaredL2


@pytest.fixture(scope="module")
def digits():
    """Rows for training and for validation, with their clients, and the clients' clusters."""
    data = make_rotated_digits(2, 6, samples_per_client=60, random_state=0)
    place = np.zeros(len(data.groups), dtype=int)
    for client in np.unique(data.groups):
        mine = data.groups == client
        place[mine] = np.arange(mine.sum())
    rows = [(data.X[s], data.y[s], data.groups[s]) for s in (place < 30, place >= 30)]
    return *rows, data.labels


WEIR = chain_graph(8, [1, 1, 1, 0.1, 1, 1, 1])


def waves(n_rows=20, empty=(), seed=0):
    """Two clusters of four neighbours on a chain, with waves of opposite sign."""
    rng = np.random.RandomState(seed)
    groups = np.repeat(np.setdiff1d(np.arange(8), empty), n_rows)
    X = rng.uniform(-2, 2, size=(len(groups), 1))
    sign = np.where(groups < 4, 1.0, -1.0)
    return X, sign * np.cos(2 * X[:, 0]) + 0.1 * rng.normal(size=len(groups)), groups


def wave_net(lam=0.1, **options):
    options = {"graph": WEIR, "standardize": False, "random_state": 0, **options}
    return GTVRegressor(lam, hidden_layer_sizes=(16,), activation="tanh", **options)


@cache
def fitted_wave_net(lam=0.1):
    """That of the waves, which no test may change."""
    X, y, groups = waves()
    return wave_net(lam).fit(X, y, groups=groups)


@pytest.mark.parametrize("refit", some([False, True], 1))
def test_clusters_of_digits_are_found_by_default(digits, refit):
    """The graph, lam and clusters come from the rows alone."""
    train, test, labels = digits
    options = {"hidden_layer_sizes": (16,), "random_state": 0}
    net = GTVClassifier(refit=refit, search=LamSearch(n_lams=4), **options).fit(*train)
    assert adjusted_rand_score(labels, net.labels_) == 1.0
    alone = LocalModelsClassifier(**options).fit(*train)
    one = FedAvgClassifier(**options).fit(*train)
    mine, local, common = (m.score(*test[:2], groups=test[2]) for m in (net, alone, one))
    assert mine > local + 0.1
    assert mine > common + 0.02


def test_nodes_without_rows_get_their_neighbours_network():
    X, y, groups = waves(empty=[1, 7])
    fresh = waves(50, seed=1)
    for options in ({}, {"refit": True}):
        net = wave_net(0.3, nodes=range(8), **options).fit(X, y, groups=groups)
        assert_array_equal(net.labels_, [0] * 4 + [1] * 4)
        assert_array_equal(net.without_rows_, np.isin(np.arange(8), [1, 7]))
        empty = np.isin(fresh[2], [1, 7])
        assert net.score(fresh[0][empty], fresh[1][empty], groups=fresh[2][empty]) > 0.9
    apart = wave_net(0.0, nodes=range(8)).fit(X, y, groups=groups)
    mean = 0.5 * (apart.params_[0] + apart.params_[2])
    assert_allclose(apart.params_[1], mean, rtol=1e-4, atol=1e-6)
    assert_array_equal(apart.params_[7], apart.params_[6])


def test_a_large_lam_makes_one_network(digits):
    options = {"hidden_layer_sizes": (8,), "random_state": 0}
    net = GTVClassifier(1.0, graph="complete", **options).fit(*digits[0])
    assert net.n_clusters_ == 1
    apart = np.linalg.norm(net.params_ - net.params_.mean(axis=0), axis=1)
    assert apart.max() < 0.1 * np.linalg.norm(net.params_[0])


def test_lam_zero_is_a_graph_without_edges(digits):
    train, _, labels = digits
    n = len(labels)
    options = {"hidden_layer_sizes": (8,), "random_state": 0}
    net = GTVClassifier(0.0, graph="complete", **options).fit(*train)
    bare = GTVClassifier(1.0, graph=Graph(n, [], []), **options).fit(*train)
    assert_array_equal(net.params_, bare.params_)
    assert net.n_clusters_ == bare.n_clusters_ == n
    assert not net.dual_coef_.any()
    assert net.score(*train[:2], groups=train[2]) > 0.99


@pytest.mark.parametrize("penalty", [L2(), L1(), SquaredL2()], ids=str)
@pytest.mark.parametrize("seed", some(range(2), 1))
def test_without_hidden_layers_it_is_the_convex_problem(penalty, seed):
    """Whose exact solution is known: clusters are the same, models and forces nearly so."""
    X, y, groups = waves(seed=seed)
    X = np.column_stack([X, X**2, np.cos(2 * X)])
    options = {"lam": 0.1, "graph": WEIR, "penalty": penalty, "random_state": 0}
    exact = GTV(LinearModel(alpha=0.01, standardize=False), **options).fit(X, y, groups=groups)
    model = MLP((), loss="squared_error", alpha=0.01, precision="double", standardize=False)
    net = GTV(model, solver=InexactPrimalDual(n_iter_no_change=None), tol=5e-4, **options)
    net.fit(X, y, groups=groups)
    assert exact.objective_ <= net.objective_ * (1 + 1e-5)
    assert net.objective_ <= 1.003 * exact.objective_
    assert_array_equal(net.labels_, exact.labels_)
    assert exact.partition_optimal_ or not penalty.fuses
    assert_allclose(net.params_, exact.params_, atol=5e-4)
    assert_allclose(net.dual_coef_, exact.dual_coef_, atol=1e-3)


def test_fits_end_near_a_stationary_point(lam=0.1):
    X, y, groups = waves()
    net = fitted_wave_net(lam)
    pool = net._task(X, y, groups, None).pool
    problem = NetworkProblem(pool, net.graph_, L2())
    W = net.fusion_params_.astype(float)
    assert_allclose(net.objective_, problem.primal(W, lam), rtol=1e-4)
    slopes = pool.ask(ObjectivesGradients, net.fusion_params_)[1] + net.dual_coef_
    assert np.linalg.norm(slopes) < 0.02 * np.linalg.norm(problem.slopes)
    assert_allclose(net.dual_coef_.sum(axis=0), 0.0, atol=1e-5)
    # What a node passes on is no more than its edges carry.
    assert (np.linalg.norm(net.dual_coef_, axis=1) <= lam * WEIR.degrees() * (1 + 1e-6)).all()
    assert net.history_["residual"][-1] < 0.02
    assert net.dual_gap_ == np.inf and net.partition_optimal_ is False
    display = EmpiricalGraphDisplay.from_estimator(net)
    between = net.labels_[WEIR.heads] != net.labels_[WEIR.tails]
    assert display.saturated_[between].all()


def test_messages_are_booked():
    net = fitted_wave_net()
    n, d = net.params_.shape
    checks = len(net.history_["round"])
    assert net.history_["messages"].sum() == 2 * WEIR.n_edges * net.n_iter_
    assert net.history_["message_floats"].sum() == d * net.history_["messages"].sum()
    # A model per iteration; gradients and values at checks, and twice before the first iteration.
    assert net.floats_up_ == n * d * net.n_iter_ + (n * d + n) * (checks + 2)
    lengths = {len(column) for column in net.history_.values()}
    assert lengths == {checks}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_any_network_will_do(digits):
    """Without targets too."""
    train, _, labels = digits
    net = GTV(Autoencoder((6,)), 0.01, max_iter=60, random_state=0).fit(train[0], groups=train[2])
    rebuilt = net.predict(train[0], groups=train[2])
    mean = train[0].mean(axis=0)
    assert ((rebuilt - train[0]) ** 2).mean() < 0.8 * ((mean - train[0]) ** 2).mean()
    assert len(net.labels_) == len(labels)


def test_refit_trains_the_clusters_on():
    X, y, groups = waves()
    net = wave_net(3.0).fit(X, y, groups=groups)
    again = wave_net(3.0, refit=True).fit(X, y, groups=groups)
    assert_array_equal(net.labels_, again.labels_)
    assert_array_equal(net.fusion_params_, again.fusion_params_)
    assert_array_equal(again.params_, again.cluster_params_[again.labels_])
    # Shrinkage towards the other cluster is gone.
    scores = [m.score(X, y, groups=groups) for m in (net, again)]
    assert scores[1] > scores[0]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_path_of_networks():
    X, y, groups = waves()
    net = wave_net(refit=True, max_iter=20)
    path = lam_path(net, X, y, groups=groups, lams=[0.0, 0.3])
    assert np.isinf(path.gaps).all()
    assert not path.optimal.any()
    for k, lam in enumerate(path.lams):
        fitted = clone(net).set_params(lam=float(lam)).fit(X, y, groups=groups)
        assert adjusted_rand_score(path.labels[k], fitted.labels_) == 1.0
        assert_allclose(path.fusion_params[k], fitted.fusion_params_, rtol=1e-5, atol=1e-6)
    assert len(lam_path(net, X, y, groups=groups, n_lams=2).lams) == 2


def test_warm_starts_go_on():
    X, y, groups = waves()
    net = clone(fitted_wave_net()).set_params(warm_start=True).fit(X, y, groups=groups)
    first = net.objective_
    net.fit(X, y, groups=groups)
    assert net.objective_ <= first * (1 + 1e-3)
    assert_array_equal(net.labels_, [0] * 4 + [1] * 4)


def test_ends_of_fits():
    X, y, groups = waves()
    with pytest.warns(ConvergenceWarning, match="residual is .* after max_iter=5 iterations"):
        wave_net(max_iter=5).fit(X, y, groups=groups)
    patient = {"solver": InexactPrimalDual(n_iter_no_change=None)}
    loose = wave_net(tol=0.02, **patient).fit(X, y, groups=groups)
    residual = loose.history_["residual"]
    assert residual[-1] <= 0.02 < residual[:-1].min()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "admm"}, "solver='admm' needs exact proximal points"),
        ({"solver": "pdmm"}, "Use solver='primal_dual'"),
        ({"fit_intercept": False}, "fit_intercept=False is for linear models"),
        ({"solver": PDMM(0.5)}, r"solver=PDMM\(participation=0.5\) needs exact"),
        ({"solver": InexactPrimalDual(ratio=-1.0)}, "'ratio' parameter"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        wave_net(**options).fit(*waves()[:2], groups=waves()[2])


def test_what_needs_convexity_is_refused():
    X, y, groups = waves()
    with pytest.raises(ValueError, match="GTV with graph='complete'"):
        ConvexClusteredFL(MLP((4,), loss="squared_error"), 0.1).fit(X, y, groups=groups)
    net = fitted_wave_net()
    with pytest.raises(ValueError, match="lam_max is known for convex problems only"):
        lam_max(net, X, y, groups=groups)
    for proof in (duality_gap, certify_partition):
        with pytest.raises(ValueError, match="Nothing can be proved of fits of MLP"):
            proof(net, X, y, groups)


def test_one_client():
    X, y, _ = waves()
    net = wave_net("auto", graph="knn").fit(X, np.abs(y), groups=np.zeros(len(y)))
    assert (net.n_clusters_, net.lam_) == (1, 0.0)
    assert_array_equal(net.dual_coef_, 0.0)


def test_options_of_the_solver():
    """As printed, unit ratio and all, on the complete graph."""
    X, y, groups = waves()
    pool = wave_net()._task(X, y, groups, None).pool
    problem = NetworkProblem(pool, complete_graph(8), L2())
    result, state = primal_dual_inexact(problem, 0.01, ratio=1.0, max_iter=30, relaxation=1.5)
    assert state.ratio == 1.0
    assert_array_equal(result.history["ratio"], 1.0)
    again, _ = primal_dual_inexact(problem, 0.01, max_iter=30, state=state)
    assert again.objective < result.objective
