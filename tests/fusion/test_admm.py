"""ADMM of fusion problems: optima of cvxpy, honest gaps, exact partitions, hard clients."""

from itertools import product

import numpy as np
import pytest
from fusion_problems import (
    CLASSIFIERS,
    LOSSES,
    assert_optimal,
    make_problem,
    make_rows,
    pool_of,
)
from numpy.testing import assert_allclose, assert_array_equal
from trials import spread

from skcfl.calls.curvatures import Solve
from skcfl.calls.proofs_asked import Rounding
from skcfl.fusion.admm import admm
from skcfl.fusion.problem import FusionProblem
from skcfl.fusion.reduced import lam_max_bounds
from skcfl.graphs import Graph, complete_graph, knn_graph
from skcfl.penalties import L2

pytest.importorskip("cvxpy")


def test_conjugate_gradients_on_large_graphs(monkeypatch):
    problem = make_problem("squared_error", 30, "knn")
    lam = 0.3 * lam_max_bounds(problem)[1]
    a, _ = admm(problem, lam, tol=1e-8, contraction=False)
    monkeypatch.setattr("skcfl.fusion.admm.MAX_INVERSE", 5)
    b, _ = admm(problem, lam, tol=1e-8, contraction=False)
    assert a.objective == pytest.approx(b.objective, rel=1e-7)
    assert abs(a.n_iter - b.n_iter) <= 10


@pytest.mark.parametrize("loss", CLASSIFIERS)
def test_clients_of_one_class(loss):
    """Their own problem has no minimum (a free intercept), the fusion problem has one."""
    Z, t, codes = make_rows(loss, 6, n_rows=12, seed=1)
    t[codes == 2], t[codes == 4] = 1.0, 0.0
    problem = make_problem(loss, 6, rows=(Z, t, codes), alpha=0.01, fit_intercept=True)
    top = lam_max_bounds(problem)[1]
    for share in (0.1, 1.1):
        assert_optimal(problem, share * top, admm(problem, share * top, tol=1e-7)[0])
    # On its own, without a penalty: at its infimum but for rounding, and the gap knows that.
    t[codes == 3] = (Z[codes == 3, 0] > 0).astype(float)
    graph = Graph(6, [0, 1, 2, 4], [1, 2, 4, 5])
    problem = make_problem(loss, 6, graph, rows=(Z, t, codes), alpha=0.0)
    assert admm(problem, 0.05, tol=1e-7)[0].converged


@pytest.mark.parametrize(
    ("loss", "alpha"), [*((loss, 0.01) for loss in LOSSES), ("squared_error", 0.0), ("huber", 0.0)]
)
def test_fewer_rows_than_features(loss, alpha):
    """Two rows and four features per client: only together they determine a model."""
    problem = make_problem(loss, 8, n_rows=2, d=4, seed=3, n_clusters=1, spread=0.7, alpha=alpha)
    lam = (1.1 if alpha else 0.5) * lam_max_bounds(problem)[1]
    assert_optimal(problem, lam, admm(problem, lam, tol=1e-7)[0])


def test_certify_proves_where_many_models_meet_at_once():
    """What is proved from a rough solution is what a fine one shows."""
    proved = 0
    for seed in range(3):
        problem = make_problem("squared_error", 24, n_rows=12, d=4, seed=seed)
        top = lam_max_bounds(problem)[1]
        for share in (0.4, 0.6):
            plain, _ = admm(problem, share * top, tol=1e-5)
            result, _ = admm(problem, share * top, tol=1e-5, certify=True)
            assert result.extra["partition_optimal"] >= plain.extra["partition_optimal"]
            if result.extra["partition_optimal"]:
                fine, _ = admm(problem, share * top, tol=1e-11, certify=True)
                assert_allclose(result.params, fine.params, atol=1e-4)
                assert result.objective <= plain.objective * (1 + 1e-12)
                proved += 1
    assert proved >= 5


@pytest.mark.parametrize(
    ("loss", "graph", "share"),
    spread(product(CLASSIFIERS, ["complete", "knn"], [0.003, 0.03, 0.3]), 4),
)
def test_clients_whose_classes_are_nearly_separated(loss, graph, share):
    """Their curvature at the minimum is far below its bound: the step has to adapt.

    With residual balancing alone these took up to 3000 iterations.
    """
    rng = np.random.RandomState(0)
    n, d, n_rows = 20, 4, 12
    truth = rng.standard_normal((3, d)) * 2.0 / np.sqrt(d)
    cluster, codes = rng.randint(3, size=n), np.repeat(np.arange(n), n_rows)
    Z = rng.standard_normal((len(codes), d))
    z = np.einsum("rd,rd->r", Z, truth[cluster[codes]])
    t = (z + 0.7 * rng.logistic(size=len(z)) > 0).astype(float)
    local = pool_of(loss, Z, t, codes, n, alpha=0.05, fit_intercept=True).ask(Solve)[0]
    network = complete_graph(n) if graph == "complete" else knn_graph(local, 5)
    pool = pool_of(loss, Z, t, codes, n, alpha=1e-4, fit_intercept=True)
    problem = FusionProblem(pool, network, L2())
    lam = share * lam_max_bounds(problem, tol=0.05)[1]
    plain, _ = admm(problem, lam, tol=1e-6, contraction=False, max_iter=200)
    assert plain.converged
    exact, _ = admm(problem, lam, tol=1e-6, max_iter=100)
    assert exact.converged and exact.extra["partition_optimal"]
    assert exact.objective == pytest.approx(plain.objective, rel=2e-6)


def test_the_rounding_of_clients_is_in_every_gap(monkeypatch):
    """What came with the other numbers of a check is that of the models it is used for."""
    rounding, known = FusionProblem.rounding, []

    def checked(problem, X, lam, *args, of_clients=None, **how):
        if of_clients is not None:
            known.append(of_clients)
            assert_array_equal(of_clients, problem.pool.ask(Rounding, X))
            assert of_clients.min() > 0.0
        return rounding(problem, X, lam, *args, of_clients=of_clients, **how)

    monkeypatch.setattr(FusionProblem, "rounding", checked)
    problem = make_problem("squared_error", 7, "complete", n_rows=14, alpha=0.01)
    admm(problem, 0.3 * lam_max_bounds(problem)[1], tol=1e-9)
    assert len(known) > 2
