"""Second-order expansions of the clients' objectives, with which a server goes on for a while.

Between two checks a solver asks the clients for proximal points or local steps.  A search of many
fits takes those of the expansions about the models of the last check,

    f_i(w) ~ f_i(w_i) + <g_i, w - w_i> + <w - w_i, H_i (w - w_i)> / 2,

and asks no client.  Checks are of the true objectives, and renew the expansions; where these do
not foresee the gradients, the clients are asked again.
"""

from __future__ import annotations

import numpy as np

from ..calls.curvatures import Hessians, shows_rows
from ..calls.first_order import ObjectivesGradients
from ..federation.replicas import MAX_NUMBERS
from ..numerics.matrices import product
from ..numerics.newton import MAX_DENSE

# Error of the gradients that expansions foresee, over the change of the gradients, beyond which
# they are left. Benchmark: benchmarks/fits.py --only exchanges.
MOST_ERROR = 1.0
# The same error below which it does not matter, in units of the models' gradients.
NO_ERROR = 1e-3


def can_expand(pool):
    """Whether the clients' Hessians may be asked for, and are worth an exchange.

    Parameters
    ----------
    pool : ClientPool
        The clients.

    Returns
    -------
    expands : bool
        False if a Hessian would show a client's rows, for replicas, and for curvature without a
        bound.
    """
    n, p = pool.n_clients, pool.n_params
    small = p <= MAX_DENSE and n * p**2 <= MAX_NUMBERS
    if not (small and pool.ledger.counts and pool.can_answer("hessians")):
        return False
    if not pool.model.bounded_curvature or pool.presence.faulty:
        return False
    return not shows_rows(pool, np.arange(n), n).any()


def questions(W):
    """What is asked for expansions about models `W` (n_clients, n_params)."""
    n = len(W)
    return (
        lambda pool: pool.ask(ObjectivesGradients, W, dtype=np.float64),
        lambda pool: pool.ask(Hessians, W, np.arange(n), np.ones(n)),
    )


class Expansions:
    """Expansions of all clients' objectives.

    Parameters
    ----------
    W : ndarray of shape (n_clients, n_params)
        Models about which they are.
    first : tuple
        Values and gradients there.
    H : ndarray of shape (n_clients, n_params, n_params)
        Hessians there.
    """

    def __init__(self, W, first, H):
        self.W, (self.values, self.gradients), self.H = W.copy(), first, H
        self.solver = None

    def slopes(self, W):
        """Gradients at other models."""
        return self.gradients + product(self.H, W - self.W)

    def foresees(self, W, gradients):
        """Whether the gradients at other models are about those that clients have answered."""
        error = np.linalg.norm(self.slopes(W) - gradients)
        change = np.linalg.norm(gradients - self.gradients)
        return error <= max(MOST_ERROR * change, NO_ERROR * np.linalg.norm(gradients))

    def prox(self, v, rho):
        """Proximal points, as :class:`~skcfl.calls.curvatures.Prox`, of one strength `rho`."""
        if self.solver is None or self.solver[0] != rho:
            A = self.H + rho * np.eye(self.H.shape[1])
            self.solver = rho, np.linalg.inv(A)
        inverse = self.solver[1]
        right = self.gradients + rho * (self.W - v)
        return self.W - product(inverse, right)

    def drawn_together(self, pull, some):
        """Models of some clients, drawn to their own mean by `pull`, that of least objective.

        Parameters
        ----------
        pull : float
            Weight of half the squared distances from the mean.
        some : ndarray of shape (n_clients,) of bool
            The clients; the others get the mean.
        """
        H, p = self.H[some], self.H.shape[1]
        inverse = np.linalg.inv(H + pull * np.eye(p))
        level = product(H, self.W[some]) - self.gradients[some]
        away = product(inverse, level)
        # The mean of (H + c I)^-1 (level + c mean) is the mean.
        mean = np.linalg.lstsq(np.matmul(inverse, H).mean(axis=0), away.mean(axis=0), rcond=None)[
            0
        ]
        W = np.tile(mean, (len(self.W), 1))
        W[some] = away + pull * inverse @ mean
        return W

    def steps(self, W, number, rates, centre, rho):
        """Models after gradient steps with a pull, as those of LocalUpdate."""
        shrink = -rates[:, None, None] * (self.H + rho * np.eye(self.H.shape[1]))
        shift = rates[:, None] * (self.slopes(np.zeros_like(W)) - rho * centre)
        for _ in range(number):
            W = W + product(shrink, W) - shift
        return W
