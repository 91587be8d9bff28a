"""Classes without rows at a client or in a cluster: their intercepts have no minimum.

Under the log loss they go to minus infinity, and a new row of such a class would cost what
rounding says. Instead it has half a row, and so have the m other classes beside their n rows
(Krichevsky and Trofimov, 1981): the mean of its odds against them is ``1 / (2 n + m)``. It has no
slopes.  Counts that are all zero have half a row of the mean of all clients: their mean is that
over ``2 n + 1``.
"""

import numpy as np

from .losses.log_loss import Logistic, Multinomial
from .losses.poisson import Poisson

# Shares of a class that are rounding.
ROUNDING = 1e-11
# How far below the largest intercept those of absent classes are while their odds are measured.
FAR = 15.0


class AbsentClassesMixin:
    """The part of the linear model that gives absent classes half a row."""

    @property
    def _may_lack_minimum(self):
        """Whether intercepts have no minimum where classes or events are absent."""
        decay = self.decay[: self.n_columns]
        return (
            # Other losses may have a minimum there.
            type(self.kernel) in (Logistic, Multinomial, Poisson)
            and self.fit_intercept
            and bool(decay[-1] == 0.0 and (decay[:-1] > 0.0).all())
        )

    def absent_classes(self, gradient):
        """Which classes clusters lack, by gradients at the origin; see the convex model's."""
        if not self._may_lack_minimum:
            return None
        slopes, origin = self._intercepts(gradient), self._intercepts(self.origin[None])
        if isinstance(self.kernel, Poisson):
            events = 1.0 - slopes / np.exp(origin)
            return np.hstack([np.zeros_like(events, dtype=bool), events < ROUNDING])
        if self.n_outputs == 1:
            slopes = np.hstack([-slopes, slopes])
        return self.kernel.proba(origin) - slopes < ROUNDING

    def with_half_rows(self, x, absent, totals, gradient_at):
        """Minimisers of clusters (K, p) where absent classes (K, C) have half a row.

        `totals` are the clusters' weights (K,), and ``gradient_at(x)`` gradients of mean losses.
        """
        if self.n_outputs == 1:
            return self._with_constants(x, absent, totals)
        far = self._intercepts(x).max(axis=1) - FAR
        odds = self._intercepts(gradient_at(self._with_intercepts(x, absent, far)))
        odds = np.where(absent, odds, 0.0).max(axis=1)
        # Rows of next to no weight, or scores beyond exp, leave nothing to measure.
        absent = absent & (odds > 0)[:, None]
        return self._with_intercepts(x, absent, far - _log(totals, absent, odds))

    def _settled(self, block, x, totals):
        if not self._may_lack_minimum:
            return x
        there = block.weights > 0
        if isinstance(self.kernel, Poisson):
            rows = np.stack([there, there & (block.y[:, 0] > 0)], axis=1)
        else:
            classes = np.arange(max(self.n_outputs, 2))[:, None]
            rows = (self.classes_of(block)[:, None] == classes) & there[:, None]
        absent = ~rows.any(axis=2) & there.any(axis=1)[:, None]
        if not absent.any():
            return x
        if self.n_outputs == 1:
            return self._with_constants(x, absent, totals)
        z = np.where(absent[:, :, None], -np.inf, self.state(block, x))
        others = np.where(there, np.logaddexp.reduce(z, axis=1), np.inf)
        least = np.where(there.any(axis=1), others.min(axis=1), 0.0)
        odds = np.where(there, block.weights * np.exp(least[:, None] - others), 0.0).sum(axis=1)
        return self._with_intercepts(x, absent, least - _log(totals, absent, odds))

    def _with_constants(self, x, absent, totals):
        """Models (m, p) of one output: constant where a class or all events are absent."""
        return self._with_intercepts(x, absent, -_log(totals, absent, np.exp(-self._constant)))

    def _intercepts(self, models):
        """Intercepts (m, C) of models, or their gradients."""
        return models.reshape(len(models), self.n_outputs, -1)[:, :, -1]

    def _with_intercepts(self, x, absent, log_odds):
        """Models (m, p), absent classes without slopes and with log-odds (m,) against others."""
        some, C = absent.any(axis=1), self.n_outputs
        made = x.reshape(len(x), C, -1).copy()
        if C == 1:
            made[some] = 0.0
            made[some, 0, -1] = np.where(absent[:, 1], log_odds, -log_odds)[some]
        else:
            made[absent] = 0.0
            made[:, :, -1][absent] = np.repeat(log_odds, absent.sum(axis=1))
            made[some] -= made[some].mean(axis=1, keepdims=True)
        return made.reshape(x.shape)


def _log(totals, absent, odds):
    """Logarithms of what odds are divided by, where classes are absent."""
    return np.log(np.where(absent.any(axis=1), (2.0 * totals + (~absent).sum(axis=1)) * odds, 1.0))
