"""The graph of a fusion method: clusters of nodes, flows along edges."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from .._checks import real_array
from .._typing import Array, ArrayLike
from ..penalties import make_penalty
from ._axes import COLOURS, Axes, Display, check_shows, colour_of, text_of

if TYPE_CHECKING:
    from ..graphs import Graph


# Load from which an edge counts as saturated.
FULL = 1.0 - 1e-6
# Projections in search of flows within clusters.
MAX_PROJECTIONS = 300
# Differences below this, relative to the largest, are none.
EQUAL = 1e-6
# Nodes up to which a dense eigenvalue problem gives the layout.
MAX_DENSE_NODES = 1500


@dataclass(eq=False, repr=False)
class EmpiricalGraphDisplay(Display):
    r"""The graph of clients after a fit: which share a model, and the flows along the edges.

    Create it with :meth:`from_estimator`; all parameters are stored as attributes.  Nodes have
    the colour of their cluster, the ten largest clusters one each; those without rows are hollow.
    Edges are the darker the more they carry, and red where they are saturated: those between
    clusters always are.

    Parameters
    ----------
    graph : Graph
        The graph.
    labels : array-like of shape (n_nodes,)
        Cluster of each node.
    loads : array-like of shape (n_edges,)
        Share of its capacity that flows along each edge, 0 to 1.
    positions : array-like of shape (n_nodes, 2)
        Positions of the nodes in the drawing.
    saturates : bool, default=True
        True if edges have a capacity, as they have where the penalty is a norm.
    without_rows : array-like of shape (n_nodes,) of bool or None, default=None
        Which nodes have no rows; None is none.
    groups : array-like of shape (n_nodes,) or None, default=None
        Ids of the nodes, for :meth:`plot` with ``names=True``; None numbers them.

    Attributes
    ----------
    saturated_ : ndarray of shape (n_edges,) of bool
        Which edges carry as much as they can.
    nodes_ : list of matplotlib PathCollection
        The nodes with rows and, if there are any, those without.
    edges_ : matplotlib LineCollection
        The edges, saturated ones last.
    ax_ : matplotlib Axes
        Axes with the graph.
    figure_ : matplotlib Figure
        Figure with the axes.

    See Also
    --------
    ClusterPathDisplay : Models and clusters over lam.
    skcfl.GTV : The method.

    Notes
    -----
    A fit proves its clusters by flows :math:`u^{(e)}` on the edges whose net outflow of every
    node is ``dual_coef_`` (SarcheshmehPour et al., 2023, section IV).  Between nodes with unlike
    models the flow is known, with the norm :math:`\lambda A_e` for ``penalty="l2"``: the edge is
    saturated.  Within clusters many flows will do; the one drawn is found by projections from the
    flow of least energy.  With ``penalty="squared_l2"`` the flow is :math:`\lambda A_e (w_i -
    w_j)`, edges have no capacity, and loads are relative to the largest.

    Examples
    --------
    >>> from skcfl import GTVRegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.inspection import EmpiricalGraphDisplay
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> gtv = GTVRegressor().fit(data.X, data.y, groups=data.groups)
    >>> display = EmpiricalGraphDisplay.from_estimator(gtv)
    >>> graph, labels = gtv.graph_, gtv.labels_
    >>> between = labels[graph.heads] != labels[graph.tails]
    >>> bool(display.saturated_[between].all())
    True
    """

    _: KW_ONLY
    graph: Graph
    labels: ArrayLike
    loads: ArrayLike
    positions: ArrayLike
    saturates: bool = True
    without_rows: ArrayLike | None = None
    groups: Array | Sequence[Hashable] | None = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        positions: ArrayLike | dict[Any, Any] | None = None,
        names: bool = False,
        ax: Axes | None = None,
        **scatter_kw: Any,
    ) -> EmpiricalGraphDisplay:
        """Draw the graph of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            A fitted fusion method, such as :class:`skcfl.GTVClassifier`, or
            :class:`skcfl.ConvexClustering`.
        positions : array-like of shape (n_clients, 2) or dict, default=None
            Positions of the nodes, in the order of ``groups_``, or by id, as networkx's layouts
            give it.  None lays the graph out, by networkx's springs if it is installed, else by
            eigenvectors of its Laplacian.
        names : bool, default=False
            If True, write the ids beside the nodes.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        **scatter_kw : dict
            Passed to matplotlib's ``scatter`` for the nodes.

        Returns
        -------
        display : EmpiricalGraphDisplay
            With the graph drawn.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        ValueError
            If it has no graph, or `positions` does not have a place for every node.
        """
        way = "fit a fusion method, such as GTVClassifier; adapt and update drop its graph"
        check_shows(estimator, "graph_", way)
        graph, labels = estimator.graph_, estimator.labels_
        if hasattr(estimator, "fusion_params_"):
            groups = estimator.groups_
        else:  # points, each a client without a name
            groups = np.arange(graph.n_nodes)
        models, forces = estimator._solution
        # A search may have chosen the penalty; points have the norm.
        penalty = getattr(estimator, "penalty_", getattr(estimator, "penalty", "l2"))
        penalty = make_penalty(penalty)
        loads = edge_loads(graph, penalty, estimator.lam_, models, forces, labels)
        display = cls(
            graph=graph,
            labels=labels,
            loads=loads,
            positions=_places(positions, graph, groups),
            saturates=penalty.norm,
            without_rows=getattr(estimator, "without_rows_", None),
            groups=groups,
        )
        return display.plot(ax, names=names, **scatter_kw)

    def plot(
        self, ax: Axes | None = None, *, names: bool = False, **scatter_kw: Any
    ) -> EmpiricalGraphDisplay:
        """Draw the graph.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        names : bool, default=False
            If True, write the ids beside the nodes.
        **scatter_kw : dict
            Passed to matplotlib's ``scatter`` for the nodes.

        Returns
        -------
        display : EmpiricalGraphDisplay
            This display.
        """
        if not isinstance(names, (bool, np.bool_)):
            raise ValueError(f"names must be True or False, got {names!r}.")
        ax = self._take_axes(ax)
        loads = np.asarray(self.loads, dtype=float)
        self.saturated_ = (loads >= FULL) & bool(self.saturates)
        places = np.asarray(self.positions, dtype=float)
        self._draw_edges(ax, places, loads)
        self._draw_nodes(ax, places, scatter_kw)
        if names:
            ids = np.arange(len(places)) if self.groups is None else self.groups
            for name, place in zip(ids, places, strict=True):
                ax.annotate(
                    text_of(name), place, xytext=(5, 4), textcoords="offset points", size=8
                )
        ax.set_aspect("equal", adjustable="datalim")
        ax.set(xticks=[], yticks=[])
        return self

    def _draw_edges(self, ax: Any, places: Array, loads: Array) -> None:
        from matplotlib.collections import LineCollection

        graph = self.graph
        order = np.argsort(loads, kind="stable")  # what carries most lies on top
        ends = np.stack([places[graph.heads], places[graph.tails]], axis=1)[order]
        colours = np.tile([0.0, 0.0, 0.0, 1.0], (graph.n_edges, 1))
        colours[:, 3] = 0.12 + 0.6 * loads[order]
        colours[self.saturated_[order]] = (0.84, 0.15, 0.16, 0.9)
        width = graph.weights[order] / max(graph.weights.max(initial=0.0), 1e-300)
        self.edges_ = LineCollection(
            list(ends), colors=colours, linewidths=0.5 + 1.3 * width, zorder=1
        )
        ax.add_collection(self.edges_)

    def _draw_nodes(self, ax: Any, places: Array, scatter_kw: dict[str, Any]) -> None:
        labels = np.asarray(self.labels)
        shown = min(COLOURS, len(labels) - 1)  # no colours where nodes share no models
        shown = shown if len(np.unique(labels)) < len(labels) else 0
        colours = np.array([colour_of(k, shown) for k in labels], dtype=object)
        empty = np.zeros(len(labels), dtype=bool)
        if self.without_rows is not None:
            empty = np.asarray(self.without_rows, dtype=bool)
        style = {"s": 45, "linewidth": 1.2, "zorder": 2, **scatter_kw}
        full = {"c": colours[~empty].tolist(), "edgecolors": "black", "label": "with rows"}
        self.nodes_ = [ax.scatter(*places[~empty].T, **{**full, **style})]
        if empty.any():
            hollow = {"c": "white", "edgecolors": colours[empty].tolist(), "label": "without rows"}
            self.nodes_.append(ax.scatter(*places[empty].T, **{**hollow, **style, "linewidth": 2}))


def edge_loads(
    graph: Graph, penalty: Any, lam: float, models: Array, outflow: Array, labels: Array
) -> Array:
    """Flow along every edge over its capacity, (n_edges,), from a solution.

    Flows are the penalty's slope where it has one, and within clusters such that every node's net
    outflow is `outflow`.
    """
    capacity = lam * graph.weights
    if not graph.n_edges or lam == 0.0:
        return np.zeros(graph.n_edges)
    difference = graph.difference(models).T
    if not penalty.norm:
        flow = np.linalg.norm(capacity * penalty.gradient(difference), axis=0)
        return flow / max(flow.max(), 1e-300)
    # If models differ the flow is the slope of the norm: a long difference, clipped.
    largest = np.abs(difference).max() or 1.0
    if penalty.fuses:
        # Clusters that are not proved may have models that are equal but for what tol allows.
        distinct = labels[graph.heads] != labels[graph.tails]
        distinct &= penalty.value(difference) > EQUAL * largest
        known = np.broadcast_to(distinct, difference.shape)
    else:
        known = np.abs(difference) > EQUAL * largest
    slope = penalty.project(difference * (1e12 * capacity.max() / largest), capacity)
    laplacian = graph.laplacian(weighted=False)
    ridge = 1e-10 * sparse.eye_array(graph.n_nodes)
    factor = splu(sparse.csc_array(laplacian + ridge))
    D = graph.incidence()
    flow = np.where(known, slope, 0.0)
    for _ in range(MAX_PROJECTIONS):
        rest = outflow - D.T @ flow.T
        flow = flow + (D @ factor.solve(rest)).T
        new = np.where(known, slope, penalty.project(flow, capacity))
        moved = np.abs(new - flow).max()
        flow = new
        if moved <= 1e-9 * capacity.max():
            break
    return np.minimum(penalty.dual_norm(flow) / capacity, 1.0)


def _places(positions: Any, graph: Graph, groups: Any) -> Array:
    """Positions of the nodes in the drawing, (n_nodes, 2)."""
    if positions is None:
        return _layout(graph)
    if isinstance(positions, dict):
        missing = [name for name in groups.tolist() if name not in positions]
        if missing:
            raise ValueError(
                f"positions must have a place for every node, but has none for {missing[0]!r}."
            )
        positions = [positions[name] for name in groups.tolist()]
    places = real_array(positions, "positions")
    if places.shape != (graph.n_nodes, 2):
        raise ValueError(
            f"positions must have the shape ({graph.n_nodes}, 2), one place a node in the order "
            f"of groups_, got {places.shape}."
        )
    return places


def _layout(graph: Graph) -> Array:
    """Places of the nodes, neighbours near to each other."""
    start = _spectral(graph)
    try:
        import networkx
    except ImportError:
        return start
    network = networkx.from_scipy_sparse_array(graph.adjacency())
    places = networkx.spring_layout(network, pos=dict(enumerate(start)), seed=0)
    return np.array([places[i] for i in range(graph.n_nodes)])


def _spectral(graph: Graph) -> Array:
    """Places by the two smoothest functions on the graph, its first eigenvectors but one."""
    n = graph.n_nodes
    if n < 4:
        angle = 2.0 * np.pi * np.arange(n) / n
        return np.column_stack([np.cos(angle), np.sin(angle)])
    degree = np.maximum(graph.degrees(), 1e-12)
    root = sparse.diags_array(1.0 / np.sqrt(degree))
    smooth = root @ graph.adjacency() @ root
    if n <= MAX_DENSE_NODES:
        _, vectors = np.linalg.eigh(smooth.toarray())
    else:
        start = np.random.RandomState(0).standard_normal(n)
        _, vectors = sparse.linalg.eigsh(smooth, k=3, which="LA", v0=start, tol=1e-4)
    places = vectors[:, -3:-1] / np.sqrt(degree)[:, None]
    places = places - places.mean(axis=0)
    return places / np.maximum(np.abs(places).max(axis=0), 1e-300)
