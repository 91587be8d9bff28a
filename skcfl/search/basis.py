"""Which form of a model is taken, by rows held out inside the clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..federation.lanes import together
from ..federation.ledger import Ledger
from .judges import HeldOutLoss, comparable

# Folds of the rows, and how many of them judge: each costs a fit of every basis.
FOLDS = 3, 2
# Clients below which standard errors say nothing, and the first form is kept.
LEAST_CLIENTS = 4
# Standard errors by which another form has to be better than the first, and the share of its loss,
# as for another number of clusters.
BETTER, LEAST_GAIN = 1.0, 0.01


@dataclass
class Form:
    """A form of a model that competes.

    Attributes
    ----------
    name : str
        What it is known as.
    pool : ClientPool
        The clients, with the columns of the form.
    fitted : callable
        ``fitted(pool)`` returns models (n_clients, n_params) fitted to some rows.
    judged : callable, default=None
        ``judged()`` returns the sums of the losses of each client's rows held out, an array
        (n_clients,); None fits and judges by `fitted`.
    competes : callable, default=None
        ``competes()`` says after a look whether the form is judged at all; None is yes.
    """

    name: str
    pool: Any
    fitted: Callable[[Any], Any] | None = None
    judged: Callable[[], Any] | None = None
    competes: Callable[[], bool] | None = None
    #: What the look has said, once it was taken.
    answer: bool | None = None

    def may_compete(self):
        """Whether the form is judged; the look is taken once."""
        if self.answer is None:
            self.answer = self.competes is None or self.competes()
        return self.answer

    def totals(self):
        """Sums of the losses of each client's rows held out, and weights of these rows.

        None of a form that does not compete.
        """
        if not self.may_compete():
            return None
        if self.judged is not None:
            return self.judged(), None
        judge = HeldOutLoss(self.pool, np.random.RandomState(0), folds=FOLDS)

        def judged(k, train):
            return judge.losses(k, [self.fitted(train)], train.ledger)[0]

        tasks = [partial(judged, k, train) for k, train in enumerate(judge.pools)]
        return sum(together(tasks, judge.pools, self.pool.ledger)), judge.weights


def better_form(forms):
    """The form to take: the first one, unless another is clearly better.

    Parameters
    ----------
    forms : list of Form
        The simplest one first.

    Returns
    -------
    chosen : Form
    losses : dict of str to float
        Mean loss of a row held out, by name.
    ledger : Ledger
        What was sent; forms are judged at the same time.
    """
    first = forms[0]
    n = int((first.pool.client_sizes > 1).sum())
    if n < LEAST_CLIENTS:
        return first, {}, Ledger()
    lanes, ledger = [form.pool for form in forms], Ledger()
    found = list(together([form.totals for form in forms], lanes, ledger))
    forms = [form for form, each in zip(forms, found, strict=True) if each is not None]
    found = [each for each in found if each is not None]
    totals, weights = comparable(np.array([total for total, _ in found]), found[0][1])
    totals = [np.where(np.isfinite(total), total, np.inf) for total in totals]
    here = weights > 0
    losses = {
        form.name: float(total[here].sum() / weights.sum())
        for form, total in zip(forms, totals, strict=True)
    }
    best = min(range(len(forms)), key=lambda k: losses[forms[k].name])
    if best == 0 or not np.isfinite(totals[best][here]).all():
        return first, losses, ledger
    if not np.isfinite(totals[0][here]).all():
        return forms[best], losses, ledger
    gains = totals[0][here] - totals[best][here]
    error = np.sqrt(len(gains) * gains.var(ddof=1))
    least = max(BETTER * error, LEAST_GAIN * abs(totals[0][here].sum()))
    return (forms[best] if gains.sum() > least else first), losses, ledger
