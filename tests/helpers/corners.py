"""Rows with a step where two features change their signs, and boosters of them, for every loss."""

import numpy as np

from skcfl import PartialPoolingClassifier, PartialPoolingRegressor
from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel
from skcfl.pooling.boosting import Booster
from skcfl.pooling.em import Options

#: Loss, and number of classes, of each kind of targets.
KINDS = {
    "numbers": ("squared_error", None),
    "classes": ("log_loss", 2),
    "three classes": ("log_loss", 3),
    "counts": ("poisson", None),
    "amounts": ("gamma", None),
}


def corners(kind="numbers", n_clients=12, n=25, seed=0):
    """Numbers have slopes and intercepts of the clients, all else intercepts."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_clients), n)
    X = rng.normal(size=(len(groups), 3))
    step = np.where(X[:, 0] * X[:, 1] > 0, 1.5, -1.5)
    if kind == "numbers":
        slopes, intercepts = 1.0 + 0.6 * rng.normal(size=n_clients), rng.normal(size=n_clients)
        y = step + slopes[groups] * X[:, 2]
        return X, y + 0.2 * rng.normal(size=len(y)) + intercepts[groups], groups
    raw = step + X[:, 2] + rng.normal(size=n_clients)[groups]
    if kind == "classes":
        return X, (raw + rng.logistic(size=len(raw)) > 0).astype(int), groups
    if kind == "three classes":
        return X, np.digitize(raw + rng.logistic(size=len(raw)), [-1.0, 1.0]), groups
    mean = np.exp(raw / 2)
    return X, (rng.poisson(mean) if kind == "counts" else rng.gamma(3.0, mean / 3)), groups


def estimator(kind, **options):
    loss, n_classes = KINDS[kind]
    if n_classes:
        return PartialPoolingClassifier(**options)
    return PartialPoolingRegressor(loss=loss, **options)


def booster(kind, rows, basis):
    """A booster of rows in this process, the bins of the rows and their targets' model."""
    (loss, n_classes), (X, y, groups) = KINDS[kind], rows
    model = LinearModel(loss, alpha=0.0, standardize=False).bind(X.shape[1], n_classes)
    pool = open_rows(model, X, y, groups, groups.max() + 1)
    free = np.tile(np.arange(X.shape[1] + 1) == X.shape[1], model.n_outputs)
    noise = model.describe_loss().dispersion_of if kind == "numbers" else None
    options = Options(20, 1e-4, "auto", free, np.ones(len(free), dtype=bool), noise)
    shares = np.arange(1, basis.max_bins) / basis.max_bins
    cuts = np.quantile(X, shares, axis=0, method="averaged_inverted_cdf").T + 1e-9
    bins = np.column_stack([np.searchsorted(c, x) for c, x in zip(cuts, X.T, strict=True)])
    return Booster(pool, np.ascontiguousarray(cuts), basis, options), bins
