"""Shared layers and own ones (FedRep, FedPer), and shared layers blended in (FedALA).

FedRep (Collins et al., 2021): clients train their own layers with the shared ones frozen, then
the shared ones with their own frozen; the server averages the shared layers.  FedPer (Arivazhagan
et al., 2019) trains all at once.

FedALA (Zhang et al., 2023): every client takes the lower layers of the mean model, and of the last
ones

    theta_i <- theta_i + (w - theta_i) * W_i,    W_i in [0, 1],

elementwise, with weights W_i that it learns by clipped gradient descent on a part of its rows;
then it trains, and the server averages the models.
"""

import numpy as np

from ..calls.kept_models import BlendedMoves, BlendedUpdate, PartialMoves, PartialUpdate, Recall
from ..numerics.matrices import columns_of
from .shared_rounds import SharedUpdate

__all__ = ["BlendedAverage", "PartialAverage", "train_part"]


class PartialAverage(SharedUpdate):
    """Round of FedRep and FedPer.

    Parameters
    ----------
    shared : ndarray of shape (n_params,) of bool
        Parameters that are sent and averaged.
    stages : list of tuple
        ``(steps, trained)``: steps of a client, and the mask of the parameters trained.
    rate : float
        Length of the steps.
    options : Options
        How clients train.
    average : Average, default=None
        How shared parameters are averaged.
    """

    def __init__(self, shared, stages, rate, options, average=None):
        super().__init__(average)
        self.shared, self.stages, self.rate, self.options = shared, stages, rate, options

    def ask(self, answers, state):
        """Shared parameters after the participants have trained, and objectives before."""
        pool, columns = answers.who.pool, columns_of(self.shared)
        rule = self.options.optimizer, self.options.batch_size
        how = self.shared, self.stages, self.rate, *rule
        if self.single:
            models = state.theta[answers.choice]
            models[:, columns], values = pool.ask(PartialUpdate, models[:, columns], *how)
            return answers.heard(pool, models=models, values=values)
        about = state.theta[:, columns], answers.choice
        answers.sums = np.zeros(state.theta.shape)
        answers.sums[:, columns], values = pool.ask(
            PartialMoves, *about, *how, weights=answers.who.weights
        )
        return answers.heard(pool, values=values)


class BlendedAverage(SharedUpdate):
    """Round of FedALA.

    Parameters
    ----------
    blended : ndarray of shape (n_params,) of bool
        Parameters that clients blend, the others being replaced.
    rates : callable
        ``rates(answers)`` is the length of the participants' steps.
    blend : dict
        ``blend_rate``, ``share`` and ``tol`` of ``BlendedUpdate``.
    options : Options
        How clients train.
    average : Average, default=None
        How models are averaged.
    """

    def __init__(self, blended, rates, blend, options, average=None):
        super().__init__(average)
        self.blended, self.rates, self.blend, self.options = blended, rates, blend, options

    def ask(self, answers, state):
        """Models of the participants, blended and trained, and objectives between."""
        pool, options = answers.who.pool, self.options
        about = self.blended, options.local_steps, self.rates(answers)
        how = {"optimizer": options.optimizer, "batch_size": options.batch_size, **self.blend}
        if self.single:
            w = state.theta[answers.choice]
            models, values = pool.ask(BlendedUpdate, w, *about, **how)
            return answers.heard(pool, models=models, values=values)
        how["weights"] = answers.who.weights
        answers.sums, values = pool.ask(BlendedMoves, state.theta, answers.choice, *about, **how)
        return answers.heard(pool, values=values)


def train_part(pool, theta, trained, steps, rate, options, prototypes=None, strength=0.0):
    """Models of new clients: some parameters trained from a shared model, the others frozen.

    Parameters
    ----------
    pool : ClientPool
        The new clients.
    theta : ndarray of shape (n_params,)
        The shared model.
    trained : ndarray of shape (n_params,) of bool
        Mask of the trained parameters.
    steps : int
        Number of steps.
    rate : float
        Their length.
    options : Options
        How clients train.
    prototypes, strength
        As for ``PartialUpdate``.

    Returns
    -------
    params : ndarray of shape (n_clients, n_params)
    """
    models = np.tile(theta, (pool.n_clients, 1))
    everything = np.ones(pool.n_params, dtype=bool)
    rule = options.optimizer, options.batch_size
    how = everything, [(steps, trained)], rate, *rule, prototypes, strength
    pool.ask(PartialUpdate, models, *how)
    return pool.ask(Recall, models, known=True)
