"""Which form of a model is taken, by rows held out inside the clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .judges import Judge

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
    """

    name: str
    pool: Any
    fitted: Callable[[Any], Any]


def better_form(forms, seed=0):
    """The form to take: the first one, unless another is clearly better.

    Parameters
    ----------
    forms : list of Form
        The simplest one first.
    seed : int, default=0
        Seed of the folds, the same for all forms.

    Returns
    -------
    chosen : Form
    losses : dict of str to float
        Mean loss of a row held out, by name.
    """
    first = forms[0]
    n = int((first.pool.client_sizes > 1).sum())
    if n < LEAST_CLIENTS:
        return first, {}
    totals, weights = [], None
    for form in forms:
        judge = Judge(form.pool, np.random.RandomState(seed), folds=FOLDS)
        weights = judge.weights
        judge.corrects = False
        total = np.zeros(form.pool.n_clients)
        for k, train in enumerate(judge.pools):
            total += judge.losses(k, [form.fitted(train)], train.ledger)[0]
            form.pool.ledger.take_over([train.ledger])
        totals.append(np.where(np.isfinite(total), total, np.inf))
    here = weights > 0
    losses = {
        form.name: float(total[here].sum() / weights.sum())
        for form, total in zip(forms, totals, strict=True)
    }
    best = min(range(len(forms)), key=lambda k: losses[forms[k].name])
    if best == 0 or not np.isfinite(totals[best][here]).all():
        return first, losses
    if not np.isfinite(totals[0][here]).all():
        return forms[best], losses
    gains = totals[0][here] - totals[best][here]
    error = np.sqrt(len(gains) * gains.var(ddof=1))
    least = max(BETTER * error, LEAST_GAIN * abs(totals[0][here].sum()))
    return (forms[best] if gains.sum() > least else first), losses
