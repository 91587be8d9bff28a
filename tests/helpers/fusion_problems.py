"""Small fusion problems and their optima by cvxpy, for the tests of solvers and theorems."""

import contextlib
import warnings

import numpy as np
import pytest
from hypothesis import currently_in_test_context, reject
from loss_objects import loss_of

from skcfl.federation.inprocess import open_rows
from skcfl.fusion.problem import FusionProblem
from skcfl.fusion.reduced import contract
from skcfl.fusion.theorems import gap_of
from skcfl.graphs import Graph, complete_graph, from_adjacency, knn_graph
from skcfl.models import LinearModel, Location
from skcfl.penalties import L2

LOSSES = ("squared_error", "log_loss", "squared_hinge", "huber", "poisson")
# The youngest losses, for the tests of proofs and of one solver of each kind.
MORE_LOSSES = (*LOSSES, "gamma", "tweedie", "quantile")
CLASSIFIERS = ("log_loss", "squared_hinge")
GRAPHS = ("complete", "weighted", "knn", "tree", "disconnected")


def targets_of(rng, loss, z, noise=None):
    """Targets of a loss about linear scores; noise, where they are any numbers, has heavy tails.

    Unless a standard deviation is given.
    """
    if loss in CLASSIFIERS:
        return (z + rng.logistic(size=len(z)) > 0).astype(float)
    if loss == "gamma":
        return rng.gamma(2.0, np.exp(np.clip(0.5 * z, -3.0, 2.0)))
    if loss in ("poisson", "tweedie"):
        return rng.poisson(np.exp(np.clip(0.5 * z, -3.0, 2.0))).astype(float)
    if noise is None:
        return z + rng.standard_t(3, size=len(z))
    return z + noise * rng.standard_normal(len(z))


def make_rows(loss, n_clients, n_rows=8, d=2, seed=0, n_clusters=3, spread=2.0, empty=()):
    """Rows of clients that follow a few linear models, none of `empty`: Z, t, codes."""
    rng = np.random.RandomState(seed)
    truth = spread * rng.standard_normal((n_clusters, d)) / np.sqrt(d)
    cluster = rng.randint(n_clusters, size=n_clients)
    codes = np.repeat(np.arange(n_clients), n_rows)
    Z = rng.standard_normal((len(codes), d))
    z = np.einsum("rd,rd->r", Z, truth[cluster[codes]])
    t = targets_of(rng, loss, z)
    keep = ~np.isin(codes, empty)
    return Z[keep], t[keep], codes[keep]


def pool_of(loss, Z, t, codes, n_clients, *, alpha=0.1, fit_intercept=False):
    loss = loss_of(loss, quantile=0.4, smoothing=0.5)
    model = LinearModel(loss=loss, alpha=alpha, fit_intercept=fit_intercept)
    bound = model.bind(Z.shape[1], n_classes=2 if loss in CLASSIFIERS else None)
    return open_rows(bound, Z, t, codes, n_clients)


def make_problem(
    loss, n_clients=6, graph="complete", *, penalty=None, seed=0, rows=None, **options
):
    """A fusion problem of linear models that remembers its rows as ``problem.rows``."""
    model = {k: options.pop(k) for k in ("alpha", "fit_intercept") if k in options}
    Z, t, codes = make_rows(loss, n_clients, seed=seed, **options) if rows is None else rows
    if isinstance(graph, str):
        graph = make_graph(np.random.RandomState(seed + 1), n_clients, graph)
    pool = pool_of(loss, Z, t, codes, n_clients, **model)
    problem = FusionProblem(pool, graph, L2() if penalty is None else penalty)
    problem.rows = Z, t, codes
    return problem


def make_points(a, graph=None, codes=None, *, loss="squared_error", delta=1.0, penalty=None):
    """Convex clustering of the points a: one row per client, or as the codes say."""
    a = np.asarray(a, dtype=float).reshape(len(a), -1)
    codes = np.arange(len(a)) if codes is None else codes
    n = int(codes.max()) + 1
    pool = open_rows(Location(loss=loss, delta=delta).bind(a.shape[1]), a, None, codes, n)
    graph = complete_graph(n) if graph is None else graph
    problem = FusionProblem(pool, graph, L2() if penalty is None else penalty)
    problem.rows = a, None, codes
    return problem


def make_clustered(rng, kind, labels, d, graph=None, *, spread=2.0, delta=2.0, **options):
    """Clients of clusters, with much or little noise: points, or rows of a loss."""
    labels, noise = np.asarray(labels), rng.choice([0.1, 1.0])
    centres = spread * rng.standard_normal((labels.max() + 1, d))
    if kind.startswith("points"):
        a = centres[labels] + 0.3 * noise * rng.standard_normal((len(labels), d))
        loss = "huber" if "Huber" in kind else "squared_error"
        return make_points(a, graph, loss=loss, delta=delta, penalty=options.get("penalty"))
    codes = np.repeat(np.arange(len(labels)), rng.choice([6, 30]))
    Z = rng.standard_normal((len(codes), d))
    z = np.einsum("rd,rd->r", Z, centres[labels[codes]])
    t = targets_of(rng, kind, z, noise)
    graph = "complete" if graph is None else graph
    return make_problem(kind, len(labels), graph, rows=(Z, t, codes), **options)


def make_graph(rng, n, kind):
    """A random graph of a kind."""
    if kind == "complete":
        return complete_graph(n)
    if kind == "knn":
        return knn_graph(rng.standard_normal((n, 2)), 3, connected=True)
    if kind == "tree":
        heads = np.array([rng.randint(i) for i in range(1, n)], dtype=int)
        return Graph(n, heads, np.arange(1, n), rng.uniform(0.2, 2.0, n - 1))
    A = np.triu((rng.uniform(size=(n, n)) < 0.5) * rng.uniform(0.2, 2.0, (n, n)), 1)
    if kind == "disconnected":
        A[: n // 2, n // 2 :] = 0.0
    else:
        A[np.arange(n - 1), np.arange(1, n)] = 1.0
    return from_adjacency(A + A.T)


def optimum(problem, lam, labels=None):
    """Optimal value and models by cvxpy; with labels those of the reduced problem."""
    import cvxpy as cp

    model, graph = problem.pool.model, problem.graph
    Z, t, codes = problem.rows
    n, d = problem.n, problem.d
    variable = cp.Variable((n if labels is None else labels.max() + 1, d))
    W = variable if labels is None else variable[labels]
    share = 1.0 / np.bincount(codes, minlength=n)[codes]
    root = np.sqrt(share)
    if isinstance(model, Location):
        distance = cp.norm(W[codes] - Z, axis=1)
        if model.loss == "huber":
            value = share @ cp.huber(distance, model.delta) / 2
        else:
            value = cp.sum_squares(cp.multiply(root[:, None], W[codes] - Z)) / 2
    else:
        design = np.column_stack([Z, np.ones(len(Z))]) if model.fit_intercept else Z
        z = cp.sum(cp.multiply(design, W[codes]), axis=1)
        sign = None if t is None else 2 * t - 1
        value = {
            "squared_error": lambda: cp.sum_squares(cp.multiply(root, z - t)) / 2,
            "huber": lambda: share @ cp.huber(z - t, model.loss.delta) / 2,
            "gamma": lambda: (
                share @ (z + cp.multiply(t, cp.exp(-z)) - np.log(np.where(t > 0, t, 1.0)) - 1.0)
            ),
            "tweedie": lambda: (
                share @ (2 * cp.exp(z / 2) + 2 * cp.multiply(t, cp.exp(-z / 2)) - 4 * np.sqrt(t))
            ),
            "quantile": lambda: share @ _quantile(z - t, 0.4, 0.5),
            "poisson": lambda: share @ (cp.exp(z) - cp.multiply(t, z)),
            "log_loss": lambda: share @ cp.logistic(cp.multiply(-sign, z)),
            "squared_hinge": lambda: cp.sum_squares(
                cp.multiply(root, cp.pos(1 - cp.multiply(sign, z)))
            ),
        }[model.loss.name]()
        decay = np.sqrt(model.decay)
        if decay.any():
            value += cp.sum_squares(cp.multiply(decay[None, :], W)) / 2
    if graph.n_edges:
        differences = W[graph.heads] - W[graph.tails]
        name = type(problem.penalty).__name__
        if name == "SquaredL2":
            if problem.penalty.Q is not None:
                differences = differences @ np.linalg.cholesky(problem.penalty.Q)
            fusion = cp.sum_squares(cp.multiply(np.sqrt(graph.weights)[:, None], differences)) / 2
        else:
            fusion = graph.weights @ cp.norm(differences, 2 if name == "L2" else 1, axis=1)
        value += lam * fusion
    solved = cp.Problem(cp.Minimize(value))
    for tol in (1e-11, 1e-10, 1e-9, 1e-8):
        tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), tol)
        with warnings.catch_warnings():
            # More digits were asked for than there are: ask for fewer.
            warnings.filterwarnings("ignore", "Solution may be inaccurate")
            with contextlib.suppress(cp.error.SolverError):
                solved.solve(solver=cp.CLARABEL, **tight)
        if solved.status == "optimal":
            break
    else:
        if solved.status != "optimal_inaccurate":  # the reference failed, not the project
            if currently_in_test_context():
                reject()
            pytest.skip(f"cvxpy found no optimum: {solved.status}")
    X = variable.value if labels is None else variable.value[labels]
    return float(solved.value), X


def assert_optimal(problem, lam, *results, tol=2e-6, models=False):
    """Neither above the optimum of cvxpy nor above what the gap says."""
    best, W = optimum(problem, lam)
    size = max(abs(best), 1e-6 * problem.at_start)
    for result in results:
        assert result.converged and result.shortfall == ""
        excess = result.objective - best
        assert abs(excess) <= tol * size
        assert result.extra["dual_gap"] >= excess - 1e-7 * size
        assert result.objective == pytest.approx(problem.primal(result.params, lam), rel=1e-12)
        if models:
            np.testing.assert_allclose(result.params, W, atol=1e-3)


def _quantile(r, q, h):
    """Smoothed pinball loss of residuals: the least of the kink and a parabola, moved."""
    import cvxpy as cp

    near = cp.Variable(r.shape)
    kink = cp.maximum((1 - q) * near, -q * near)
    return kink + cp.square(r + (0.5 - q) * h - near) / (2 * h)


def solve_exactly(problem, lam):
    """Models and clusters of an exact solution, with the proof of its partition."""
    start, one = np.zeros((problem.n, problem.d)), problem.graph.components()
    outcome = contract(problem, lam, one, start, max_splits=30, max_iter=3000)
    assert outcome is not None and outcome.certified
    W = outcome.theta[outcome.labels]
    assert gap_of(problem, lam, W, outcome.divergence) <= 1e-8 * problem.at_start
    return W, outcome.labels


def flow_value(graph, q, norm=2):
    """Least ``max_e |u_e| / w_e`` over flows u with ``D'u = -q``, by cvxpy."""
    import cvxpy as cp

    size = np.abs(q).max() or 1.0  # the solver's accuracy is absolute
    u, t = cp.Variable((graph.n_edges, q.shape[1])), cp.Variable()
    balance = graph.incidence().T @ u == -q / size
    cp.Problem(cp.Minimize(t), [balance, cp.norm(u, norm, axis=1) <= t * graph.weights]).solve(
        solver=cp.CLARABEL
    )
    return size * float(t.value)


def same_partition(a, b):
    """Whether labels 0..K-1 are those of one partition."""
    both = len(np.unique(np.column_stack([a, b]), axis=0))
    return bool(both == a.max() + 1 == b.max() + 1)


def groups_of(X, tol):
    """Clusters of equal rows, numbered in the order of their first members."""
    labels = np.full(len(X), -1)
    for i in range(len(X)):
        if labels[i] < 0:
            near = np.linalg.norm(X - X[i], axis=1) <= tol
            labels[near & (labels < 0)] = labels.max() + 1
    return labels
