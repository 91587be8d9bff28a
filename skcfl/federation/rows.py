"""Rows as one place holds them, before there is a model."""

from functools import partial

import numpy as np

from .draws import mixed
from .inprocess import InProcessSite
from .scaling import Moments


class Rows:
    """Checked rows of some clients.

    Parameters
    ----------
    X : {ndarray, CSR matrix} of shape (n_rows, n_features)
        Features.
    y : ndarray of shape (n_rows,) or None
        Targets, codes of classes.
    codes : ndarray of shape (n_rows,)
        Position of each row's client among `places`.
    sample_weight : ndarray of shape (n_rows,) or None
        Weights of the rows.
    places : ndarray of shape (n_clients,)
        Positions of the clients in the whole federation.
    n_jobs : int or None, default=None
        Threads of a computation.
    wrap : callable, default=None
        What becomes of a site: some clients of it may not answer.
    """

    def __init__(self, X, y, codes, sample_weight, places, n_jobs=None, wrap=None):
        self.X, self.y, self.codes, self.sample_weight = X, y, codes, sample_weight
        self.places, self.n_jobs, self.wrap = np.asarray(places), n_jobs, wrap

    def class_totals(self, n_classes):
        """Total weight of the rows of each class."""
        return np.bincount(self.y, self.sample_weight, n_classes)

    def weigh_classes(self, factors):
        """Multiply the rows' weights by those of their classes."""
        weights = np.ones(len(self.y)) if self.sample_weight is None else self.sample_weight
        self.sample_weight = weights * factors[self.y]

    def moments(self):
        """What is told of the rows to scale the features."""
        return Moments(self.X, self.sample_weight)

    def target_moments(self):
        """What is told of the targets to find their standard deviation."""
        return Moments(self.y[:, None], self.sample_weight)

    def scale(self, scaling):
        """Take the features in the units of a scaling."""
        self.X = scaling.transform(self.X)

    def site(self, model, index=slice(None)):
        """Site of the rows at `index`, under a model; all clients are there."""
        X, y, codes, weights = self.take(index)
        site = InProcessSite(
            model,
            X,
            y,
            codes,
            len(self.places),
            sample_weight=weights,
            n_jobs=self.n_jobs,
            places=self.places,
        )
        return site if self.wrap is None else self.wrap(site)

    def take(self, index):
        """X, y, codes and weights of some rows."""
        some = partial(_some, index=index)
        return some(self.X), some(self.y), self.codes[index], some(self.sample_weight)

    @property
    def n_testable(self):
        """Number of rows that can be held out: not the only one of a client."""
        sizes = np.bincount(self.codes, minlength=1)
        return int(sizes[sizes > 1].sum())

    @property
    def is_discrete(self):
        """Whether the targets are classes or counts."""
        y = self.y
        return y is not None and (y.dtype.kind != "f" or bool((y == np.floor(y)).all()))

    def deal(self, n_folds, seed, by_class):
        """Fold in which each row is held out, -1 for the only row of a client.

        Rows are dealt as by :class:`~skcfl.model_selection.ClientKFold`: those of a client evenly,
        and those of each of its classes.
        """
        sizes = np.bincount(self.codes, minlength=len(self.places))
        start = np.concatenate([[0], np.cumsum(sizes)])
        own = np.lexsort((np.arange(len(self.codes)), self.codes))
        number = np.empty(len(own), dtype=np.intp)
        number[own] = np.arange(len(own)) - start[self.codes[own]]
        key = mixed(seed, self.places[self.codes], number)
        order = np.lexsort((key, self.y, self.codes) if by_class else (key, self.codes))
        rank = np.empty(len(order), dtype=np.intp)
        rank[order] = np.arange(len(order)) - start[self.codes[order]]
        first = (mixed(seed, self.places) % np.uint64(n_folds)).astype(np.intp)
        fold = (rank + first[self.codes]) % n_folds
        fold[(sizes == 1)[self.codes]] = -1
        return fold


def _some(part, index):
    return None if part is None else part[index]
