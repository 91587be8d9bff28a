"""Pictures of methods that choose by loss: clients by models, and what rounds achieve."""

from __future__ import annotations

import copy
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np

from .._typing import Array, ArrayLike, Groups, MatrixLike, Targets
from ..clients.ids import check_ids, encode
from ..model_selection._columns import ids_in_column
from ._axes import Axes, Display, check_shows, name_clients

# Clients up to which rows have names, and their cells numbers.
MAX_NAMES = 40
MAX_NUMBERED = 20
# Columns of the loss matrix up to which each has its number below it.
MAX_TICKS = 20
# Ratio of the largest to the least loss above which colours are logarithmic.
WIDE = 30.0
LABELS = {"ari": "adjusted Rand index", "score": "score"}


@dataclass(eq=False, repr=False)
class LossMatrixDisplay(Display):
    """Heat map of the clients' losses under all cluster models, the assignment marked.

    The picture of the CLoVE paper's Fig. 4.  Clients are sorted by cluster, so that a clustering
    that the losses bear out shows as a dark diagonal of blocks.  Create it with
    :meth:`from_estimator`; all parameters are stored as attributes.

    Parameters
    ----------
    losses : array-like of shape (n_clients, n_clusters)
        Mean loss of each client under each model.
    labels : array-like of shape (n_clients,) or None, default=None
        The cluster of each client; None takes that of least loss.
    groups : array-like of shape (n_clients,) or None, default=None
        Ids of the clients; None numbers them.

    Attributes
    ----------
    order_ : ndarray of shape (n_clients,)
        Clients from the top to the bottom.
    n_disagree_ : int
        Clients that another model would fit better than that of their cluster.
    image_ : matplotlib AxesImage
        The heat map.
    marks_ : list of matplotlib Rectangle
        The outlines that mark the assignment, one per cluster with clients.
    ax_ : matplotlib Axes
        Axes with the heat map.
    figure_ : matplotlib Figure
        Figure with the axes.

    See Also
    --------
    RoundsDisplay : Adjusted Rand index and score by round.

    References
    ----------
    .. [1] R. Bhatia, N. Papadis, M. Kodialam, T. V. Lakshman, S. Chakrabarty. "CLoVE: Personalized
       Federated Learning through Clustering of Loss Vector Embeddings". arXiv:2506.22427, 2025,
       Fig. 4.

    Examples
    --------
    >>> from skcfl import CLoVERegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.inspection import LossMatrixDisplay
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> clove = CLoVERegressor(n_clusters=3, random_state=0)
    >>> clove = clove.fit(data.X, data.y, groups=data.groups)
    >>> display = LossMatrixDisplay.from_estimator(clove, data.X, data.y, groups=data.groups)
    >>> display.losses.shape, display.n_disagree_
    ((12, 3), 0)
    """

    _: KW_ONLY
    losses: ArrayLike
    labels: ArrayLike | None = None
    groups: Groups = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: MatrixLike,
        y: Targets = None,
        *,
        groups: Groups = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> LossMatrixDisplay:
        """Draw the loss matrix of some rows.

        Parameters
        ----------
        estimator : estimator
            Fitted; every method with cluster models will do.
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows, those of fit or others, with the columns of fit.
        y : array-like of shape (n_samples,), default=None
            Their targets. Not used with an unsupervised local model.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client. Clients not seen in fit are marked at their least loss.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        **kwargs : dict
            Passed to :meth:`plot`.

        Returns
        -------
        display : LossMatrixDisplay
            With the heat map drawn.
        """
        check_shows(estimator, "cluster_params_", "fit one that finds clusters, such as IFCA")
        losses = estimator.cluster_losses(X, y, groups)
        labels = losses.argmin(axis=1)
        if groups is None and getattr(estimator, "group_col", None) is not None:
            names = getattr(estimator, "feature_names_in_", None)
            groups = ids_in_column(X, estimator.group_col, names)
        if groups is None:
            ids = None  # all rows are of one client, who may be anybody
        else:
            ids = encode(check_ids(groups))[0]
            known = dict(zip(estimator.groups_.tolist(), estimator.labels_.tolist(), strict=True))
            both = zip(ids.tolist(), labels, strict=True)
            labels = np.array([known.get(client, best) for client, best in both])
        return cls(losses=losses, labels=labels, groups=ids).plot(ax, **kwargs)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        cmap: Any = "viridis",
        numbers: Literal["auto"] | bool = "auto",
        colorbar: bool = True,
    ) -> LossMatrixDisplay:
        """Draw the heat map.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        cmap : str or Colormap, default="viridis"
            Colours, from the least loss to the largest.
        numbers : "auto" or bool, default="auto"
            If True, write the losses into the cells; "auto" where there are few.
        colorbar : bool, default=True
            If True, draw the scale of the colours.

        Returns
        -------
        display : LossMatrixDisplay
            This display.

        Raises
        ------
        ValueError
            If the labels do not fit the losses.
        """
        losses = np.asarray(self.losses, dtype=float)
        if losses.ndim != 2 or losses.size == 0:
            raise ValueError(
                f"losses must be an array of shape (n_clients, n_clusters), got {losses.shape}."
            )
        n, K = losses.shape
        best = np.where(np.isfinite(losses), losses, np.inf).argmin(axis=1)
        labels = best if self.labels is None else np.asarray(self.labels)
        if labels.shape != (n,) or labels.min() < 0 or labels.max() >= K:
            raise ValueError(
                f"labels must be one cluster in 0, ..., {K - 1} for each of {n} clients, got "
                f"{labels.tolist()[:5]}."
            )
        self.n_disagree_ = int((labels != best).sum())
        self.order_ = order = np.argsort(labels, kind="stable")
        ax = self._take_axes(ax)
        # Losses that are no numbers have no colour of the scale, and are red, as in the paper.
        shown = np.ma.masked_invalid(losses[order])
        self.image_ = ax.imshow(
            shown, aspect="auto", cmap=cmap, norm=_norm(shown), interpolation="nearest"
        )
        self.image_.set_cmap(self.image_.cmap.with_extremes(bad="tab:red"))
        rows = {k: np.flatnonzero(labels[order] == k) for k in np.unique(labels)}
        self.marks_ = [self._outline(k, mine) for k, mine in rows.items()]
        if numbers is True or (numbers == "auto" and n <= MAX_NUMBERED and K <= MAX_TICKS):
            self._write(shown)
        ax.set_xlabel("model of cluster")
        if K <= MAX_TICKS:
            ax.set_xticks(np.arange(K))
        name_clients(ax.yaxis, order, self.groups, MAX_NAMES, "clients, by cluster")
        if colorbar:
            self.figure_.colorbar(self.image_, ax=ax, label="mean loss")
        return self

    def _outline(self, k: int, rows: Array) -> Any:
        """Outline the cells of a cluster's clients and its model."""
        from matplotlib.patches import Rectangle

        corner, height = (k - 0.5, rows[0] - 0.5), len(rows)
        # Black around white shows on any colour.
        self.ax_.add_patch(Rectangle(corner, 1, height, fill=False, ec="black", lw=4))
        return self.ax_.add_patch(Rectangle(corner, 1, height, fill=False, ec="white", lw=2))

    def _write(self, shown: Array) -> None:
        for i, j in zip(*np.nonzero(~np.ma.getmaskarray(shown)), strict=True):
            red, green, blue, _ = self.image_.cmap(self.image_.norm(shown[i, j]))
            dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
            self.ax_.text(
                j,
                i,
                f"{shown[i, j]:.2g}",
                ha="center",
                va="center",
                fontsize="small",
                color="white" if dark else "black",
            )


def _norm(shown: Array) -> Any:
    """Logarithmic colours if losses differ by orders of magnitude."""
    from matplotlib.colors import LogNorm, Normalize

    low, high = shown.min(), shown.max()
    if np.ma.is_masked(low):
        return Normalize(0, 1)
    return LogNorm(low, high) if low > 0 and high / low >= WIDE else Normalize(low, high)


@dataclass(eq=False, repr=False)
class RoundsDisplay(Display):
    """Adjusted Rand index and score of a fit, by round.

    Create it with :meth:`from_estimator`, from a fit with ``Record(models=True)`` (for the
    score) and ``Record(true_labels=...)`` (for the index); all parameters are stored as
    attributes.

    Parameters
    ----------
    ari : array-like of shape (n_rounds,) or None, default=None
        Adjusted Rand index of the clusters of each round.
    score : array-like of shape (n_rounds,) or None, default=None
        Score of the models after each round.
    name : str or None, default=None
        Name of the fit for the legend.
    score_name : str, default="score"
        Name of the score.

    Attributes
    ----------
    line_ : matplotlib Line2D
        The curve.
    ax_ : matplotlib Axes
        Axes with the curve.
    figure_ : matplotlib Figure
        Figure with the axes.

    See Also
    --------
    ConvergenceDisplay : Any column of the history, also by bytes.

    Examples
    --------
    >>> from skcfl import CLoVEClassifier, Record
    >>> from skcfl.datasets import make_clustered_classification
    >>> from skcfl.inspection import RoundsDisplay
    >>> data = make_clustered_classification(n_clients=12, n_clusters=3, random_state=0)
    >>> rows = {"X": data.X, "y": data.y, "groups": data.groups}
    >>> clove = CLoVEClassifier(n_clusters=3, record=Record(data.labels, models=True))
    >>> clove = clove.set_params(random_state=0).fit(**rows)
    >>> display = RoundsDisplay.from_estimator(clove, **rows)
    >>> bool(display.score[-1] == clove.score(**rows)), float(display.ari[-1])
    (True, 1.0)
    >>> by_score = display.plot(curve="score")
    """

    _: KW_ONLY
    ari: ArrayLike | None = None
    score: ArrayLike | None = None
    name: str | None = None
    score_name: str = "score"

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: MatrixLike | None = None,
        y: Targets = None,
        *,
        groups: Groups = None,
        curve: Literal["ari", "score"] | None = None,
        name: str | None = None,
        ax: Axes | None = None,
        **line_kw: Any,
    ) -> RoundsDisplay:
        """Score the rounds of a fit and draw them.

        Parameters
        ----------
        estimator : estimator
            Fitted with a ``record`` of the models, of the true labels, or of both.
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features), default=None
            Rows to score the models of every round on, by the estimator's ``score``; None draws
            the adjusted Rand index only. The ensembles of a SklearnModel are scored as they are
            before the last step of the fit, boosting.
        y : array-like of shape (n_samples,), default=None
            Their targets. Not used with an unsupervised local model.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client.
        curve : {"ari", "score"} or None, default=None
            Quantity to draw, as in :meth:`plot`.
        name : str or None, default=None
            Name for the legend; None is the estimator's class.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        **line_kw : dict
            Passed to matplotlib's ``plot``.

        Returns
        -------
        display : RoundsDisplay
            With the curve drawn.

        Raises
        ------
        ValueError
            If the fit kept nothing that could be drawn.
        """
        check_shows(estimator, "history_", "fit one that works in rounds, such as IFCA")
        ari, score = estimator.history_.get("ari"), None
        if X is not None:
            if not hasattr(estimator, "round_params_"):
                raise ValueError(
                    "To score every round the estimator must keep them: fit it with "
                    f"record=Record(models=True). This {type(estimator).__name__} has no "
                    "round_params_."
                )
            score = _round_scores(estimator, X, y, groups)
            ari = None if ari is None else ari[-len(score) :]
        kind = getattr(estimator.model_, "estimator_type", None)
        names = {"classifier": "accuracy", "regressor": "R$^2$", None: "minus mean loss"}
        display = cls(
            ari=ari,
            score=score,
            name=type(estimator).__name__ if name is None else name,
            score_name=names[kind],
        )
        return display.plot(ax, curve=curve, **line_kw)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        curve: Literal["ari", "score"] | None = None,
        name: str | None = None,
        **line_kw: Any,
    ) -> RoundsDisplay:
        """Draw a curve by round.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        curve : {"ari", "score"} or None, default=None
            The adjusted Rand index, or the score; None is the first of them that is there.
        name : str or None, default=None
            Name for the legend; None is the one given before.
        **line_kw : dict
            Passed to matplotlib's ``plot``.

        Returns
        -------
        display : RoundsDisplay
            This display.

        Raises
        ------
        ValueError
            If there is no such curve.
        """
        curves = {"ari": self.ari, "score": self.score}
        there = [key for key, values in curves.items() if values is not None]
        curve = there[0] if curve is None and there else curve
        if not isinstance(curve, str) or curve not in there:
            raise ValueError(
                f"curve must be one of {there}, which the fit has, got {curve!r}. Fit a method "
                "with record=, as IFCA, with Record(true_labels=...) for the adjusted Rand index, "
                "with Record(models=True) and rows to score for the score."
            )
        values = np.asarray(curves[curve], dtype=float)
        name = self.name if name is None else name
        ax = self._draw_line(ax, np.arange(1, len(values) + 1), values, name, line_kw)
        ax.set_xlabel("round")
        ax.set_ylabel(LABELS["ari"] if curve == "ari" else self.score_name)
        ax.xaxis.get_major_locator().set_params(integer=True)
        return self


def _round_scores(estimator: Any, X: MatrixLike, y: Targets, groups: Groups) -> Array:
    """Score of the models of every round, as the estimator itself scores."""
    one = copy.copy(estimator)
    scores = []
    for params, labels in zip(estimator.round_params_, estimator.round_labels_, strict=True):
        heard = labels[labels >= 0]
        # Clients without an answer so far use the largest cluster's model, as new ones would.
        rest = np.bincount(heard).argmax() if len(heard) else 0
        one.cluster_params_ = params.astype(estimator.cluster_params_.dtype)
        one.labels_ = np.where(labels < 0, rest, labels)
        scores.append(one.score(X, y, groups=groups))
    return np.array(scores)
