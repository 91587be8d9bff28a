"""Options of the record that a study keeps of a fit by rounds."""

from __future__ import annotations

from dataclasses import KW_ONLY

from .._option_objects import Options, parameters
from .._typing import Array, ClientLabels
from ..clients.ids import labels_of

__all__ = ["Record"]


@parameters
class Record(Options):
    """Record that a study keeps of a fit: it changes no model.

    The parameter ``record`` of the methods that look for clusters by rounds, where None stands for
    ``Record()``.

    Parameters
    ----------
    true_labels : dict, array-like of shape (n_clients,) or None, default=None
        True clusters, as ``labels`` of :class:`~skcfl.OracleClusters`: ``history_`` then has
        "ari", the adjusted Rand index by round.
    models : bool, default=False
        If True, keep the cluster models and clusters of every round in ``round_params_`` and
        ``round_labels_``, for :class:`~skcfl.inspection.RoundsDisplay`.

    Examples
    --------
    >>> from skcfl import IFCARegressor, Record
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=12, n_clusters=2, random_state=0)
    >>> ifca = IFCARegressor(2, record=Record(data.labels), random_state=0)
    >>> float(ifca.fit(data.X, data.y, groups=data.groups).history_["ari"][-1])
    1.0
    """

    _parameter_constraints = {"true_labels": [dict, "array-like", None], "models": ["boolean"]}

    true_labels: ClientLabels | None = None
    _: KW_ONLY
    models: bool = False

    def labels(self, groups: Array | None) -> Array | None:
        """True clusters as codes, in the order of the sorted ids; None where none are given."""
        if self.true_labels is None:
            return None
        return labels_of(self.true_labels, groups, "record: true_labels")
