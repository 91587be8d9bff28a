"""Maximum likelihood of generalised linear mixed models with crossed and nested groupings.

Laplace's approximation, as lme4's ``glmer`` has it with ``nAGQ=1``: of the variances and the
coefficients x,

    2 P + sum_i log det(A_i) + log det(I + Lambda S_ww Lambda),

P the least penalised sum of the losses over the effects, is minimised by L-BFGS with its exact
gradient. A value takes some exchanges: each client finds the modes of its effects, the server
those of the crossed levels by Newton steps from sums over the clients. A gradient takes two
exchanges more. See ``skcfl.models._level_modes``.
"""

import numpy as np

from ..calls.level_modes_asked import LevelLeverages, LevelModes, LevelModeSlopes
from .crossed import Deviance, fitted

# Largest entry of the gradient that ends the search.
SLOPE = 1e-5
# Newton steps of the server to a mode, and halvings of one.
MOST_STEPS, MOST_HALVINGS = 100, 40
# Squared Newton decrement of the last step: its error is squared.
LAST_STEP = 1e-11


class LaplaceDeviance(Deviance):
    """Twice Laplace's minus log-likelihood of variances and coefficients, and its gradient."""

    slope = SLOPE

    def __init__(self, pool, kind, varying, free, shrunken, shared=None):
        super().__init__(pool, kind, varying, free, shrunken, shared)
        #: Effects in units of their standard deviations, and coefficients in those of the search,
        #: where they were last.
        self.u = np.zeros(self.size)

    def start(self):
        """Start of the search: coefficients at their modes given variances."""
        x = super().start()
        self._to_mode(x, np.arange(self.size))
        return np.concatenate([x, self.u[self.outer]])

    def _to_mode(self, x, moving):
        """Newton steps of some of the effects to their modes; last answer, value, scale."""
        root, spreads, sizes = self.parts(x)
        scale = self.scale(sizes)
        penalised = np.isin(np.arange(self.size), self.inner)
        last = False

        def ask(u):
            found = self.pool.ask(LevelModes, root, spreads, self.effects(scale, u))
            return found, found[2] + 0.5 * float(u[penalised] @ u[penalised])

        found, value = ask(self.u)
        for _ in range(MOST_STEPS):
            if last or not len(moving):
                break
            S, slopes = self.in_units(scale, found[0], found[1])
            g = (slopes + penalised * self.u)[moving]
            H = S[np.ix_(moving, moving)]
            H[np.diag_indices_from(H)] += penalised[moving]
            step = -np.linalg.lstsq(H, g, rcond=1e-13)[0]
            size = -float(g @ step)
            last = size <= LAST_STEP * (1.0 + abs(value))
            for _ in range(MOST_HALVINGS):
                u = self.u.copy()
                u[moving] += step
                new, at = ask(u)
                if at <= value + 1e-12 * abs(value):
                    break
                step = 0.5 * step
            else:
                break
            self.u, found, value = u, new, at
        return found, value, scale

    def solved(self, x):
        """Value, Hessian of P, products, slopes, scale, weight at variances and coefficients."""
        self.u[self.outer] = x[len(x) - len(self.outer) :]
        (S, slopes, _, log_det, weight), value, scale = self._to_mode(x, self.inner)
        A, _ = self.in_units(scale, S, slopes)
        A[self.inner, self.inner] += 1.0
        log_det = log_det + float(np.linalg.slogdet(A[np.ix_(self.inner, self.inner)])[1])
        return 2.0 * value + log_det, A, S, slopes, scale, weight

    def outcome(self, x):
        """See :meth:`Deviance.outcome`; the dispersion is 1."""
        value, A, _, _, scale, weight = self.solved(x)
        return value, self.effects(scale, self.u), self.errors(scale, A), 1.0, weight

    def __call__(self, x):
        """Value and gradient."""
        value, A, S, slopes, scale, _ = self.solved(x)
        root, spreads, _ = self.parts(x)
        inner = np.ix_(self.inner, self.inner)
        within, errors = np.linalg.inv(A[inner]), np.zeros((self.size, self.size))
        errors[inner] = within
        errors *= scale[:, None] * scale
        effects = self.effects(scale, self.u)
        about = root, spreads, effects, errors
        pull = self.pool.ask(LevelLeverages, *about)
        found = self.pool.ask(LevelModeSlopes, *about, errors @ pull)
        total, covariance, variances = found
        q = within @ (scale * pull)[self.inner]
        across = S[inner] * scale[self.inner]
        each = 2.0 * np.einsum("ij,ji->i", across, within)
        each += total[self.inner] * self.u[self.inner] - slopes[self.inner] * q
        in_root = self.of_variables(covariance)
        sizes = np.concatenate([variances, np.bincount(self.owner, each, len(self.blocks))])
        sizes /= self.units
        sizes *= np.copysign(1.0, x[len(in_root) : self.n_sizes])
        self.trail.append(-0.5 * value)
        return value, np.concatenate([in_root, sizes, self.away.T @ total[self.outer]])


def fit_modes(pool, kind, varying, free, prior, max_iter, shared=None):
    """Fit of greatest likelihood by Laplace's approximation; see ``crossed.fit_crossed``."""
    deviance = LaplaceDeviance(pool, kind, varying, free, prior == "auto", shared)
    return fitted(deviance, max_iter)
