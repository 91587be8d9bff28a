r"""Fusion methods: what convex clustering, GTV minimisation and others share.

All of them solve one problem,

    minimise  sum_i f_i(x_i) + lam sum_{i<j} w_ij phi(x_i - x_j),

and differ in the graph ``w`` and the penalty ``phi``; a method is a subclass of :class:`Fusion`
and three classes with its defaults.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

from sklearn.utils._param_validation import HasMethods, StrOptions

from .._checks import NOT_NEGATIVE, Interval
from .._option_objects import parameters
from ..base import BaseFederated
from ..federation.lanes import together
from ..fusion.convex_fits import ConvexFamily, ConvexFits
from ..fusion.problem import SOLVERS, FusionProblem
from ..fusion.robust_problem import BoundedProblem
from ..fusion.solvers import Solver
from ..graphs import Graph, complete_graph, knn_graph
from ..graphs.generators import GraphLike, graph_of_clients
from ..penalties import PENALTIES, Penalty, make_penalty, name_of
from ..rounds.model_kinds import MINIMISED, TRAINED, kind_of, need_minima
from ..search.judges import FEW_LAMS, is_large
from ..search.lam_search import LamSearch
from ._lam_choice import LamChoiceMixin, check_bounded

# Values of lam that a search begins with: by rows held out, by folds.
N_LAMS, N_LAMS_FOLDS = 8, 30
# Numbers of an edge array of the complete graph beyond which "auto" compares neighbours only, but
# for the squared penalty, which needs no such arrays.
MAX_COMPLETE = 1_000_000
# Nearest neighbours that a client is joined to.
NEIGHBOURS = 5


class FusionMixin:
    """Common parts of clustering clients and clustering points: the path of lam.

    A subclass has ``_fits()``, which returns the solver with its options.

    Parameters
    ----------
    lam : "auto" or float
        Weight of the penalty, not negative: 0 gives every client its own model, a large value
        one model to all (of each component of the graph). No number suits all data, so "auto"
        looks for one: it goes up a path of values, refits the clusters of every partition met
        on their pooled rows, and takes the partition of the least Bayesian information
        criterion, at the least value where it was met (the notes of
        :class:`ConvexClusteredFL` have the formula).
    max_iter : int
        Most iterations; a ``ConvergenceWarning`` says what was missing when they were not
        enough.
    tol : float
        Relative duality gap to reach: the objective exceeds its minimum by less than
        ``tol`` times its value.
    warm_start : bool
        If True, start from the solution of the last fit, at whatever ``lam`` it was. An
        earlier fit with other clients, another graph or other parameters is no start and not
        used. Saves time on a path of ``lam``, and changes nothing beyond ``tol``.

    Attributes
    ----------
    lam_ : float
        The ``lam`` of the fit.
    lam_search_ : dict of str to ndarray
        With ``lam="auto"``: the values tried, "lam", ascending, and "n_clusters" and
        "criterion" at each.
    graph_ : Graph
        The graph of the fit, its nodes in the order of ``groups_``.
    dual_gap_ : float
        Bound of how much ``objective_`` exceeds the minimum, from a dual solution, the
        rounding of its own arithmetic included. Infinite if a client is missing.
    dual_coef_ : ndarray of shape (n_clients, n_params)
        Force of the penalty on each client, the net outflow of the dual solution: minus the
        gradient of the client's objective at the solution.
    partition_optimal_ : bool or None
        True if ``labels_`` are proved to be the partition of the exact solution at ``lam_``, in
        exact arithmetic. That is no proof that the clusters are real. False only says that no
        proof was found, or that rounding decides: then ``labels_`` are the equal models of the
        iterate that reached ``tol``, and another start or a smaller ``tol`` may show others. None:
        a client is missing.
    objective_ : float
        Value of the penalised objective at ``fusion_params_``.
    n_iter_ : int
        Number of iterations at ``lam_``.
    history_ : dict of str to ndarray
        What happened at ``lam_`` from check to check: objective, duality gap, number of
        clusters, numbers sent to and by the server.
    """

    _parameter_constraints = {
        "lam": [StrOptions({"auto"}), NOT_NEGATIVE],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
    }

    def _at(self, problem, lam, groups=None):
        """Fit at a lam, from the last solution if that is asked for."""
        warm = getattr(self, "warm_start", False)
        last = getattr(self, "_warm", None) if warm else None
        result, last = self._fits().at(problem, lam, groups, last)
        if warm:
            self._warm = last
        return result

    def _as_fitted(self, pool):
        """Return this estimator and its clients; points have no open options."""
        return self, pool

    def _path(self, problem, lams):
        """FusionPath over ascending `lams`, as fits at them would give it."""
        return self._fits().path(problem, lams, getattr(self, "refit", False) is True)


@parameters
class Fusion(LamChoiceMixin, FusionMixin, BaseFederated):
    """Base of the fusion methods of clients.

    Parameters
    ----------
    lam : "auto" or float
        Weight of the penalty, not negative: 0 gives every client its own model, a large value
        one model to all (of each component of the graph). No number suits all data, so "auto"
        looks for one as ``search`` says, and chooses what else is left open with it: ``graph``,
        ``penalty``, ``refit`` and ``alpha`` of "auto". The values tried go from 0 to where
        everything fuses, and others are tried around the best one.
    graph : {"auto", "complete", "knn"}, array-like, sparse matrix, Graph or networkx graph
        Which clients' models are compared, and the weights ``w_ij``:

        - "auto": with ``lam="auto"`` the next two compete, "knn" for more than 6 clients, and
          "complete" as long as its pairs are few (a million numbers: some hundred clients) or
          the penalty is "squared_l2", which needs none; with a number for ``lam`` it is
          "complete";
        - "complete": all pairs, with weight 1;
        - "knn": every client with the 5 that have the most similar local models, with weights
          between .001 and 1 that fall with the distance, :func:`skcfl.graphs.knn_graph`.
          Best where clients have few rows;
        - a matrix of weights, dense or sparse, symmetric, one row and column per client *in
          the order of the sorted ids* (``np.unique(groups)``), or a frame with the ids as labels;
          a :class:`~skcfl.graphs.Graph` with its nodes in that order; or a networkx graph whose
          nodes are the ids.
    penalty : {"auto", "l2", "l1", "squared_l2"} or Penalty
        The function ``phi`` of the difference of two clients' parameters. "l2", the Euclidean
        norm, makes whole models equal and so forms clusters; "l1", the sum of absolute
        values, makes single parameters equal; "squared_l2", half the squared norm, only draws
        models towards each other and forms no clusters, which suits clients that differ
        without being in clusters. "auto": with ``lam="auto"`` "l2" and "squared_l2" compete;
        with a number for ``lam`` it is "l2".
    solver : {"auto", "admm", "primal_dual", "pdmm"} or Solver
        Algorithm; all give the same solution. "admm" is the alternating direction method of
        multipliers with an automatic step and exact partitions, which needs fewest iterations.
        "primal_dual" passes messages along the edges, with exact partitions too; its
        iterations solve no linear system and are cheaper on large graphs. "auto" is
        "primal_dual" on graphs of more than 1500 nodes that are not complete, else "admm";
        "squared_l2" on the complete graph is solved as a smooth problem in the mean model.
        "pdmm" is the parallel direction method of multipliers, in which some of the clients
        may take part in a round. An object has options, as ``PDMM(participation=0.4)``, see
        ``skcfl.fusion.solvers``.
    refit : "auto" or bool
        If True, fit each cluster's model anew on the pooled rows of its clients, once the
        clusters are known. The penalty also draws the models of different clusters to each
        other; refitting takes that away, which is right where there are clusters and wrong
        where clients differ without them. "auto": with ``lam="auto"`` both compete; with a
        number for ``lam`` it is False. The penalised models are kept in
        ``fusion_params_``.

    Attributes
    ----------
    labels_ : ndarray of shape (n_clients,)
        Cluster of each client, in the order of ``groups_``: clients with exactly equal models.
        Clusters are numbered from 0 by decreasing number of clients, equal ones by their first
        client. ``sample_labels`` gives one label per row.
    fusion_params_ : ndarray of shape (n_clients, n_params)
        Solution of the penalised problem, before any refit.
    penalty_ : str
        The penalty of the fit.
    """

    lam: float | Literal["auto"] = "auto"
    _: KW_ONLY
    graph: Literal["auto", "complete", "knn"] | GraphLike = "complete"
    penalty: Literal["auto", "l2", "l1", "squared_l2"] | Penalty = "l2"
    refit: bool | Literal["auto"] = "auto"
    search: LamSearch | None = None
    client_loss: float | Literal["huber"] | None = None
    solver: Literal["auto", "admm", "primal_dual", "pdmm"] | Solver = "auto"
    max_iter: int = 2000
    tol: float = 1e-6
    warm_start: bool = False

    # The problems that local models pose, by kind: of those that are taken.
    _problems: ClassVar[dict[Any, Any]] = {MINIMISED: FusionProblem}
    # The objective, which says how far rows are from models, has other terms.
    _mixes_newcomers = False

    _parameter_constraints = {
        "graph": [
            StrOptions({"auto", "complete", "knn"}),
            "array-like",
            "sparse matrix",
            Graph,
            HasMethods(["neighbors"]),
        ],
        "penalty": [StrOptions({"auto", *PENALTIES}), Penalty],
        "solver": [StrOptions({"auto", *SOLVERS}), Solver],
        "refit": [StrOptions({"auto"}), "boolean"],
    }

    # ------------------------------------------------------------------------------ solve

    def _solve_options(self, groups):
        return {"groups": groups}

    def _places_absent(self):
        # They follow their neighbours in a given graph.
        return not isinstance(self.graph, str)

    def _solve(self, pool, groups, folds):
        search = self._option("search")
        if self.lam != "auto" or pool.n_clients == 1:
            lam, published = self.lam, {}
            if lam == "auto":
                lam, published = search.of_one_client(pool.n_samples)
            problem = self._problem(pool, groups)
            refit = self.refit is True
        elif search.holds_rows_out(pool):
            alphas, pool = search.penalised(pool)
            families = self._families(pool, groups, search)
            found = search.run(
                families,
                families[0].on_all,
                alphas,
                folds,
                seeded=self.random_state is not None,
                n_jobs=self.n_jobs,
            )
            problem, lam = families[found.best.family].best(pool, found.best)
            published, refit = found.published(), found.best.refit
        else:
            return self._choose_partition(pool, groups, search)
        result = self._at(problem, lam, groups)
        result.model = problem.clients.model
        result.extra.update(published)
        return self._finish(problem, result, refit)

    def _choose_partition(self, pool, groups, search):
        """Fit the partition of the least information criterion, refitted."""
        if self.client_loss is not None:
            raise ValueError(
                "The information criterion sums the losses of all clients, which client_loss does "
                "not bound. Use criterion='held_out' and clients of two rows or more, or "
                "client_loss=None."
            )
        if self.refit is False:
            raise ValueError(
                "criterion='bic' judges refitted models, which is what it returns: refit must be "
                "'auto' or True, got False."
            )
        best = None
        for graph, penalty in self._kinds(pool, partitions=True):
            problem = self._problem(pool, groups, graph, penalty)
            lams = None if search.is_open else search.grid(problem, N_LAMS_FOLDS)
            criterion, result = self._fits().of_least_criterion(problem, lams)
            if best is None or criterion < best[0]:
                best = criterion, problem, result
        return self._finish(*best[1:], True)

    def _kinds(self, pool, partitions=False):
        """Graphs and penalties that compete."""
        penalties = [self.penalty]
        if self._is_open("penalty"):
            forms = partitions or self.refit is True or self.client_loss is not None
            penalties = ["l2"] if forms else ["l2", "squared_l2"]
        if not self._is_open("graph"):
            return [(self.graph, penalty) for penalty in penalties]
        n, d = pool.n_clients, pool.n_params
        # The neighbours of few clients are all others.
        if n <= NEIGHBOURS + 1:
            return [("complete", penalty) for penalty in penalties]
        fits = n * (n - 1) // 2 * d <= MAX_COMPLETE
        kinds = [("complete", one) for one in penalties if fits or one == "squared_l2"]
        several = len(penalties) > 1
        return kinds + [("knn", one) for one in penalties if not (several and one == "squared_l2")]

    def _is_open(self, name):
        """Whether a parameter is "auto"."""
        parameter = getattr(self, name)
        return isinstance(parameter, str) and parameter == "auto"

    def _families(self, pool, groups, search):
        """Options that compete."""
        kinds = self._kinds(pool)
        # What does not wait for each other goes together; networks draw their starts one by one.
        lanes = [pool] * len(kinds)
        if len(kinds) > 1 and kind_of(pool) is MINIMISED:
            pool.spectrum()
            lanes = [pool.lane() for _ in kinds]
        pairs = zip(lanes, kinds, strict=True)
        tasks = [partial(self._family, lane, groups, search, *kind) for lane, kind in pairs]
        families = list(together(tasks, lanes, pool.ledger))
        for lane in lanes:
            lane.ledger = pool.ledger
        # Refits of the clients' own models ask for the Hessians that expansions need.
        expands = any(True in family.refits for family in families)
        for family in families:
            family.expands = expands
        return families

    def _family(self, pool, groups, search, graph, penalty):
        """Solutions over lam on one graph, with one penalty."""
        few = FEW_LAMS if is_large(pool) else N_LAMS
        n_lams = few if search.cv is None else N_LAMS_FOLDS
        refits = (False, True) if self.refit == "auto" else (self.refit is True,)
        make = partial(self._problem, groups=groups, graph=graph, penalty=penalty)
        problem = make(pool)
        lams = search.grid(problem, n_lams, rough=True)
        kind = self._fits(), make, problem, graph, penalty
        return ConvexFamily(*kind, lams, refits, search.lams is None)

    def _problem(self, pool, groups, graph=None, penalty=None):
        """The fusion problem of these clients."""
        kind = self._problem_class(pool)
        if self.client_loss is not None:
            check_bounded(self, pool)
            kind = partial(BoundedProblem, factor=self._bound())
        penalty = self.penalty if penalty is None else penalty
        # "l2" where it is left open and nothing competes.
        penalty = "l2" if isinstance(penalty, str) and penalty == "auto" else penalty
        return kind(pool, self._make_graph(pool, groups, graph), make_penalty(penalty))

    def _problem_class(self, pool):
        """The kind of problem that these local models pose."""
        if TRAINED not in self._problems:
            need_minima(
                pool,
                f"{type(self).__name__} needs a local model with a convex objective and exact "
                "proximal points, got {}. Use a linear model, or another method: GTV with "
                "graph='complete' has the same penalty and takes networks.",
            )
        return self._problems[kind_of(pool)]

    def _finish(self, problem, result, refit):
        """Refit the clusters if that is asked for, and keep what the fit publishes."""
        result.extra.update(
            graph=problem.graph,
            penalty=name_of(problem.penalty),
            refit=bool(refit),
            fusion_params=result.params,
        )
        if problem.trusted is not None:
            result.extra["suspicion"] = problem.limits.suspicion
        if refit:
            theta = problem.refit(result.labels, result.cluster_params)
            result.cluster_params, result.params = theta, None
        return result

    def _fits(self):
        return ConvexFits(self.solver, self.tol, self.max_iter)

    # ------------------------------------------------------------------------------ graph

    def _make_graph(self, pool, groups, graph=None):
        """The graph of the clients, in the order of their sorted ids."""
        graph, n = self.graph if graph is None else graph, pool.n_clients
        if isinstance(graph, str):
            if graph in ("auto", "complete") or n == 1:
                return complete_graph(n)
            if self.client_loss is None:
                points = self._problem_class(pool).neighbourhood(pool)
            else:
                points = BoundedProblem.neighbourhood(pool, self._bound())
            return knn_graph(points, NEIGHBOURS, connected=True)
        return graph_of_clients(graph, n, groups)
