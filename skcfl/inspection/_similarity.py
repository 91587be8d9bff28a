"""Which clients are alike: a heat map."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import pdist, squareform

from .._typing import Array, ArrayLike
from ._axes import Axes, Display, check_shows
from ._stability import heat_map


@dataclass(eq=False, repr=False)
class ClientSimilarityDisplay(Display):
    """Differences between the models of any two clients: a heat map with like clients together.

    The difference is the Euclidean distance of effects at the mean row and of a standard deviation
    of each feature, so that units do not matter. Clients are in the order of a hierarchical
    clustering (average linkage): clusters are dark squares, a continuum is a dark band.

    Parameters
    ----------
    distances : array-like of shape (n_clients, n_clients)
        Differences between clients.
    groups : array-like of shape (n_clients,) or None, default=None
        Ids of the clients.

    Attributes
    ----------
    order_ : ndarray of shape (n_clients,)
        Clients from left to right, and from the top to the bottom.
    image_ : matplotlib AxesImage
        The heat map.
    ax_ : matplotlib Axes
        Axes with the heat map.
    figure_ : matplotlib Figure
        Figure with the axes.

    See Also
    --------
    ClusterStabilityDisplay : Which clients are together in fits to rows drawn again.

    Examples
    --------
    >>> from skcfl import PartialPoolingRegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.inspection import ClientSimilarityDisplay
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> model = PartialPoolingRegressor(random_state=0)
    >>> model = model.fit(data.X, data.y, groups=data.groups)
    >>> display = ClientSimilarityDisplay.from_estimator(model)
    >>> len(set(model.labels_[display.order_][:4]))
    1
    """

    _: KW_ONLY
    distances: ArrayLike
    groups: Array | Sequence[Hashable] | None = None

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Axes | None = None) -> ClientSimilarityDisplay:
        """Draw the differences between the clients of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            Fitted, with a linear local model of up to 256 parameters.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.

        Returns
        -------
        display : ClientSimilarityDisplay
            With the heat map drawn.

        Raises
        ------
        ValueError
            If the local model is not linear, or has more parameters.
        """
        check_shows(estimator, "params_", "fit one with a model for each client")
        effects = estimator._client_effects()[1]
        return cls(distances=squareform(pdist(effects)), groups=estimator.groups_).plot(ax)

    def plot(self, ax: Axes | None = None) -> ClientSimilarityDisplay:
        """Draw the heat map.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.

        Returns
        -------
        display : ClientSimilarityDisplay
            This display.

        Raises
        ------
        ValueError
            If the distances are no square matrix.
        """
        distances = np.asarray(self.distances, dtype=float)
        if distances.ndim != 2 or distances.shape[0] != distances.shape[1]:
            raise ValueError(f"distances must be a square matrix, got shape {distances.shape}.")
        ax = self._take_axes(ax)
        n = len(distances)
        condensed = distances[np.triu_indices(n, 1)]
        self.order_ = np.arange(n)
        if n > 2:
            self.order_ = leaves_list(linkage(condensed, "average", optimal_ordering=n <= 1000))
        groups: Any = np.arange(n) if self.groups is None else self.groups
        self.image_ = heat_map(ax, distances, self.order_, groups, cmap="viridis_r")
        self.figure_.colorbar(self.image_, ax=ax, label="difference of the clients' models")
        return self
