"""Rows of clients in order, for linear models of every loss and locations, and pools of them."""

import numpy as np
from loss_objects import loss_of

from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel, Location
from skcfl.models.losses import CLASSIFICATION_LOSSES

#: No row, one row, fewer rows than features, more.
SIZES = [1, 2, 0, 4, 9, 40, 3]
DELTA = 0.9
#: Losses of linear models, those of several classes with their number.
EVERY_LOSS = ["squared_error", "huber", "poisson", "log_loss", "log_loss-3", "squared_hinge-3"]
EVERY_LOSS += ["gamma", "tweedie", "quantile"]


class ClientRows:
    """Rows, targets and weights drawn for a loss, "location_huber" among them, and its model."""

    def __init__(self, loss, seed=0, sizes=SIZES, d=5, alpha=1e-2, units=1.0, **options):
        rng = self.rng = np.random.default_rng(seed)
        name, _, classes = loss.partition("-")
        self.C, self.m, self.d, self.alpha = int(classes or 2), len(sizes), d, alpha
        self.codes = np.repeat(np.arange(self.m), sizes)
        n = len(self.codes)
        self.X = rng.normal(size=(n, d))
        z = self.X @ rng.normal(size=d) / np.sqrt(d) + rng.normal(size=n)
        self.classifier = name in CLASSIFICATION_LOSSES
        if self.classifier:
            self.y = rng.integers(self.C, size=n)
        elif name == "poisson":
            self.y = rng.poisson(np.exp(z)).astype(float)
        elif name in ("gamma", "tweedie"):
            some = rng.poisson(1.0, size=n) if name == "tweedie" else 1.0
            self.y = some * rng.gamma(2.0, np.exp(z))
        else:
            self.y = 3 * z
        self.X = self.X * units
        self.weights = rng.integers(1, 4, size=n).astype(float)
        if name.startswith("location_"):
            self.y = None
            self.model = Location(loss=name.removeprefix("location_"), delta=DELTA)
        else:
            loss = loss_of(name, delta=DELTA, power=1.4, quantile=0.3, smoothing=0.7)
            self.model = LinearModel(loss=loss, alpha=alpha, **options)

    def bind(self, dtype=float):
        return self.model.bind(self.d, self.C if self.classifier else None, dtype)

    def pool(self, form=np.asarray, dtype=float, **options):
        rows = form(self.X.astype(dtype)), self.y, self.codes, self.m
        options.setdefault("sample_weight", self.weights)
        return open_rows(self.bind(dtype), *rows, **options)

    def scatter(self, share):
        """Rows in a random order, some of whose features are zero."""
        self.codes = self.rng.permutation(self.codes)
        self.X = self.X * (self.rng.uniform(size=self.X.shape) < share)

    def of(self, i):
        mine = self.codes == i
        return self.X[mine], None if self.y is None else self.y[mine], self.weights[mine]

    def has_minimum(self, pool, clients):
        """Whether the pooled objective of some clients has one: a free intercept needs rows of
        every class, and of counts an event."""
        mine = np.isin(self.codes, clients) & (self.weights > 0)
        if self.y is None or not mine.any() or not pool.model._may_lack_minimum:
            return True
        y = self.y[mine]
        return len(np.unique(y)) == self.C if self.classifier else (y > 0).any()

    def centres(self, pool, scale=1.0):
        return self.rng.normal(scale=scale, size=(self.m, pool.n_params))


def assert_slopes(function, w, gradients, h=1e-6, tol=1e-7):
    """Gradients (m, p) lie between the one-sided differences of ``function(w)`` (m,).

    These agree but for the curvature and for a kink of relu that the step has crossed.
    """
    value = function(w)
    for j, e in enumerate(h * np.eye(w.shape[1])):
        sides = (function(w + e) - value) / h, (value - function(w - e)) / h
        room = tol * (1.0 + np.abs(sides[0]) + np.abs(value))
        assert (gradients[:, j] >= np.minimum(*sides) - room).all(), j
        assert (gradients[:, j] <= np.maximum(*sides) + room).all(), j
