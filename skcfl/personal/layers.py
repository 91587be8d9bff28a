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

from ..calls.kept_models import BlendedMoves, Keep, PartialMoves, PartialUpdate, Recall
from ..numerics.matrices import columns_of
from .shared_rounds import SharedUpdate

__all__ = ["BlendedAverage", "PartialAverage", "least_parts", "train_part"]


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
    minimise : bool, default=False
        If True, clients set their own parameters to the minimum before they train.
    accelerate : bool, default=False
        As for ``SharedUpdate``.
    """

    def __init__(
        self, shared, stages, rate, options, average=None, minimise=False, accelerate=False
    ):
        super().__init__(average, accelerate)
        self.shared, self.stages, self.rate, self.options = shared, stages, rate, options
        self.minimise = minimise

    def ask(self, answers, state):
        """Shared parameters after the participants have trained, and objectives before."""
        how = {"shared": self.shared, "stages": self.stages, "step_size": self.rate}
        how["minimise"] = self.minimise
        return _ask(self, answers, state, PartialMoves, how, columns_of(self.shared))


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
        how = {"blended": self.blended, "steps": self.options.local_steps, **self.blend}
        return _ask(self, answers, state, BlendedMoves, how | {"step_size": self.rates(answers)})


def _ask(update, answers, state, call, how, columns=slice(None)):
    """Models after the participants' training of the models that they keep, or sums of moves."""
    pool, theta, options = answers.who.pool, state.theta, update.options
    how |= {"optimizer": options.optimizer, "batch_size": options.batch_size}
    if update.single:
        models = theta[answers.choice]
        models[:, columns], values = pool.ask(call.trains, models[:, columns], **how)
        return answers.heard(pool, models=models, values=values)
    answers.sums, how["weights"] = np.zeros(theta.shape), answers.who.weights
    found = pool.ask(call, theta[:, columns], answers.choice, **how)
    answers.sums[:, columns], values = found
    return answers.heard(pool, values=values)


def least_parts(pool, theta, free):
    """Models of new clients with quadratic objectives: some parameters at their minimum.

    Parameters
    ----------
    pool, theta
        As of :func:`train_part`.
    free : ndarray of shape (n_params,) of bool
        Mask of these parameters; the others are those of the shared model.

    Returns
    -------
    params : ndarray of shape (n_clients, n_params)
    """
    models = np.tile(theta, (pool.n_clients, 1))
    pool.ask(Keep, models)
    pool.ask(PartialUpdate, models[:, ~free], ~free, [], 0.0, minimise=True)
    return pool.ask(Recall, models, known=True, final=True)


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
    return pool.ask(Recall, models, known=True, final=True)
