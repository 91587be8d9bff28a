"""GTV minimisation: fusion on a graph of clients, including clients without rows."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

import numpy as np

from .._typing import ClientIds
from ..base.everyday import everyday
from ..calls.first_order import Present
from ..clients.ids import check_ids, encode, locate
from ..fusion.primal_dual_inexact import NetworkProblem
from ..graphs.generators import GraphLike, in_order, is_network
from ..rounds.model_kinds import TRAINED
from ._base_fusion import Fusion


@everyday
class GTV(Fusion):
    r"""GTV minimisation on a graph of clients with any local model.

    For clients on a graph that says which of them are alike, and for clients without rows,
    which get a model from their neighbours. Not where no such graph is known:
    :class:`ConvexClusteredFL` compares all pairs.

    .. math:: \min_{w_1, \dots, w_N} \; \sum_i L_i(w_i)
              + \lambda \sum_{\{i, j\} \in E} A_{ij} \, \phi(w_i - w_j)

    The clients are the nodes of a graph; an edge says that two clients are alike, the more so
    the larger its weight.  Generalised total variation, the second sum, is small if models are
    nearly equal within well-connected parts of the graph, the clusters, and change across few or
    light edges (SarcheshmehPour et al. [1]_).  It is the problem of :class:`ConvexClusteredFL` on
    another graph, solved by the same code, with the same proofs: ``dual_gap_`` bounds the error,
    ``partition_optimal_`` says that the clusters are the exact solution's at ``lam_``, not that
    they are real.  (Not with networks,
    see the notes.)

    **Nodes without rows** take part if ``nodes`` or a networkx graph names them: their
    :math:`L_i` is zero, and their neighbours give them a model.

    Parameters
    ----------
    lam : "auto" or float
        Weight of the penalty, not negative: 0 gives every client its own model, a large value one
        model to all (of each component of the graph). No number suits all data, so "auto" looks
        for one as ``search`` says, and chooses what else is left open with it: ``refit`` and
        ``alpha`` of "auto". The values tried go from 0 to where everything fuses, and others are
        tried around the best one. With networks it begins with eight values, and
        fits to four fifths of each client's rows are judged by the loss on the others.
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
        Networks have "primal_dual" only, with inexact updates,
        :class:`~skcfl.fusion.solvers.InexactPrimalDual`.
    tol : float
        Relative duality gap to reach: the objective exceeds its minimum by less than
        ``tol`` times its value.
        With networks the residual, see the notes of :class:`GTV`; their iterations also end
        when clusters have settled.
    graph : {"complete", "knn"}, array-like, sparse matrix, Graph or networkx graph
        Which clients' models are compared, and the weights :math:`A_{ij}`:

        - "knn": every client with the 5 that have the most similar local models, with weights
          between .001 and 1 that fall with the distance, :func:`skcfl.graphs.knn_graph`;
        - "complete": all pairs, with weight 1;
        - a matrix of weights, dense or sparse, symmetric, one row and column per node in the
          order of ``nodes``, without ``nodes`` in the order of the sorted ids
          (``np.unique(groups)``), or a frame with the ids as labels; or a
          :class:`~skcfl.graphs.Graph` with its nodes in that order;
        - a networkx graph whose nodes are the ids. Those without rows take part.
    nodes : array-like of shape (n_clients,) or None
        The id of every node, each once, in the order of the matrix or
        :class:`~skcfl.graphs.Graph` given as ``graph``. Nodes without rows then take part and
        get a model from their neighbours. None: the clients in the rows, or the nodes
        of a networkx graph.

    Attributes
    ----------
    labels_ : ndarray of shape (n_clients,)
        Cluster of each client, in the order of ``groups_``: clients with exactly equal models;
        with networks, those that flows below their capacity hold together. Clusters are
        numbered from 0 by decreasing number of clients, equal ones by their first client.
        ``sample_labels`` gives one label per row.
    dual_gap_ : float
        Bound of how much ``objective_`` exceeds the minimum, from a dual solution; infinite
        with networks, as their problem has no dual, and if a client is missing.
    partition_optimal_ : bool or None
        True if ``labels_`` are proved to be the partition of the exact solution at ``lam_``. That
        is no proof that the clusters are real. False only says that no proof was found: then
        ``labels_`` are the equal models of the iterate that reached ``tol``, and another start or
        a smaller ``tol`` may show others. Always False with networks; None: a client is missing.
    history_ : dict of str to ndarray
        What happened at ``lam_`` from check to check: objective, duality gap (or, with
        networks, residual), number of clusters, numbers sent to and by the server.
    groups_ : ndarray of shape (n_clients,)
        The ids of all nodes, sorted; those without rows too. ``[0]`` after a fit without
        ids.
    without_rows_ : ndarray of shape (n_clients,) of bool
        Which nodes had no rows, in the order of ``groups_``.

    See Also
    --------
    GTVClassifier : The same with a linear classifier or a network.
    GTVRegressor : The same with a linear regression or a network.
    ConvexClusteredFL : All pairs of clients compared.
    skcfl.inspection.EmpiricalGraphDisplay : The graph, its clusters and flows.
    skcfl.graphs : Graphs from coordinates, distances and data.

    Notes
    -----
    :math:`L_i` is the mean loss of client i's rows plus its local penalty, so that every client
    counts once.  ``lam`` is the paper's :math:`\lambda` in (16), with one exception: its squared
    error has no 1/2, so that for ``loss="squared_error"`` ``lam`` is half of the paper's.
    The penalties :math:`\phi` are "l2" (network lasso), "l1", and "squared_l2" (MOCHA), which is
    :math:`\|z\|^2 / 2`, or :math:`z'Qz / 2` with ``SquaredL2(Q)``.

    ``solver="primal_dual"`` is the paper's Algorithm 1 as message passing, with an adaptive ratio
    of steps; ``solver="auto"`` chooses, see :func:`skcfl.fusion.primal_dual.primal_dual`.

    A node without rows may have many best models, such as all those between its two neighbours' on
    a chain with equal weights; the fit gives one.  With ``refit=True`` a cluster of only such
    nodes keeps the model of the fusion.

    **Networks**, and all local models without second derivatives, are trained by the same
    messages, with steps of Adam in place of the node updates, from one random start for all
    (differences of networks from unlike starts mean nothing):
    :func:`skcfl.fusion.primal_dual_inexact.primal_dual_inexact`.  The problem is not convex, so
    there is no dual gap (``dual_gap_`` is infinite) and no proof; the residual in ``history_``
    says how far models and flows are from a stationary point, relative to the first gradients
    and to the size of the models.  The fit ends at ``tol``, and also once clusters did not change
    in 30 iterations, models fit the flows to .01, and gradients are as small or fall no more.
    Models of a cluster then still differ a little, in ``params_`` and ``fusion_params_``; clusters
    are the components of the edges with a flow below :math:`\lambda A_{ij}`, which at a stationary
    point makes models equal.  ``refit=True`` trains each cluster's network further, by rounds of
    model averaging on its clients' rows.

    References
    ----------
    .. [1] Y. SarcheshmehPour, Y. Tian, L. Zhang, A. Jung. "Clustered Federated Learning via
       Generalized Total Variation Minimization". IEEE Transactions on Signal Processing 71,
       2023.

    Examples
    --------
    Four sensors in a row; the last has not reported yet:

    >>> import numpy as np
    >>> from skcfl import GTV
    >>> from skcfl.graphs import chain_graph
    >>> from skcfl.models import Location
    >>> X = np.array([[1.0], [1.2], [5.0], [5.2]])
    >>> sensors = np.array(["a", "a", "b", "c"])
    >>> gtv = GTV(Location(), lam=0.5, graph=chain_graph(4), nodes=["a", "b", "c", "d"])
    >>> gtv = gtv.fit(X, groups=sensors)
    >>> gtv.labels_
    array([1, 0, 0, 0])
    >>> gtv.params_.ravel()
    array([1.6 , 4.85, 4.85, 4.85])
    """

    _parameter_constraints = {"nodes": ["array-like", None]}
    _problems = {**Fusion._problems, TRAINED: NetworkProblem}

    _: KW_ONLY
    graph: Literal["auto", "complete", "knn"] | GraphLike = "knn"
    nodes: ClientIds | None = None

    def _encode_ids(self, ids):
        """Sorted ids of all nodes, and each row's place among them."""
        nodes, name = self.nodes, "nodes"
        if is_network(self.graph):
            if nodes is not None:
                raise ValueError(
                    "nodes must be None with a networkx graph, whose own nodes are the ids."
                )
            nodes, name = list(self.graph.nodes), "The nodes of graph"
        if nodes is None:
            return encode(ids)
        nodes = check_ids(nodes, name=name)
        known, _ = encode(nodes)
        if len(known) < len(nodes):
            raise ValueError(
                f"{name} must name every node once, got {len(nodes)} ids of which "
                f"{len(known)} are different."
            )
        codes, unseen = locate(known, ids)
        if not len(unseen):
            return known, codes
        if is_network(self.graph) and set(self.graph.nodes) == set(range(len(np.unique(ids)))):
            return encode(ids)  # nodes without names, in the order of the sorted ids
        shown = ", ".join(repr(value) for value in unseen[:5].tolist())
        raise ValueError(
            f"{name} must have every client, but {len(unseen)} of the ids of the rows (dtype "
            f"{ids.dtype}) are not among the {len(known)} ids there (dtype {known.dtype}): "
            f"[{shown}{', ...' if len(unseen) > 5 else ''}]."
        )

    def _solve_options(self, groups):
        if groups is None and self.nodes is not None:
            raise ValueError(
                "nodes names the clients, but fit got no groups and group_col is None: pass one "
                "client id per row."
            )
        return super()._solve_options(groups)

    def _places_absent(self):
        return self.nodes is not None or super()._places_absent()

    def _make_graph(self, pool, groups, graph=None):
        """The graph of the nodes, in the order of their sorted ids."""
        graph = self.graph if graph is None else graph
        if isinstance(graph, str) and graph == "knn" and pool.without_rows.any():
            # Lost clients do not say whether they have rows, and the fit goes on without them.
            pool.ask(Present)
            empty = np.flatnonzero(pool.without_rows & (pool.presence.missed[pool.places] == 0))
            if len(empty):
                raise ValueError(
                    "graph='knn' joins clients by their local models, but "
                    f"{_named(groups, empty)} no rows to fit one. Pass another graph."
                )
        if self.nodes is not None:
            graph = in_order(graph, check_ids(self.nodes))
        graph = super()._make_graph(pool, groups, graph)
        if self.nodes is not None:
            graph = graph.renumbered(encode(check_ids(self.nodes))[1])
        parts = graph.components()
        lost = np.flatnonzero(np.bincount(parts, ~pool.without_rows)[parts] == 0)
        if len(lost):
            raise ValueError(
                f"{_named(groups, lost)} neither rows nor a path of edges to a node that has, so "
                "that nothing determines the model. Join it by an edge, or leave it out of "
                "nodes."
            )
        return graph

    def _finish(self, problem, result, refit):
        result = super()._finish(problem, result, refit)
        result.extra["without_rows"] = problem.clients.without_rows.copy()
        return result


def _named(groups, places, at_most=3):
    """Node 'a' has; nodes 'a', 'b', ... have."""
    shown = ", ".join(repr(value) for value in groups[places[:at_most]].tolist())
    if len(places) == 1:
        return f"node {shown} has"
    return f"nodes {shown}{', ...' if len(places) > at_most else ''} have"
