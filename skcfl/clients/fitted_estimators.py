"""Estimators that clients fit to their rows, as a whole and out of folds."""

import numpy as np

from ..numerics.by_cluster import rows_by_label
from ..numerics.threads import at_once
from .draws import mixed, order_of_rows

# Seeds of scikit-learn are below this.
SEEDS = np.uint64(2**31 - 1)


def fit_by_client(model, rows, numbers, seed, n_jobs=None):
    """Estimators of the clients.

    Parameters
    ----------
    model : SklearnModel
        Bound local model.
    rows : tuple
        X, y, positions of the clients and weights.
    numbers : ndarray of shape (n_clients,)
        Numbers by which the clients draw.
    seed : int
        Seed of the fit.
    n_jobs : int or None, default=None
        Threads over the clients.

    Returns
    -------
    estimators : dict of int to estimator
        Keys are positions; clients without rows of positive weight have none.
    """
    parts = _by_client(*rows)
    seeds = mixed(seed, numbers) % SEEDS

    def fitted(i):
        return model.fitted(*parts[i][1:], int(seeds[i]))

    return dict(zip(parts, at_once(fitted, list(parts), n_jobs), strict=True))


def out_of_folds(model, rows, folds, numbers, seed, n_jobs=None):
    """Predictions of each client's rows by its estimator fitted to the rows of the other folds.

    Parameters
    ----------
    model, rows, numbers, seed, n_jobs
        As of :func:`fit_by_client`.
    folds : ndarray of shape (n_rows,)
        Fold in which each row is held out, -1 for the only row of a client, which is predicted by
        the estimator fitted to itself.

    Returns
    -------
    predicted : ndarray of shape (n_rows, n_outputs)
        Zero for rows that weigh nothing.
    """
    X, y, codes, weights = rows
    out = np.zeros((len(codes), model.n_outputs))
    seeds, tasks = mixed(seed, numbers) % SEEDS, []
    for i, (index, *_) in _by_client(*rows).items():
        for fold in np.unique(folds[index]):
            held = index[folds[index] == fold]
            train = index if len(held) == len(index) else index[folds[index] != fold]
            tasks.append((train, held, int(seeds[i])))

    def predict(task):
        train, held, client_seed = task
        estimator = model.fitted(X[train], y[train], _of(weights, train), client_seed)
        return model.outputs_of(estimator, X[held])

    for (_, held, _), values in zip(tasks, at_once(predict, tasks, n_jobs), strict=True):
        out[held] = values
    return out


def _by_client(X, y, codes, weights):
    """Positions, features, targets and weights of each client's rows, in a canonical order."""
    order = order_of_rows(codes, X, y, weights)
    if weights is not None:
        order = order[weights[order] > 0]
    return {
        int(i): (index := order[own], X[index], y[index], _of(weights, index))
        for i, own in rows_by_label(codes[order])
    }


def _of(weights, index):
    return np.ones(len(index)) if weights is None else weights[index]
