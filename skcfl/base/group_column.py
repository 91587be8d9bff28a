"""Ids of the rows' clients in a column of X: what all estimators of clients share."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import _safe_indexing

from .._typing import Array, ClientIds
from ..clients.ids import column_position, locate

_METHODS_WITH_GROUPS = (
    "fit",
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "score",
)


class TakesIds:
    """Estimators with the parameter ``group_col``."""

    group_col: str | int | None

    def _take_column(self, X: Any, groups: ClientIds | None, header: Any) -> tuple[Any, Any]:
        if groups is not None:
            raise ValueError(
                f"groups and group_col={self.group_col!r} are both given. The ids come from one "
                "place: leave groups out, or set group_col=None. (Under metadata routing, groups "
                "still reach a splitter.)"
            )
        # an array passed after a fit on a DataFrame has the columns of fit, as its features have
        names = getattr(X, "columns", getattr(header, "feature_names_in_", None))
        position = column_position(self.group_col, names, X.shape[1])
        others = np.delete(np.arange(X.shape[1]), position)
        if sparse.issparse(X):
            return X[:, others], X[:, [position]].toarray().ravel()
        return _safe_indexing(X, others, axis=1), _safe_indexing(X, position, axis=1)

    def _ids_name(self) -> str:
        return "groups" if self.group_col is None else f"Column group_col={self.group_col!r} of X"

    def get_metadata_routing(self) -> Any:
        """Metadata that the methods ask for.

        With ``group_col`` the estimator does not ask for ``groups``, so that these can be passed
        for a splitter's sake.

        Returns
        -------
        routing : MetadataRequest
            The requests.
        """
        routing: Any = super().get_metadata_routing()  # type: ignore[misc]
        if self.group_col is not None:
            for method in _METHODS_WITH_GROUPS:
                request = getattr(routing, method)
                if "groups" in request.requests:  # the local model may offer no probabilities
                    request.add_request(param="groups", alias=False)
        return routing


def check_new_ids(known: Array, clients: Array | None) -> Array:
    """Ids of new clients; raise a ValueError if they have none, or were seen in fit."""
    if clients is None:
        raise ValueError(
            "adapt needs clients with ids: fit with groups= (or group_col) and pass the ids "
            "of the new clients the same way."
        )
    positions, unseen = locate(known, clients)
    if len(unseen) < len(clients):
        seen = clients[positions >= 0].tolist()
        raise ValueError(
            f"groups holds clients that were seen in fit: {seen[:5]}. Pass rows of new "
            "clients only; fit again to learn more of the others."
        )
    return clients
