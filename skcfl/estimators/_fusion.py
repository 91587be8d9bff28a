r"""Fusion methods: what convex clustering, GTV minimisation and others share.

All of them solve one problem,

    minimise  sum_i f_i(x_i) + lam sum_{i<j} w_ij phi(x_i - x_j),

and differ in the graph ``w`` and the penalty ``phi``; a method is a subclass of :class:`Fusion`
and three classes with its defaults.
"""

import inspect
from functools import partial
from numbers import Integral, Real

import numpy as np
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

from .._checks import NOT_NEGATIVE
from .._contraction import FusionProblem, lam_max_bounds
from ..base import BaseFederated
from ..graphs import Graph, complete_graph, graph_of_matrix, knn_graph
from ..penalties import PENALTIES, Penalty, make_penalty
from ..solvers import (
    LamSearch,
    admm,
    fusion_path,
    lam_grid,
    pdmm,
    primal_dual,
    solve_local,
    solve_pooled,
)

__all__ = ["Fusion", "FusionMixin"]

SOLVERS = {"admm": admm, "primal_dual": primal_dual, "pdmm": pdmm}
# What a solver is told by the parameters of the estimator.
_TOLD = {"problem", "lam", "tol", "max_iter", "state", "verbose", "rng", "certify"}
# Rows that shrinkage is worth, a parameter, where the neighbours of a client are looked for.
SHRINKAGE = 0.3
# Nodes of a sparse graph beyond which messages along its edges are cheaper than the linear systems
# of the ADMM, by the figures of benchmarks/gtv.py.
LARGE_GRAPH = 1500
# Parameters up to which models are compared by what their difference does to the predictions.
MAX_METRIC = 256

_SHARED_GRAPH = """\
            - a matrix of weights, dense or sparse, symmetric, one row and column a client *in the
              order of the sorted ids* (``np.unique(groups)``); a :class:`~skcfl.graphs.Graph` with
              its nodes in that order; or a networkx graph whose nodes are the ids."""


class FusionMixin:
    """What clustering clients and clustering points have in common: the path of lam.

    A subclass has ``_solver(problem)``, which returns the solver with its options.
    """

    _parameter_constraints = {
        "lam": [StrOptions({"auto"}), NOT_NEGATIVE],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
    }

    _doc_parameters = {
        "lam": """\
            "auto" or float
            Weight of the penalty, not negative: 0 gives every client its own model, a large value
            one model to all (of each component of the graph). No number suits all data, so "auto"
            looks for one: it goes up a path of values, refits the clusters of every partition met
            on their pooled rows, and takes the partition of the least Bayesian information
            criterion, at the least value where it was met (the notes of
            :class:`ConvexClusteredFL` have the formula).""",
        "max_iter": """\
            int
            Most iterations; a ``ConvergenceWarning`` says what was missing when they were not
            enough.""",
        "tol": """\
            float
            Relative duality gap to reach: the objective exceeds its minimum by less than
            ``tol`` times its value.""",
        "warm_start": """\
            bool
            Whether to start from the solution of the last fit, at whatever ``lam`` it was. An
            earlier fit with other clients, another graph or other parameters is no start and not
            used. Saves time on a path of ``lam``, and changes nothing beyond ``tol``.""",
    }

    _doc_attributes = {
        "lam_": """\
            float
            The ``lam`` of the fit.""",
        "lam_search_": """\
            dict of str to ndarray
            With ``lam="auto"``: the values tried, "lam", ascending, and "n_clusters" and
            "criterion" at each.""",
        "graph_": """\
            Graph
            The graph of the fit, its nodes in the order of ``groups_``.""",
        "dual_gap_": """\
            float
            Bound of how much ``objective_`` exceeds the minimum, from a dual solution.""",
        "dual_coef_": """\
            ndarray of shape (n_clients, n_params)
            Force of the penalty on each client, the net outflow of the dual solution: minus the
            gradient of the client's objective at the solution.""",
        "partition_certified_": """\
            bool
            Whether ``labels_`` are proved to be the clusters of an exact solution. False only
            says that no proof was found: then ``labels_`` are the equal models of the iterate
            that reached ``tol``, and another start or a smaller ``tol`` may show others.""",
        "objective_": """\
            float
            Value of the penalised objective at ``fusion_params_``.""",
        "n_iter_": """\
            int
            Number of iterations at ``lam_``.""",
        "history_": """\
            dict of str to ndarray
            What happened at ``lam_`` from check to check: objective, duality gap, number of
            clusters, numbers sent to and by the server.""",
    }

    def _minimise(self, problem, groups=None):
        """Solve at the lam given or found, from the last solution if that is asked for."""
        run = self._solver(problem)
        lam, state, result, search = self.lam, None, None, None
        key = (run.func, groups, problem.d, problem.graph)
        if problem.n == 1:
            # Nothing to compare: any lam gives the client its own model.
            lam, apart = (0.0 if lam == "auto" else lam), True
        elif lam == "auto":
            search = self._search(problem)
            lam, result, state = search.run()
            apart = lam == 0.0
        else:
            apart = lam == 0.0
            state = self._state_of(key) if self.warm_start else None
        if apart:
            result, state = self._solve_apart(problem), None
        elif search is not None and self._searcher(problem)[0].func is not run.func:
            result, state = run(problem, lam)  # a state means nothing to another solver
        elif search is None or not (result.converged and result.extra["partition_certified"]):
            result, state = run(problem, lam, state=state)
        if self.warm_start:
            self._warm = key, state
        result.extra["lam"] = float(lam)
        if search is not None:
            result.extra["lam_search"] = search.record()
        return result

    def _search(self, problem):
        """The search of lam."""
        if not problem.penalty.norm:
            raise ValueError(
                f"lam='auto' compares the clusters that different lam give, but the penalty "
                f"{problem.penalty!r} forms none. Give a number, or search it with GridSearchCV."
            )

        solve, max_iter = self._searcher(problem)
        return LamSearch(problem, partial(solve, problem), self.verbose, max_iter)

    def _searcher(self, problem):
        """The fastest solver, which goes along the path, and its iterations for a lam."""
        solve = fastest(problem)
        return partial(solve, tol=self.tol), 300 if solve is admm else 600

    def _state_of(self, key):
        """State of the last fit if it was of such a problem, else None."""
        old, state = getattr(self, "_warm", (None, None))
        if old is None or state is None or old[0] != key[0] or old[2] != key[2]:
            return None
        same = np.array_equal(old[1], key[1]) and _same_graph(old[3], key[3])
        return state if same else None

    def _path(self, problem, lams):
        """FusionPath over ascending `lams`, as fits at them would give it."""
        run = self._solver(problem)

        def solve(lam, state):
            if lam == 0.0 or problem.n == 1:
                return self._solve_apart(problem), None
            return run(problem, lam, state=state)

        refit = partial(self._refit, problem) if getattr(self, "refit", False) else None
        return fusion_path(problem, lams, solve, refit)

    def _solve_apart(self, problem):
        """Each client's own model, the solution at lam = 0."""
        return _solve_apart(problem)

    def _refit(self, problem, labels, theta):
        """Each cluster's model on the pooled rows of its clients."""
        return solve_pooled(problem.pool, labels, theta)[0]

    def _solve_at(self, problem, lam):
        """Result at a given lam."""
        if lam == 0.0 or problem.n == 1:
            return self._solve_apart(problem)
        return self._solver(problem)(problem, lam)[0]

    def _lam_grid(self, problem, n_lams, ratio=None):
        """Values of lam for a path."""
        return lam_grid(problem, n_lams, ratio)

    def _lam_bounds(self, problem):
        """Bounds of the lam where everything fuses."""
        return lam_max_bounds(problem)


class Fusion(FusionMixin, BaseFederated):
    """Base of the fusion methods of clients."""

    _parameter_constraints = {
        "graph": [
            StrOptions({"complete", "knn"}),
            "array-like",
            "sparse matrix",
            Graph,
            HasMethods(["neighbors"]),
        ],
        "penalty": [StrOptions(set(PENALTIES)), Penalty],
        "solver": [StrOptions({"auto", *SOLVERS})],
        "solver_options": [dict, None],
        "refit": ["boolean"],
    }

    _doc_parameters = {
        "graph": f"""\
            {{"complete", "knn"}}, array-like, sparse matrix, Graph or networkx graph
            Whose models are compared, and the weights ``w_ij``:

            - "complete": all pairs, with weight 1;
            - "knn": every client with the 5 that have the most similar local models, with weights
              between .001 and 1 that fall with the distance, :func:`skcfl.graphs.knn_graph`.
              Best where clients have few rows;
{_SHARED_GRAPH}""",
        "penalty": """\
            {"l2", "l1", "squared_l2"} or Penalty
            The function ``phi`` of the difference of two clients' parameters. "l2", the Euclidean
            norm, makes whole models equal and so forms clusters; "l1", the sum of absolute
            values, makes single parameters equal; "squared_l2", half the squared norm, only draws
            models towards each other and forms no clusters.""",
        "solver": """\
            {"auto", "admm", "primal_dual", "pdmm"}
            Algorithm; all give the same solution. "admm" is the alternating direction method of
            multipliers with an automatic step and exact partitions, which needs fewest iterations.
            "primal_dual" passes messages along the edges, with exact partitions too; its
            iterations solve no linear system and are cheaper on large graphs. "auto" is
            "primal_dual" on graphs of more than 1500 nodes that are not complete, else "admm".
            "pdmm" is the parallel direction method of multipliers, in which some of the clients
            may take part in a round.""",
        "solver_options": """\
            dict or None
            Further arguments of the solver by name, as ``{"participation": 0.4}`` for "pdmm":
            see :func:`skcfl.solvers.admm`, :func:`skcfl.solvers.primal_dual` and
            :func:`skcfl.solvers.pdmm`.""",
        "refit": """\
            bool
            Whether to fit each cluster's model anew on the pooled rows of its clients, once the
            clusters are known. The penalty also draws the models of different clusters to each
            other; refitting takes that away and is advised where there are clusters. The
            penalised models are kept in ``fusion_params_``.""",
    }

    _doc_attributes = {
        "labels_": """\
            ndarray of shape (n_clients,)
            Cluster of each client, in the order of ``groups_``: clients whose models are equal,
            not nearly so. Clusters are numbered from 0 by decreasing number of clients, equal
            ones by their first client. ``sample_labels`` gives one label a row.""",
        "fusion_params_": """\
            ndarray of shape (n_clients, n_params)
            Solution of the penalised problem, before any refit.""",
        "floats_up_": """\
            int
            Numbers sent by the clients to the server in the whole fit, the search of ``lam``
            and the refit included.""",
    }

    # ------------------------------------------------------------------------------ solve

    def _solve_options(self, groups):
        return {"groups": groups}

    def _solve(self, pool, groups):
        problem = self._problem(pool, groups)
        return self._finish(problem, self._minimise(problem, groups))

    def _problem(self, pool, groups):
        """The fusion problem of these clients."""
        if not pool.second_order:
            raise ValueError(
                f"{type(self).__name__} needs a local model with a convex objective and exact "
                f"proximal points, got {pool.model_name}. Use a linear model, or another method: "
                "GTV with graph='complete' has the same penalty and takes networks."
            )
        graph = self._make_graph(pool, groups)
        return FusionProblem(pool, graph, make_penalty(self.penalty))

    def _finish(self, problem, result):
        """Refit the clusters if that is asked for, and keep what the fit publishes."""
        result.extra.update(graph=problem.graph, fusion_params=result.params)
        if self.refit:
            theta = self._refit(problem, result.labels, result.cluster_params)
            result.cluster_params, result.params = theta, None
        return result

    def _solver(self, problem):
        """The solver with all its options, to be called with the problem and lam."""
        solve = self._algorithm(problem)
        name, options = solve.__name__, self.solver_options or {}
        known = inspect.signature(solve).parameters
        unknown = set(options) - (set(known) - _TOLD)
        if unknown:
            raise ValueError(
                f"solver_options has {sorted(unknown)}, which solver={name!r} does not know; its "
                f"options are {sorted(set(known) - _TOLD)}."
            )
        told = {"tol": self.tol, "max_iter": self.max_iter, "verbose": self.verbose}
        if "certify" in known:
            told["certify"] = True
        if "rng" in known:
            told["rng"] = problem.pool.random_state
        return partial(solve, **told, **options)

    def _algorithm(self, problem):
        """The solver that is asked for."""
        return fastest(problem) if self.solver == "auto" else SOLVERS[self.solver]

    # ------------------------------------------------------------------------------ graph

    def _neighbourhood(self, pool):
        """Where clients lie, for the graph of nearest neighbours."""
        return _neighbourhood(pool)

    def _make_graph(self, pool, groups):
        """The graph of the clients, in the order of their sorted ids."""
        graph, n = self.graph, pool.n_clients
        if isinstance(graph, str):
            if graph == "complete" or n == 1:
                return complete_graph(n)
            return knn_graph(self._neighbourhood(pool), connected=True)
        if is_network(graph):
            graph = _aligned(graph, groups)
        graph = as_graph(graph)
        if graph.n_nodes != n:
            raise ValueError(
                f"graph has {graph.n_nodes} nodes, but there {_clients(n)}. It must have one node "
                "a client, in the order of the sorted ids, np.unique(groups)."
            )
        return graph


def fastest(problem):
    """The solver for such a problem, by what was measured."""
    graph = problem.graph
    return primal_dual if graph.n_nodes > LARGE_GRAPH and not graph.is_complete else admm


def is_network(graph):
    """Whether this is a networkx graph."""
    return hasattr(graph, "nodes") and hasattr(graph, "edges")


def as_graph(graph):
    """Graph of a matrix of weights; a Graph is returned as it is."""
    return graph if isinstance(graph, Graph) else graph_of_matrix(graph, "graph")


def _clients(n):
    return f"are {n} clients" if n > 1 else "is 1 client"


def _aligned(network, groups):
    """Matrix of weights of a networkx graph, its nodes in the order of the clients."""
    import networkx

    ids = [0] if groups is None else groups.tolist()
    nodes = set(network.nodes)
    if nodes == set(ids):
        order = ids
    elif nodes == set(range(len(ids))):
        order = range(len(ids))
    else:
        odd = sorted(map(repr, nodes.difference(ids)))
        raise ValueError(
            f"The nodes of graph must be the ids of the clients (or 0 to {len(ids) - 1}, in the "
            f"order of the sorted ids). It has {len(nodes)} nodes, there {_clients(len(ids))}"
            f"{f', and {odd[0]} is none of them' if odd else ''}."
        )
    return networkx.to_scipy_sparse_array(network, nodelist=list(order), dtype=float)


def _neighbourhood(pool):
    """Where clients lie, for the graph of nearest neighbours: (n_clients, n_params).

    Their local models, drawn to the common one as if by some rows more, because with few rows
    they are mostly noise; in coordinates in which the length of a difference is what it does to
    the predictions, so that the units of the features do not matter.
    """
    n, p = pool.n_clients, pool.n_params
    together = np.zeros(n, dtype=np.intp)
    common, _, _ = solve_pooled(pool, together, np.zeros((1, p)))
    curvature = np.maximum(pool.spectrum()[2], 1e-12)
    typical = np.exp(np.log(curvature).mean())
    rows = np.maximum(pool.client_weights, 1e-12)
    W = pool.prox(np.repeat(common, n, axis=0), SHRINKAGE * typical * p / rows)
    W = pool.centre(W)
    if p > MAX_METRIC:
        return W
    values, vectors = np.linalg.eigh(pool.hessians(common, together)[0])
    return W @ (vectors * np.sqrt(np.maximum(values, 0.0)))


def _same_graph(a, b):
    if a is b:
        return True
    if a.is_complete or b.is_complete:
        return a.is_complete and b.is_complete and (a.n_nodes, a.weight) == (b.n_nodes, b.weight)
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("heads", "tails", "weights")
    )


def _solve_apart(problem):
    """Each client's own model, the solution at lam = 0."""
    result = solve_local(problem.pool)
    W = problem.extend(result.cluster_params)
    _, labels = np.unique(W, axis=0, return_inverse=True)
    first = np.unique(labels, return_index=True)[1]
    result.cluster_params, result.labels, result.params = W[first], labels, W
    result.objective = problem.primal(W, 0.0)
    outflow = np.zeros_like(W)
    dual = -float(problem.pool.conjugate(outflow, x0=W)[0].sum())
    gap = max(result.objective - dual, 0.0)
    result.history = {"objective": np.array([result.objective]), "gap": np.array([gap])}
    result.extra = {"dual_gap": gap, "dual_coef": outflow, "partition_certified": True}
    return result
