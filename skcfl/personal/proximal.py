r"""Models of the clients' own that are pulled to a shared one: Ditto and pFedMe.

    v_i(w) = argmin_v f_i(v) + lam / 2 |v - w|^2

Ditto (Li et al., 2021, Algorithm 1) takes the w of federated averaging.  pFedMe (Dinh et al.,
2020, Algorithm 1) takes the w that minimises the mean of the Moreau envelopes ``min_v f_i(v) + lam
/ 2 |v - w|^2``, with gradients ``lam (w - v_i(w))``:

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
K             ``steps``                   ``local_steps``
R             ``n_moves``                 ``local_rounds``
============  ==========================  ====================
"""

import numpy as np

from ..calls.curvatures import Prox, Solve
from ..calls.first_order import LocalUpdate, Objectives
from ..calls.summed import ClusterValues, MoreauMoves, ProximalMoves
from ..rounds.model_kinds import MINIMISED, TRAINED, kind_of
from ..rounds.state import weighted_mean
from .shared_rounds import SharedUpdate

__all__ = ["MoreauAverage", "TrainedMoreauAverage", "proximal_models", "pulled_models"]

# Moves of a network's centre in a round.
NETWORK_MOVES = 2


def proximal_models(pool, centers, lam, kept=True):
    """Exact models of the clients, pulled to centres.

    Parameters
    ----------
    pool : ClientPool
        The federation, of models with second derivatives.
    centers : ndarray of shape (n_clients, n_params)
        Models that the clients have.
    lam : float
        Strength of the pull, in [0, inf]: the clients' own minimisers, or their centres.
    kept : bool, default=True
        True if the clients have the centres already.

    Returns
    -------
    params : ndarray of shape (n_clients, n_params)
    """
    if np.isinf(lam):
        return np.array(centers, dtype=float)
    if lam == 0.0:
        return pool.ask(Solve)[0]
    return pool.ask(Prox, np.asarray(centers, dtype=float), lam, known=kept)


def pulled_models(pool, centers, lam, options, kept=True):
    """Models of the clients' own, pulled to centres, (n_clients, n_params).

    Networks are trained from the centres for as long as a fit, and sent once.
    """
    if kind_of(pool).exact:
        return proximal_models(pool, centers, lam, kept)
    if np.isinf(lam):
        return centers
    return pool.ask(
        LocalUpdate,
        centers,
        options.local_steps * options.max_iter,
        options.step_size,
        options.optimizer,
        options.batch_size,
        center=centers,
        rho=lam,
        known=True,
        last=True,
        whole=True,
    )


class MoreauAverage(SharedUpdate):
    """Round of pFedMe with exact proximal points.

    Parameters
    ----------
    lam : float
        Strength of the pull.
    beta : float
        How far the shared model moves to the mean of the clients'.
    move : float
        Rate of a client's moves along the gradient of its envelope.
    n_moves : "auto" or int
        Number of moves in a round.
    options : Options
        How to run, and how networks train.
    steps : int, default=5
        Steps of training towards a proximal point, of networks.
    average : Average, default=None
        As for :class:`~skcfl.personal.shared_rounds.SharedUpdate`.
    """

    moves = 1
    #: True if rounds have a fixed point that they may be accelerated to.
    settles = True

    def __init__(self, lam, beta, move, n_moves, options, steps=5, average=None):
        all_take_part = options.participation == 1.0
        super().__init__(average, self.settles and all_take_part and options.tol > 0)
        self.lam, self.beta, self.move = lam, beta, move
        self.n_moves = self.moves if n_moves == "auto" else int(n_moves)
        self.options, self.steps = options, steps
        #: Last proximal point of each client, from which the next is looked for, unless the
        #: clients keep it, and the participants' squared distances from the shared model.
        self.nearest = self.away = None

    def ask(self, answers, state):
        """Models of the participants after their moves, and their objectives."""
        if not self.single:
            pool = answers.who.pool
            how = self.lam, self.move, self.n_moves, answers.who.weights
            about = state.theta, answers.choice
            answers.sums, values, self.away = pool.ask(ProximalMoves, *about, *how)
            self.away = self.away if pool.answered is None else self.away[pool.answered]
            return answers.heard(pool, values=values)
        pool, w = answers.who.pool, state.theta[answers.choice]
        center = np.array(w, dtype=float)
        nearest = None if self.nearest is None else self.nearest[answers.who.index]
        for k in range(self.n_moves):
            nearest = pool.ask(Prox, center, self.lam, x0=nearest, known=k > 0)
            center -= self.move * self.lam * (center - nearest)
        if self.nearest is None:
            self.nearest = np.tile(w[:1].astype(float), (len(state.labels), 1))
        self.nearest[answers.who.index] = nearest
        answers.heard(pool, models=center.astype(w.dtype))
        pool = answers.who.pool
        nearest = self.nearest[answers.who.index]
        return answers.heard(pool, values=pool.ask(Objectives, nearest, last=True))

    def __call__(self, answers, state):
        """New shared model."""
        if not self.single:
            answers.sums = self.beta * answers.sums
            return self.mean(answers, state, None, self._envelope(answers, state))
        w = state.theta[answers.choice]
        models = w + self.beta * (answers.models - w)
        return self.mean(answers, state, models, self._envelope(answers, state))

    def _envelope(self, answers, state):
        """Mean of the participants' envelopes at the shared model, None with several moves."""
        if self.n_moves > 1:  # they do not lower it where clients differ
            return None
        away = self.away
        if self.single:
            moves = state.theta[answers.choice] - self.nearest[answers.who.index]
            away = np.einsum("np,np->n", moves, moves)
        values = answers.values + 0.5 * self.lam * away
        return weighted_mean(values, self.weights(answers.who))


class TrainedMoreauAverage(MoreauAverage):
    """The same of networks, which train towards their proximal points."""

    moves, settles = NETWORK_MOVES, False

    def ask(self, answers, state):
        """Models of the participants after their moves, and objectives before."""
        pool = answers.who.pool
        answers.heard(pool, values=pool.ask(ClusterValues, state.theta, answers.choice))
        how = {
            "steps": self.steps,
            "step_size": self.options.step_size,
            "rho": self.lam,
            "move": self.move,
            "n_moves": self.n_moves,
            "optimizer": self.options.optimizer,
            "batch_size": self.options.batch_size,
        }
        return self.ask_trained(answers, state, MoreauMoves.trains, MoreauMoves, how)

    def _envelope(self, answers, state):
        return None


#: Rounds of pFedMe by kind of local model.
MOREAU = {MINIMISED: MoreauAverage, TRAINED: TrainedMoreauAverage}
