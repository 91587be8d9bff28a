r"""Models of the clients' own that are pulled to a shared one: Ditto and pFedMe.

    v_i(w) = argmin_v f_i(v) + lam / 2 |v - w|^2

Ditto (Li et al., 2021, Algorithm 1) takes the w of federated averaging.  pFedMe (Dinh et al.,
2020, Algorithm 1) takes the w that minimises the mean of the Moreau envelopes
``min_v f_i(v) + lam / 2 |v - w|^2``, whose gradients are ``lam (w - v_i(w))``:

    w_i <- w_i - eta lam (w_i - v_i(w_i))      R times, from w
    w   <- (1 - beta) w + beta mean of w_i

With ``R = 1`` and ``eta = 1 / lam`` it ends where w is the mean of the v_i(w).

============  ==========================  ====================
paper         here                        parameter
============  ==========================  ====================
lam           ``lam``                     ``lam``
theta_i, v_i  ``params``
eta           ``move``                    ``outer_step``
beta          ``beta``                    ``beta``
K             ``steps``                   ``prox_steps``
R             ``n_moves``                 ``local_rounds``
============  ==========================  ====================
"""

import numpy as np

from ..rounds.exchange import weighted_mean
from ..rounds.update import client_curvatures
from .shared_rounds import SharedUpdate

__all__ = ["MoreauAverage", "proximal_models", "train_towards"]


def proximal_models(pool, centers, lam, kept=True):
    """Exact models of the clients' own, pulled to centres.

    Parameters
    ----------
    pool : ClientPool
        The federation, of models with second derivatives.
    centers : ndarray of shape (n_clients, n_params)
        Models that the clients have.
    lam : float
        Strength of the pull, in [0, inf]: the clients' own minimisers, or their centres.
    kept : bool, default=True
        Whether the clients have the centres already.

    Returns
    -------
    params : ndarray of shape (n_clients, n_params)
    """
    if np.isinf(lam):
        return np.array(centers, dtype=float)
    if lam == 0.0:
        return pool.solve()[0]
    return pool.prox(np.asarray(centers, dtype=float), lam, kept=kept)


def train_towards(pool, centers, lam, options, steps):
    """Models trained from centres for some steps, pulled back to them, (n_clients, n_params)."""
    if np.isinf(lam):
        return centers
    return pool.local_update(
        centers,
        steps,
        pulled_rates(pool, options, lam),
        options.optimizer,
        options.batch_size,
        center=centers,
        rho=lam,
        judged=True,
        whole=True,
    )


def pulled_rates(pool, options, lam):
    """Steps of training under a pull: given, or one over the curvature."""
    if options.step_size is not None:
        return options.step_size
    return 1.0 / (client_curvatures(pool) + lam)


class MoreauAverage(SharedUpdate):
    """Round of pFedMe.

    Parameters
    ----------
    lam : float
        Strength of the pull.
    beta : float
        How far the shared model moves to the mean of the clients'.
    move : float
        Rate of a client's moves along the gradient of its envelope.
    n_moves : int
        Number of moves in a round.
    options : Options or None
        How networks train; None where proximal points are exact.
    steps : int, default=5
        Steps of training towards a proximal point.
    average, accelerate
        As for :class:`~skcfl.personal.shared_rounds.SharedUpdate`.
    """

    def __init__(
        self, lam, beta, move, n_moves, options=None, steps=5, average=None, accelerate=False
    ):
        super().__init__(average, accelerate)
        self.lam, self.beta, self.move, self.n_moves = lam, beta, move, n_moves
        self.options, self.steps = options, steps
        #: Last proximal point of each client, from which the next is looked for.
        self.nearest = None

    def ask(self, answers, state):
        """Models of the participants after their moves, and their objectives."""
        pool, w = answers.who.pool, state.theta[answers.choice]
        if self.options is None:
            return self._exact(answers, state, w)
        answers.heard(pool, values=pool.objectives(w))
        pool = answers.who.pool
        return answers.heard(
            pool, models=self.train(pool, state.theta[answers.choice], self.options, judged=True)
        )

    def _exact(self, answers, state, w):
        pool = answers.who.pool
        center = np.array(w, dtype=float)
        nearest = None if self.nearest is None else self.nearest[answers.who.index]
        for k in range(self.n_moves):
            nearest = pool.prox(center, self.lam, x0=nearest, kept=k > 0)
            center -= self.move * self.lam * (center - nearest)
        if self.nearest is None:
            self.nearest = np.tile(w[:1].astype(float), (len(state.labels), 1))
        self.nearest[answers.who.index] = nearest
        answers.heard(pool, models=center.astype(w.dtype))
        pool = answers.who.pool
        nearest = self.nearest[answers.who.index]
        return answers.heard(pool, values=pool.objectives(nearest, kept=True))

    def train(self, pool, w, options, personal=False, judged=False):
        """Clients' centres, or with `personal` their proximal points, by training."""
        return pool.moreau_update(
            w,
            self.steps,
            pulled_rates(pool, options, self.lam),
            self.lam,
            self.move,
            self.n_moves,
            options.optimizer,
            options.batch_size,
            personal=personal,
            judged=judged,
            whole=personal,
        )

    def __call__(self, answers, state):
        """New shared model."""
        w = state.theta[answers.choice]
        models = w + self.beta * (answers.models - w)
        return self.mean(answers, state, models, self._envelope(answers, w))

    def _envelope(self, answers, w):
        """Mean of the participants' envelopes at the shared model, None of networks."""
        if self.options is not None:
            return None
        away = w - self.nearest[answers.who.index]
        values = answers.values + 0.5 * self.lam * np.einsum("np,np->n", away, away)
        return weighted_mean(values, self.weights(answers.who))
