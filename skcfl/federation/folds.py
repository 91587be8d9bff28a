"""Cross-validation on the client side: pools of training rows, scores of test rows.

A server that chooses a parameter by cross-validation receives scores; the rows of a fold stay
here.
"""

import numpy as np

from .._checks import about
from .fanout import joined
from .judging import FoldRows
from .pool import ClientPool
from .sites import ask_each
from .turns import in_one_message


class Folds:
    """The rows of a fit, to be dealt out to folds in the places where they are.

    Parameters
    ----------
    parts : list of Rows
        What each place holds, in the units of the fit.
    model : LocalModel
        Bound to the shape of the data.
    classes : ndarray or None
        The classes of a classifier.
    presence : Presence
        Who answers.
    judges : ndarray of shape (n_clients,) of bool, default=None
        Whose rows are scored; None is all.
    clients : ndarray of shape (m,), default=None
        Whom the pools and models of the folds are of; None is all.
    """

    def __init__(self, parts, model, classes, presence, judges=None, clients=None):
        self.parts, self.model, self.classes, self.presence = parts, model, classes, presence
        self.judges, self.clients = judges, clients

    def penalised(self, model):
        """The same folds under a model with another local penalty."""
        return Folds(self.parts, model, self.classes, self.presence, self.judges, self.clients)

    def judged_by(self, judges, alone=False):
        """The same folds, in which the rows of some clients are not scored.

        Parameters
        ----------
        judges : ndarray of shape (n_clients,) of bool
            Whose rows are scored.
        alone : bool, default=False
            Whether the others are left out of pools and models, too.

        Returns
        -------
        folds : Folds
        """
        if judges.all():
            return self
        clients = np.flatnonzero(judges) if alone else None
        return Folds(self.parts, self.model, self.classes, self.presence, judges, clients)

    def deal(self, n_folds, seed):
        """Folds of some rows of every client each.

        Parameters
        ----------
        n_folds : int
            How many.
        seed : int
            From which every client deals its rows.

        Returns
        -------
        folds : list of Fold
        """
        self._check_own()
        counts, discrete = zip(*ask_each(self.parts, "testable"), strict=True)
        n_testable = sum(counts)
        if n_testable < n_folds:
            raise ValueError(
                f"cv={n_folds} is more than the number of rows that can be tested, {n_testable}: "
                "the only row of a client never is. Clients under a SitePolicy test min_rows of "
                "their rows as one."
            )
        dealt = [part.folds(n_folds, seed, all(discrete)) for part in self.parts]
        folds = [self._fold(parts) for parts in zip(*dealt, strict=True)]
        with in_one_message():
            for fold in folds:
                fold.begin()
        return folds

    def _fold(self, parts):
        if self.judges is None:
            return Fold(self, list(parts))
        return Fold(self, [part.judged_by(self.judges[part.places]) for part in parts])

    def _check_own(self):
        """Raise a ValueError if models are not all that predictions depend on."""
        if self.model.own is not None:
            raise ValueError(
                "buffers must be 'average' where models are judged on folds, as with lam='auto': "
                "servers do not know what clients keep, got buffers='local'."
            )

    def split(self, cv):
        """The folds of a splitter, which gets the clients' positions as groups.

        Parameters
        ----------
        cv : cross-validator
            With ``split(X, y, groups)``, as in scikit-learn.

        Returns
        -------
        folds : list of Fold
            Those that have rows to be scored, where some clients do not judge.
        """
        self._check_own()
        if len(self.parts) > 1 or not hasattr(self.parts[0], "X"):
            raise ValueError(
                f"cv must be a number of folds where the rows are in {len(self.parts)} place(s), "
                f"not all of them in this process: a splitter needs them here, got {cv!r}."
            )
        (rows,) = self.parts
        there = rows.present
        present = np.arange(rows.n_rows)[there]
        target = rows.y[there] if self.classes is None else self.classes[rows.y[there]]
        with about("cv"):
            parts = list(cv.split(rows.X[there], target, rows.codes[there]))
            if not parts:
                raise ValueError("it makes no folds.")
            for some in (np.asarray(some) for part in parts for some in part):
                if some.ndim != 1 or some.dtype.kind not in "biu":
                    raise ValueError("its folds must be pairs of arrays of row numbers.")
            folds = [
                self._fold([FoldRows(rows, *(present[some] for some in part))]) for part in parts
            ]
            if self.judges is not None:
                folds = [fold for fold in folds if len(fold.parts[0].test)]
            if not folds:
                raise ValueError("no fold has rows of clients who are not set aside.")
            return folds


class Fold:
    """Training and test rows.

    Parameters
    ----------
    folds : Folds
        All rows.
    parts : list of FoldRows
        Those of each place.
    """

    def __init__(self, folds, parts):
        self.folds, self.parts, self._sites = folds, parts, None

    def begin(self):
        """Let the places begin to make what :meth:`pool` needs."""
        self._sites = [(part.site(self.folds.model), part.places) for part in self.parts]

    def pool(self, random_state=None):
        """ClientPool of the training rows, of all clients that the folds are of."""
        folds = self.folds
        if self._sites is None:
            self.begin()
        sites, self._sites = self._sites, None
        about = {"presence": folds.presence, "some_rows": True}
        pool = ClientPool(joined(sites), folds.model, random_state, **about)
        return pool if folds.clients is None else pool.subset(folds.clients)

    def scores(self, params, scoring=None):
        """Score the test rows under several sets of models.

        Parameters
        ----------
        params : ndarray of shape (m, n_clients, n_params)
            The clients' models in each set.
        scoring : str, scorer or None, default=None
            None is minus the mean loss of the rows.

        Returns
        -------
        scores : ndarray of shape (m,) or None
            The larger the better; of rows in several places the mean of the places' scores,
            weighted as their rows are. None without any rows to be scored.
        """
        folds = self.folds
        model, classes = folds.model, folds.classes
        if folds.clients is not None:
            some, judges = params, folds.judges
            params = np.zeros((len(some), len(judges), some.shape[2]), dtype=some.dtype)
            params[:, judges] = some
        own = [(model, classes, params[:, part.places], scoring) for part in self.parts]
        # A place that is silent for some candidates only would make them better or worse.
        how = {"retries": folds.presence.retries, "may_refuse": True}
        scores, shares = zip(*ask_each(self.parts, "scores", own, **how), strict=True)
        if not any(shares):
            return None
        if len(scores) == 1:
            return scores[0]
        return np.average(scores, axis=0, weights=shares)
