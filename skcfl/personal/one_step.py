r"""Per-FedAvg: a shared model that is good after one more gradient step of each client.

    F_i(w) = f_i(w - a grad f_i(w)),    minimise the mean of F_i

(Fallah, Mokhtari, Ozdaglar, 2020).  A client's local step draws two batches B1, B2:

    w' = w - a grad f(w; B1)
    w <- w - b (I - a H(w; B1)) grad f(w'; B2)

The first-order variant leaves out ``a H``.
"""

from ..calls.first_order import LocalUpdate, Objectives
from ..calls.summed import ClusterValues, MetaMoves
from ..rounds.state import weighted_mean
from .shared_rounds import SharedUpdate

__all__ = ["MetaAverage", "one_step"]


class MetaAverage(SharedUpdate):
    """Round of Per-FedAvg.

    Parameters
    ----------
    steps : int
        Local steps.
    rate : float
        Length of the steps.
    inner : ndarray of shape (n_clients,)
        Length of the step that the shared model is to be good after.
    exact : bool
        True if gradients pass through that step.
    options : Options
        How clients train.
    average, accelerate
        As for :class:`~skcfl.personal.shared_rounds.SharedUpdate`. Only single exact steps are
        accelerated: other rounds need not lower the mean of the ``F_i``, which is not convex.
    """

    def __init__(self, steps, rate, inner, exact, options, average=None, accelerate=False):
        super().__init__(average, accelerate and exact and steps == 1)
        self.steps, self.rate, self.inner, self.exact = steps, rate, inner, exact
        self.options = options
        #: Mean of the ``F_i`` at the shared model, where rounds are accelerated.
        self.merit = None

    def ask(self, answers, state):
        """Objectives at the shared model, and models trained from there."""
        pool = answers.who.pool
        answers.heard(pool, values=pool.ask(ClusterValues, state.theta, answers.choice))
        if self.fixpoint is not None:
            self.merit = self._meta_objective(answers, state)
        how = {
            "steps": self.steps,
            "step_size": self.rate,
            "inner": self.inner[answers.who.index],
            "optimizer": self.options.optimizer,
            "batch_size": self.options.batch_size,
            "exact": self.exact,
        }
        return self.ask_trained(answers, state, MetaMoves.trains, MetaMoves, how)

    def __call__(self, answers, state):
        """New shared model."""
        return self.mean(answers, state, answers.models, self.merit)

    def _meta_objective(self, answers, state):
        """Mean of the participants' objectives after the inner step."""
        pool, inner = answers.who.pool, self.inner[answers.who.index]
        ahead = pool.ask(LocalUpdate, state.theta[answers.choice], 1, inner, known=True)
        answers.heard(pool, models=ahead)
        pool = answers.who.pool
        values = pool.ask(Objectives, answers.models, known=True)
        here = slice(None) if pool.answered is None else pool.answered
        answers.heard(pool, models=None)
        return weighted_mean(values[here], self.weights(answers.who))


def one_step(pool, w, inner, steps=1):
    """Models of the clients: gradient steps on all of their rows from the shared one.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    w : ndarray of shape (n_params,)
        The shared model.
    inner : ndarray of shape (n_clients,)
        Length of the steps.
    steps : int, default=1
        Their number.

    Returns
    -------
    params : ndarray of shape (n_clients, n_params)
    """
    return pool.ask(LocalUpdate, w, steps, inner, later=True, whole=True)
