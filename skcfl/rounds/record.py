"""History of a fit: one entry per round, with the numbers sent since the last one."""

import numpy as np
from sklearn.metrics import adjusted_rand_score

from ..federation.ledger import COLUMNS
from .state import weighted_mean

__all__ = ["History", "RoundRecord"]


class History:
    """Columns of numbers, one entry per round; the last ones are the numbers sent in it.

    Parameters
    ----------
    ledger : Ledger
        Ledger of the numbers sent; its mark is set at every entry.
    *names : str
        The other columns.

    Examples
    --------
    >>> from skcfl.federation import Ledger
    >>> from skcfl.rounds.record import History
    >>> ledger = Ledger()
    >>> history = History(ledger, "objective")
    >>> ledger.book(up=5, down=7)
    >>> history.add(objective=0.5)
    >>> history["floats_down"]
    [7]
    """

    def __init__(self, ledger, *names):
        self.ledger = ledger
        self.columns = {name: [] for name in (*names, *COLUMNS)}

    def add(self, **values):
        """Add an entry: one value for each column, by name."""
        values.update(self.ledger.close_round())
        for name, column in self.columns.items():
            column.append(values[name])

    def __getitem__(self, name):
        return self.columns[name]

    def arrays(self):
        """The columns as arrays, by name."""
        return {name: np.array(column) for name, column in self.columns.items()}


class RoundRecord:
    """Entry of the history for a round of a method by rounds.

    Parameters
    ----------
    ledger : Ledger
        Ledger of the numbers sent.
    rule : ChoiceRule, default=None
        Rule of choice; its report adds columns.
    truth : ndarray of shape (n_clients,), default=None
        True clusters, for study: a column "ari" has the adjusted Rand index.
    keep_rounds : bool, default=False
        If True, keep the models and labels of every round, for study.

    Attributes
    ----------
    history : History
        "objective" (mean over the participants), "change", "n_clusters" (that have participants),
        "participants", "ari", what the rule reports, and floats sent.
    kept : list of tuple of ndarray
        Models and labels of every round.
    """

    def __init__(self, ledger, rule=None, truth=None, keep_rounds=False):
        self.truth, self.keep_rounds = truth, keep_rounds
        self.report = dict if rule is None else rule.report
        more = ([] if truth is None else ["ari"]) + list(self.report())
        names = ("objective", "change", "n_clusters", "participants", *more)
        self.history, self.kept = History(ledger, *names), []

    def __call__(self, state, answers):
        """Record a round; return its metrics for the progress display."""
        objective = weighted_mean(answers.values, answers.who.weights)
        n_clusters = int(np.count_nonzero(np.bincount(answers.choice)))
        self.add(state, objective, state.change, n_clusters, len(answers.choice))
        return {"objective": objective, "change": state.change, "n_clusters": n_clusters}

    def add(self, state, objective, change, n_clusters, participants):
        """Record an entry of any kind."""
        values = self.report()
        if self.truth is not None:
            values["ari"] = adjusted_rand_score(self.truth, state.labels)
        self.history.add(
            objective=objective,
            change=change,
            n_clusters=n_clusters,
            participants=participants,
            **values,
        )
        if self.keep_rounds:
            self.kept.append((state.theta.copy(), state.labels.copy()))

    @property
    def last(self):
        """Objective of the last round; NaN if in none of them anybody answered."""
        return self.history["objective"][-1] if self.history["objective"] else np.nan

    def rounds(self):
        """Models and labels of all rounds that were kept, as arrays by name."""
        if not self.keep_rounds:
            return {}
        params, labels = map(np.array, zip(*self.kept, strict=True))
        return {"round_params": params, "round_labels": labels}
