"""Clients that fit estimators of scikit-learn, which travel to the other clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array
from ..exceptions import FederationError
from .federation import Federation, _present
from .handshake import Handshake
from .made import BehindFederation
from .presence import Presence
from .sites import ask_each

if TYPE_CHECKING:
    from ..models import SklearnModel


class FittedFederation(BehindFederation):
    """Clients of a federation, with the predictions of their estimators out of folds.

    Parameters
    ----------
    federation : Federation
        The clients.
    model : SklearnModel
        Bound local model, without estimators.
    seed : int
        Seed of the estimators and of the folds.
    """

    def __init__(self, federation: Federation, model: SklearnModel, seed: int) -> None:
        super().__init__(federation)
        self.model, self.seed = model, seed

    def rows(self, model: Any, hello: Handshake) -> list[Any]:
        """The rows of all places, with the predictions out of folds behind their features."""
        parts = self.federation.rows(self.model, hello)
        return [part.cross_fitted(self.model, self.seed) for part in parts]

    def fitted(
        self,
        hello: Handshake,
        before: Presence | None = None,
        seed: int | None = None,
        ensembles: tuple[Any, Array, Array] | None = None,
    ) -> tuple[list[Any], Array]:
        """Let the clients fit the estimator to their rows.

        Parameters
        ----------
        hello : Handshake
            Who the clients are.
        before : Presence, default=None
            Presence in an earlier attempt: clients that it lost fit nothing.
        seed : int, default=None
            Seed of the estimators; None is that of the federation.
        ensembles : tuple, default=None
            A model with estimators, a table (K, n_params) of models, and which of them each client
            has, -1 for clients that fit nothing: clients then fit the residuals of these.

        Returns
        -------
        bank : list of estimator
        owners : ndarray of shape (len(bank),)
            Position of the client of each, ascending.
        """
        presence = Presence(hello.ids, self.min_clients, self.retries, before)
        parts = self.federation.rows(self.model, hello)
        parts = _present(parts, presence, hello, self.model)
        seed = self.seed if seed is None else seed
        asked = []
        for part in parts:
            earlier = None
            if ensembles is not None:
                model, table, index = ensembles
                # Estimators of clusters that are elsewhere are not sent.
                used = np.unique(index[part.places])
                used = used[used >= 0]
                at = np.searchsorted(used, index[part.places])
                needed = np.flatnonzero((table[used] != 0).any(axis=0))
                bank = [model.bank[k] for k in needed]
                small = model.with_bank(bank, model.owners[needed])
                earlier = (small, table[used][:, needed], np.where(index[part.places] < 0, -1, at))
            asked.append((self.model, seed, earlier))
        answers = ask_each(parts, "fitted", asked, retries=self.retries)
        found = [pair for pairs in answers for pair in pairs]
        if not found and ensembles is None:
            raise FederationError("no client has fitted an estimator.")
        found.sort(key=lambda pair: pair[0])
        owners = np.array([place for place, _ in found], dtype=np.intp)
        return [estimator for _, estimator in found], owners
