"""What the fusion methods of clients have in common: the choice of lam, and bounded clients."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions

from .._checks import POSITIVE
from ..rounds.model_kinds import need_minima
from ..search.alpha import is_automatic
from ..search.lam_search import LamSearch

# Bound of a client's force, in typical gradients: honest clients of other clusters are within 2.
HUBER = 4.0


class LamChoiceMixin:
    """Parameters of the choice of lam, by rows held out inside the clients or by partitions.

    Parameters
    ----------
    search : LamSearch or None
        How ``lam="auto"`` is chosen: by rows held out inside the clients (None), by folds and
        a score of your choice, or by the partitions, see :class:`LamSearch`. Not used with a
        number for ``lam``.
    client_loss : {"huber"}, float or None
        Bound of the force with which a client pulls at others, if clients may be
        false. With "huber" a client pulls with a force of at most 4 times the typical
        gradient (a number takes the place of the 4), whatever its rows say; features are
        scaled by medians over the clients; and a client above the bound at the middle of all
        models (``suspicion_``) does not judge ``lam`` and has no part in refits, and far above
        it no part at all. Linear models only; the guide has a page on false clients.

    Attributes
    ----------
    suspicion_ : ndarray of shape (n_clients,)
        With ``client_loss``: the client's gradient at the geometric median of all clients' own
        models over the bound. Who is beyond 1 is not trusted, see
        :class:`~skcfl.inspection.SuspicionDisplay`.
    floats_up_ : int
        Numbers sent by the clients to the server in the whole fit, the search of ``lam``
        and the refit included.
    refit_ : bool
        True if ``params_`` are the refitted models of the clusters.
    lam_search_ : dict of str to ndarray
        With ``lam="auto"`` what was tried, one entry each. With rows held out: "lam",
        "refit", and "graph", "penalty" and "alpha" where they competed; "n_clusters", mean of
        the folds; "criterion", the mean loss of the rows held out, "standard_error", that of
        its difference to the chosen one, over clients; "chosen". Under "bic" the values
        tried, "lam", ascending, "n_clusters" and "criterion" at each.
    lams_ : ndarray of shape (n_tried,)
        With ``search=LamSearch(cv=...)``: the values tried with the ``graph``, ``penalty``,
        ``refit`` and ``alpha`` that were chosen, ascending. A single 0 with one client.
    cv_scores_ : ndarray of shape (n_folds, n_tried)
        Score of every fold at every one of ``lams_``, the larger the better. NaN with one
        client, where nothing is chosen.
    best_index_ : int
        Place of ``lam_`` in ``lams_``.
    """

    _option_classes: ClassVar[dict[str, Any]] = {"search": LamSearch}
    _sums_clients = True

    _parameter_constraints = {
        "search": [LamSearch, None],
        "client_loss": [StrOptions({"huber"}), POSITIVE, None],
    }

    def _task_options(self, task):
        return {**task.options, "folds": task.folds}

    def _as_fitted(self, pool):
        """Return a copy and the clients of its fit, with what it chose for options of "auto"."""
        fitted = copy.copy(self)
        for name in ("graph", "penalty", "refit"):
            value = getattr(self, name, None)
            if isinstance(value, str) and value == "auto":
                setattr(fitted, name, getattr(self, f"{name}_"))
        given = self.lam == "auto" and self._option("search").alphas is not None
        return fitted, pool.penalised(self.alpha_) if given or is_automatic(pool) else pool

    def _bound(self):
        """Most force of a client, in typical gradients; None where there is no bound."""
        return HUBER if self.client_loss == "huber" else self.client_loss


def check_bounded(estimator, pool):
    """Raise an error if clients of such a local model cannot be bounded."""
    need_minima(
        pool,
        f"client_loss={estimator.client_loss!r} needs a local model with a convex objective and "
        "exact proximal points, got {}. Use a linear model, or a method by rounds with "
        "aggregation=.",
    )
