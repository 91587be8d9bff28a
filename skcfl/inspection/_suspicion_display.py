"""Clients that a robust aggregation or a bounded client loss set aside."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from .._typing import Array
from ._axes import Axes, Display, check_shows, colour_of, text_of

# Names that stand side by side.
NAMED = 40


@dataclass(eq=False, repr=False)
class SuspicionDisplay(Display):
    """Suspicions of the clients, by cluster, and the limit beyond which they were set aside.

    Create it with :meth:`from_estimator`; all parameters are stored as attributes. Clients have
    the colour of their cluster, the first ten clusters one each, or that of its number in a
    ``cmap``. Clients beyond the limit have
    their names, of more than 40 clients those that have room, the most suspicious first.

    Parameters
    ----------
    suspicion : ndarray of shape (n_clients,)
        As ``suspicion_`` of an estimator with an ``aggregation`` other than "mean", or with a
        ``client_loss``.
    labels : ndarray of shape (n_clients,)
        Clusters of the clients.
    groups : ndarray of shape (n_clients,), default=None
        Ids of the clients; None takes their positions.

    Attributes
    ----------
    order_ : ndarray of shape (n_clients,)
        Clients from left to right: by cluster, and by suspicion in it.
    points_ : matplotlib PathCollection
        The clients.
    limit_ : matplotlib Line2D
        The limit, 1.
    ax_ : matplotlib Axes
        Axes with the points.
    figure_ : matplotlib Figure
        Figure with the axes.

    See Also
    --------
    ConvergenceDisplay : How a fit converged.

    Examples
    --------
    >>> from skcfl import IFCARegressor
    >>> from skcfl.datasets import corrupt, make_clustered_regression
    >>> from skcfl.inspection import SuspicionDisplay
    >>> data = make_clustered_regression(n_clients=20, n_clusters=2, random_state=0)
    >>> false = corrupt(data.X, data.y, data.groups, attack="sign_flip", random_state=0)
    >>> ifca = IFCARegressor(n_clusters=2, aggregation="geometric_median", random_state=0)
    >>> ifca = ifca.fit(false.X, false.y, groups=false.groups)
    >>> display = SuspicionDisplay.from_estimator(ifca)
    >>> bool((ifca.groups_[ifca.suspicion_ > 1] == false.false).all())
    True
    """

    _: KW_ONLY
    suspicion: Array
    labels: Array
    groups: Array | None = None

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, ax: Axes | None = None, **scatter_kw: Any
    ) -> SuspicionDisplay:
        """Draw the suspicions of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            Fitted under a robust ``aggregation`` or a ``client_loss``.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        **scatter_kw : dict
            Passed to matplotlib's ``scatter``.

        Returns
        -------
        display : SuspicionDisplay
            With the points drawn.

        Raises
        ------
        ValueError
            If the estimator has no suspicions.
        """
        way = "fit it with an aggregation other than 'mean', such as 'geometric_median'"
        check_shows(estimator, "suspicion_", way)
        display = cls(
            suspicion=estimator.suspicion_, labels=estimator.labels_, groups=estimator.groups_
        )
        return display.plot(ax, **scatter_kw)

    def plot(self, ax: Axes | None = None, **scatter_kw: Any) -> SuspicionDisplay:
        """Draw the suspicions on a logarithmic axis.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.
        **scatter_kw : dict
            Passed to matplotlib's ``scatter``.

        Returns
        -------
        display : SuspicionDisplay
            This display.

        Raises
        ------
        ValueError
            If there is not one label and one id per client.
        """
        suspicion, labels = np.asarray(self.suspicion, dtype=float), np.asarray(self.labels)
        groups = np.arange(len(labels)) if self.groups is None else np.asarray(self.groups)
        if not suspicion.shape == labels.shape == groups.shape:
            raise ValueError(
                "suspicion, labels and groups must have one entry per client; got the shapes "
                f"{suspicion.shape}, {labels.shape} and {groups.shape}."
            )
        self.order_ = order = np.lexsort((suspicion, labels))
        ax = self._take_axes(ax)
        finite = suspicion[np.isfinite(suspicion)]
        low, top = finite.min(initial=1.0), finite.max(initial=1.0)
        # Clients that did not answer are at the upper edge, clients that agree exactly at the
        # lower.
        shown = np.clip(suspicion, max(low, 1e-3), 3.0 * top)
        colours = labels[order] if "cmap" in scatter_kw else list(map(colour_of, labels[order]))
        options = {"c": colours, **scatter_kw}
        self.points_ = ax.scatter(np.arange(len(order)), shown[order], **options)
        self.limit_ = ax.axhline(1.0, color="0.4", linestyle="--", linewidth=1.0)
        ax.set_yscale("log")
        ax.set_xlabel("clients by cluster")
        ax.set_ylabel("suspicion")
        named: list[Any] = []
        for place in np.argsort(-suspicion[order], kind="stable"):
            room = all(abs(place - other) >= len(order) / NAMED for other in named)
            if room and suspicion[order[place]] > 1.0:
                named.append(place)
        for place in sorted(named):
            client = order[place]
            high = shown[client] ** 2 > shown.min() * shown.max()  # in the upper half
            ax.annotate(
                text_of(groups[client]),
                (place, shown[client]),
                textcoords="offset points",
                xytext=(0, -5 if high else 5),
                fontsize="x-small",
                rotation=90,
                horizontalalignment="center",
                verticalalignment="top" if high else "bottom",
            )
        return self
