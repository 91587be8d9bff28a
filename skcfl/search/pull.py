"""Choice of the strength of the pull by rows held out inside the clients."""

import numpy as np

from .._progress import loop, quiet
from ..calls.first_order import OwnLosses
from ..federation.presence import comparing
from ..numerics.quantiles import weighted_median
from .judges import MOST_LOSS, comparable

__all__ = ["choose_pull", "pull_grid"]

# Folds of all rows, as for the number of clusters; of models that are trained one of them judges
# strengths that are fixed, because training is dear and has no known curvature.
FOLDS, TRAINED_FOLDS = 4, 1
TRAINED = 1.0, 0.3, 0.1, 0.03, 0.01


def pull_grid(pool, count=11, ends=(1e-3, 1e2), robust=False):
    """Strengths from strong to weak in units of the clients' mean curvature, inf and 0.

    Models that are trained have some that are fixed.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    count : int, default=11
        Number of strengths between.
    ends : tuple of float, default=(1e-3, 1e2)
        The weakest and the strongest of these.
    robust : bool, default=False
        Whether some clients may be false: the unit is then the median curvature.

    Returns
    -------
    lams : ndarray of shape (count + 2,)
        Descending, from inf to 0.
    """
    if not pool.can_answer("spectrum"):
        return np.array([np.inf, *TRAINED, 0.0])
    _, _, mean = pool.spectrum()
    counted = ~pool.without_rows
    weights = np.where(counted, pool.client_weights, 0.0)
    unit = float(weighted_median(mean, weights) if robust else weights @ mean / weights.sum())
    return np.concatenate([[np.inf], unit * np.geomspace(*ends[::-1], count), [0.0]])


def choose_pull(pool, lams, fit, robust=False, name="lam"):
    """Strength of least held-out loss, of equal ones the first; the last above 0 for one client.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    lams : ndarray
        Strengths, from near the shared model to far from it: descending, or numbers of steps.
    fit : callable
        ``fit(pool, lams)`` yields the clients' models (n_clients, n_params) under each.
    robust : bool, default=False
        Whether some clients may be false: no client's loss then counts for more than some times
        the median of the least losses.
    name : str, default="lam"
        What is chosen.

    Returns
    -------
    lam : float
        The choice.
    search : dict
        "lam_search", under this name, what was tried, if anything was.
    """
    if pool.n_clients - pool.without_rows.sum() <= 1:
        return float(lams[lams > 0][-1]), {}  # a single client is its own shared model
    n_folds = FOLDS if pool.can_answer("spectrum") else TRAINED_FOLDS
    total, rows = np.zeros((len(lams), n_folds, pool.n_clients)), []
    progress = loop("fold", n_folds, f"search of {name}, folds", sure=True)
    with comparing(pool), progress as folds:
        dealt = pool.deal_folds(FOLDS, pool.random_state, n_folds)
        for fold, (train, held) in enumerate(dealt):
            weights = held.client_weights
            rows.append(weights)
            with quiet():
                for k, models in enumerate(fit(train, lams)):
                    losses = weights * held.ask(OwnLosses, models)
                    total[k, fold] = np.where(weights > 0, losses, 0.0)
            folds.tell()
    some, weights = comparable(total.reshape(len(lams), -1), np.concatenate(rows))
    total, rows = (
        each.reshape(-1, n_folds, pool.n_clients).sum(axis=1) for each in (some, weights)
    )
    rows = rows[0]
    if robust and rows.any():
        with np.errstate(invalid="ignore"):
            means = np.where(rows > 0, np.nan_to_num(total / rows, nan=np.inf), np.inf)
        most = MOST_LOSS * np.median(means.min(axis=0)[rows > 0])
        total = rows * np.where(rows > 0, np.minimum(means, most), 0.0)
    total = total.sum(axis=1)
    losses = np.where(np.isfinite(total), total, np.inf) / max(rows.sum(), 1e-300)
    search = {name: lams, "held_out_loss": losses}
    return float(lams[int(losses.argmin())]), {f"{name}_search": search}
