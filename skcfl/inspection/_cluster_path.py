"""Models and clusters of a fusion method over its penalty."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
from sklearn.utils.extmath import svd_flip

from .._typing import Array, ArrayLike, Groups, MatrixLike, Targets, Weights
from ..numerics.by_cluster import numbered_by_size
from ._axes import Axes, Display, colour_of, mark_of_one, name_clients

KINDS = ("models", "n_clusters", "tree")
# Ratios of the largest to the least lam below which powers of ten are too few ticks.
NARROW = 300.0
# Clients up to which the tree names them.
MAX_NAMES = 40


@dataclass(eq=False, repr=False)
class ClusterPathDisplay(Display):
    """The path of a fusion method: models, number of clusters, or the clusters, over lam.

    Create it with :meth:`from_estimator` or :meth:`from_path`; all parameters are stored as
    attributes.  Clients have the colour of their cluster in one partition, the ten largest
    clusters one each.

    Parameters
    ----------
    lams : array-like of shape (n_lams,)
        Values of ``lam``, ascending.
    params : array-like of shape (n_lams, n_clients, n_params)
        The clients' models at each of them.
    labels : array-like of shape (n_lams, n_clients)
        The clients' clusters at each of them.
    groups : array-like of shape (n_clients,) or None, default=None
        Ids of the clients, for the tree; None numbers them.
    partition : array-like of shape (n_clients,) or None, default=None
        Clusters to colour by. None takes the partition of the path that holds over the longest
        range of lam on a logarithmic scale, among those with more than one cluster and fewer than
        clients.
    lam : float or None, default=None
        A value to mark, such as the one chosen.

    Attributes
    ----------
    n_clusters_ : ndarray of shape (n_lams,)
        Number of clusters at each lam.
    partition_ : ndarray of shape (n_clients,)
        The partition of the colours, numbered by decreasing size.
    interval_ : tuple of 2 floats or None
        Least and largest lam of the path where it holds, with whatever lies between.
    points_ : ndarray of shape (n_lams, n_clients, 2)
        The models projected to the plane, once "models" were drawn.
    lines_ : list of matplotlib Line2D
        One curve per client, or the one of the number of clusters.
    ax_ : matplotlib Axes
        Axes with the curves.
    figure_ : matplotlib Figure
        Figure with the axes.

    See Also
    --------
    skcfl.model_selection.lam_path : The path that is drawn.
    ConvergenceDisplay : Gap and bytes of one fit.

    Notes
    -----
    A path is not always a tree.  The number of models typically falls with lam (Armacki et al.,
    2022, Appendix A), but with unlike curvatures of the clients' losses it can rise, and fused
    clients part again.  The "tree" then has lines that part to the right.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFLRegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.inspection import ClusterPathDisplay
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> display = ClusterPathDisplay.from_estimator(
    ...     ConvexClusteredFLRegressor(graph="knn"), data.X, data.y, groups=data.groups, n_lams=10
    ... )
    >>> len(display.lines_)
    12
    >>> tree = display.plot(kind="tree")
    """

    _: KW_ONLY
    lams: ArrayLike
    params: ArrayLike
    labels: ArrayLike
    groups: Groups = None
    partition: ArrayLike | None = None
    lam: float | None = None

    # ------------------------------------------------------------------------------ create

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: MatrixLike,
        y: Targets = None,
        *,
        groups: Groups = None,
        n_lams: int = 30,
        sample_weight: Weights = None,
        partition: ArrayLike | None = None,
        kind: Literal["models", "n_clusters", "tree"] = "models",
        ax: Axes | None = None,
        **line_kw: Any,
    ) -> ClusterPathDisplay:
        """Compute the path of an estimator and draw it.

        Parameters
        ----------
        estimator : estimator
            With a fusion penalty. If it is fitted to these clients, the path is that of the
            options that its fit has chosen, its ``labels_`` give the colours and its ``lam_`` is
            marked.
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,), default=None
            Targets, where the estimator needs them.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client; not with ``group_col``.
        n_lams : int, default=30
            Number of values of lam.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.
        partition : array-like of shape (n_clients,), default=None
            Clusters to colour by, in the order of the sorted ids.
        kind : {"models", "n_clusters", "tree"}, default="models"
            Kind of the drawing, as in :meth:`plot`.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        **line_kw : dict
            Passed to matplotlib's ``plot``.

        Returns
        -------
        display : ClusterPathDisplay
            With the curves drawn.
        """
        from ..model_selection._lam_path import is_fitted_to, lam_path

        path = lam_path(estimator, X, y, groups, n_lams=n_lams, sample_weight=sample_weight)
        lam = None
        if partition is None and is_fitted_to(estimator, path.groups):
            partition, lam = estimator.labels_, estimator.lam_
        return cls.from_path(path, partition=partition, lam=lam, kind=kind, ax=ax, **line_kw)

    @classmethod
    def from_path(
        cls,
        path: Any,
        *,
        groups: Groups = None,
        partition: ArrayLike | None = None,
        lam: float | None = None,
        kind: Literal["models", "n_clusters", "tree"] = "models",
        ax: Axes | None = None,
        **line_kw: Any,
    ) -> ClusterPathDisplay:
        """Draw a path that :func:`skcfl.model_selection.lam_path` has computed.

        Parameters
        ----------
        path : object
            With ``lams``, ``params`` (or ``fusion_params``, which are drawn where they are: they
            move on with lam, refitted ones jump) and ``labels``.
        groups : array-like of shape (n_clients,), default=None
            Ids of the clients; None takes those of the path, if it has them.
        partition : array-like of shape (n_clients,), default=None
            Clusters to colour by.
        lam : float, default=None
            A value to mark.
        kind : {"models", "n_clusters", "tree"}, default="models"
            Kind of the drawing, as in :meth:`plot`.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        **line_kw : dict
            Passed to matplotlib's ``plot``.

        Returns
        -------
        display : ClusterPathDisplay
            With the curves drawn.
        """
        display = cls(
            lams=path.lams,
            params=getattr(path, "fusion_params", path.params),
            labels=path.labels,
            groups=getattr(path, "groups", None) if groups is None else groups,
            partition=partition,
            lam=lam,
        )
        return display.plot(ax, kind=kind, **line_kw)

    # -------------------------------------------------------------------------------- plot

    def plot(
        self,
        ax: Axes | None = None,
        *,
        kind: Literal["models", "n_clusters", "tree"] = "models",
        **line_kw: Any,
    ) -> ClusterPathDisplay:
        """Draw the path.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        kind : {"models", "n_clusters", "tree"}, default="models"
            Kind of the drawing:

            - "models": the curve of each client's model, from the least lam, a small dot, to the
              largest, a cross; large dots are the models of the coloured clusters. Two parameters
              are drawn as they are, more by the two directions in which the models of the path
              vary most, one over lam;
            - "n_clusters": the number of clusters over lam, with the range of lam of the coloured
              partition shaded;
            - "tree": one line per client over lam; lines run together where clients share a
              model.
        **line_kw : dict
            Passed to matplotlib's ``plot``.

        Returns
        -------
        display : ClusterPathDisplay
            This display.

        Raises
        ------
        ValueError
            If `kind` is another one, or the shapes do not belong together.
        """
        if not isinstance(kind, str) or kind not in KINDS:
            raise ValueError(f"kind must be one of {list(KINDS)}, got {kind!r}.")
        self._check()
        ax = self._take_axes(ax)
        getattr(self, f"_plot_{kind}")(ax, line_kw)
        return self

    def _check(self) -> None:
        """Arrays of the right shapes, and what follows from them."""
        self._lams = np.asarray(self.lams, dtype=float)
        self._params, self._labels = np.asarray(self.params), np.asarray(self.labels)
        n_lams, n = len(self._lams), self._labels.shape[-1]
        if self._labels.shape != (n_lams, n) or self._params.shape[:2] != (n_lams, n):
            raise ValueError(
                "params and labels must have the shapes (n_lams, n_clients, n_params) and (n_lams,"
                f" n_clients) with n_lams={n_lams}, got {self._params.shape} and "
                f"{self._labels.shape}."
            )
        if np.any(np.diff(self._lams) <= 0):
            raise ValueError("lams must be ascending.")
        # One numbering for all, so that equal partitions are equal rows.
        self._labels = np.array([numbered_by_size(row)[1] for row in self._labels])
        self.n_clusters_ = self._labels.max(axis=1) + 1
        chosen = self.partition
        if chosen is None:
            chosen = self._labels[self._longest()]
        elif np.shape(chosen) != (n,):
            raise ValueError(
                f"partition must have one label per client, shape ({n},), got {np.shape(chosen)}."
            )
        self.partition_ = numbered_by_size(np.asarray(chosen))[1]
        self._held = np.flatnonzero((self._labels == self.partition_).all(axis=1))
        self.interval_ = None
        if len(self._held):
            self.interval_ = tuple(self._lams[self._held[[0, -1]]].tolist())

    def _longest(self) -> int:
        """Position in the path of the partition that holds longest, in steps of log lam."""
        n = self._labels.shape[1]
        edges = np.log(self._positive())
        middle = 0.5 * (edges[1:] + edges[:-1])
        stay = np.diff(np.concatenate([edges[:1], middle, edges[-1:]]))
        found, index = np.unique(self._labels, axis=0, return_inverse=True)
        total = np.bincount(index.ravel(), weights=stay, minlength=len(found))
        K = found.max(axis=1) + 1
        between = (K > 1) & (K < n)
        if between.any():
            total[~between] = -1.0
        best = int(np.argmax(total))
        return int(np.flatnonzero(index.ravel() == best)[0])

    def _positive(self) -> Array:
        """The lams, 0 a step before the first positive one, for logarithms."""
        lams = self._lams.copy()
        if lams[0] == 0.0:
            ratio = lams[2] / lams[1] if len(lams) > 2 else 10.0
            lams[0] = lams[1] / ratio if len(lams) > 1 else 1.0
        return lams

    # ------------------------------------------------------------------------------- kinds

    def _plot_models(self, ax: Any, line_kw: dict[str, Any]) -> None:
        self.points_, names = self._project()
        colours = list(map(colour_of, self.partition_))
        z = self.points_
        self.lines_ = []
        style = {"linewidth": 1.0, "alpha": 0.6, **line_kw}
        for i, colour in enumerate(colours):
            self.lines_ += ax.plot(z[:, i, 0], z[:, i, 1], **{"color": colour, **style})
        ax.scatter(*z[0].T, s=9, c=colours, zorder=3)
        ax.scatter(*z[-1].T, s=40, c="black", marker="x", linewidth=1.2, zorder=3)
        if len(self._held):
            middle = z[self._marked()]
            for k in range(self.partition_.max() + 1):
                members = self.partition_ == k
                ax.scatter(
                    *middle[members].mean(axis=0),
                    s=60,
                    color=colours[np.flatnonzero(members)[0]],
                    edgecolor="black",
                    linewidth=0.8,
                    zorder=4,
                )
        ax.set(xlabel=names[0], ylabel=names[1])
        if names[0] == "lam":
            self._scale(ax, self._positive())
        else:
            ax.set_aspect("equal", adjustable="datalim")  # distances are what the penalty sees

    def _marked(self) -> int:
        """Position in the path where the coloured partition is marked."""
        if self.lam is not None:
            return int(self._held[np.argmin(np.abs(self._lams[self._held] - self.lam))])
        return int(self._held[len(self._held) // 2])

    def _project(self) -> tuple[Array, Any]:
        """Points in the plane and the names of its axes."""
        n_lams, n, p = self._params.shape
        if p == 1:
            lams = np.broadcast_to(self._positive()[:, None, None], (n_lams, n, 1))
            return np.concatenate([lams, self._params], axis=2), ("lam", "parameter")
        if p == 2:
            return self._params.astype(float), ("parameter 0", "parameter 1")
        points, share = self._principal()
        names = [f"direction {j + 1} ({share[j]:.0%} of the variance)" for j in range(2)]
        return points[..., :2], names

    def _principal(self) -> tuple[Array, Array]:
        """Models in the directions in which those of the path vary, most first."""
        flat = self._params.reshape(-1, self._params.shape[2]).astype(float)
        # Two points at least, scaled so that squares do not overflow.
        size = max(float(np.abs(flat).max()), 1e-300)
        flat = (flat - flat.mean(axis=0)) / size
        if len(flat) < 2:
            flat = np.vstack([flat, flat])
        u, s, v = np.linalg.svd(flat, full_matrices=False)
        _, v = svd_flip(u, v, u_based_decision=False)
        share = s**2 / max(float((s**2).sum()), 1e-300)
        points = size * (flat @ v.T)[: self._labels.size]
        return points.reshape(*self._params.shape[:2], -1), share

    def _plot_n_clusters(self, ax: Any, line_kw: dict[str, Any]) -> None:
        style = {"marker": "o", "markersize": 3.5, "color": "C0", **line_kw}
        self.lines_ = ax.plot(self._lams, self.n_clusters_, **style)
        if self.interval_ is not None:
            low, high = self.interval_
            ax.axvspan(low, high, color="0.9", zorder=0, linewidth=1.5)
        self._mark_lam(ax)
        ax.set(xlabel="lam", ylabel="number of models")
        if self.n_clusters_.max() >= 10:
            ax.set_yscale("log")
            ticks = [k * 10**j for j in range(6) for k in (1, 2, 3, 5)]
            ticks = [k for k in ticks if k <= self.n_clusters_.max()]
            ax.set_yticks(ticks, [str(k) for k in ticks])
            ax.set_yticks([], minor=True)
        self._scale(ax, self._lams)

    def _plot_tree(self, ax: Any, line_kw: dict[str, Any]) -> None:
        places = self._places()
        lams = self._positive()
        # A line stays where it is halfway to the next lam.
        half = np.sqrt(lams[1:] * lams[:-1])
        x = np.concatenate([lams[:1], np.repeat(half, 2), lams[-1:]])
        colours = list(map(colour_of, self.partition_))
        style = {"linewidth": 1.2, **mark_of_one(lams), **line_kw}
        self.lines_ = []
        for i, colour in enumerate(colours):
            y = np.repeat(places[:, i], 2)
            self.lines_ += ax.plot(x, y, **{"color": colour, **style})
        # If clusters of several colours run together no colour is right.
        for labels_at, i in _mixed(self._labels, self.partition_):
            y = np.where(np.repeat(labels_at, 2), np.repeat(places[:, i], 2), np.nan)
            ax.plot(x, y, **{**style, "color": "0.25", "label": None})
        self._mark_lam(ax)
        ax.set(xlabel="lam", ylabel="client")
        self._scale(ax, lams)
        about = self.groups, MAX_NAMES, "client"
        name_clients(ax.yaxis, np.argsort(self._leaves), *about, fontsize="small")

    def _places(self) -> Array:
        """Height of each client's line at each lam: the mean place of its cluster's leaves."""
        n_lams, n = self._labels.shape
        z = self._principal()[0][..., 0]
        keys = []
        for labels, at in zip(self._labels, z, strict=True):
            size = np.bincount(labels)
            centre = np.bincount(labels, weights=at) / size
            keys.append(np.argsort(np.argsort(centre, kind="stable"))[labels])
        order = np.lexsort(keys)  # the last key, the largest lam, decides first
        self._leaves = np.empty(n, dtype=int)
        self._leaves[order] = np.arange(n)
        places = np.empty((n_lams, n))
        for k, labels in enumerate(self._labels):
            places[k] = (np.bincount(labels, weights=self._leaves) / np.bincount(labels))[labels]
        return places

    # ------------------------------------------------------------------------------- parts

    def _mark_lam(self, ax: Any) -> None:
        if self.lam is not None:
            ax.axvline(self.lam, color="black", linestyle=":", linewidth=1)

    def _scale(self, ax: Any, lams: Array) -> None:
        """Logarithmic lam, with labels that do not run into each other."""
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        if lams[0] == 0.0:
            ax.set_xscale("symlog", linthresh=lams[1] if len(lams) > 1 else 1.0)
            return
        ax.set_xscale("log")
        if lams[-1] / lams[0] < NARROW:
            ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.xaxis.set_major_formatter(FuncFormatter(lambda lam, _: f"{lam:g}"))
            ax.xaxis.set_minor_formatter(NullFormatter())


def _mixed(path: Array, partition: Array) -> Iterator[tuple[Array, int]]:
    """Yield (mask over the path, a client) for each line that several colours share."""
    mixed = np.zeros(path.shape, dtype=bool)
    for k, labels in enumerate(path):
        pairs = np.unique(np.stack([labels, partition]), axis=1)
        mixed[k] = (np.bincount(pairs[0]) > 1)[labels]
    for i in np.flatnonzero(mixed.any(axis=0)):
        yield mixed[:, i], int(i)
