"""The kinds of local models, and what every method by rounds does with each.

Clients know the minimum, the proximal points and the curvature of a *minimised* model; a *trained*
one takes steps; a *fitted* one is an ensemble of estimators of scikit-learn.  Only this module
asks which of them a pool holds.  Differences between the kinds are values or methods of the kind
in rounds, and tables by kind in the rooms above.
"""

from abc import ABC, abstractmethod

from ..calls.first_order import LocalUpdate
from .update import client_curvatures

__all__ = ["Kind", "kind_of", "need_minima"]

# Step of Adam for networks: found by trial, and good for most.
NETWORK_STEP = 0.005


class Kind(ABC):
    """Values of "auto", and local models that starts are looked for among.

    Attributes
    ----------
    exact : bool
        True if models are minimised in the end: rounds have converged, or fall short.
    averaging, optimizer, max_iter, local_steps
        As parameters of estimators.
    n_init, n_init_random : int
        Starts where they are chosen among local models, and where they are drawn at random.
    start_steps : tuple of int
        Local steps before starts are chosen, by restart.
    compared_steps : tuple of int
        The same before models are compared by their parameters.
    candidates : int
        Candidates of each draw of a start beyond ``log K``.
    """

    exact: bool
    averaging: str
    optimizer: str
    max_iter: int
    local_steps: int
    n_init: int
    n_init_random: int
    start_steps: tuple
    compared_steps: tuple
    candidates: int

    def rounds(self, max_iter):
        """Most rounds, and whether these are a budget, after which nothing has to have settled.

        Networks never stop moving under Adam: the length of training is automatic.
        """
        if max_iter != "auto":
            return max_iter, False
        return self.max_iter, not self.exact

    @abstractmethod
    def first_steps(self, pool, start, steps):
        """Local models after some steps from a start, for whoever looks for starts."""


class _Minimised(Kind):
    exact = True
    averaging, optimizer = "gradient", "sgd"
    max_iter, local_steps = 300, 1
    n_init, n_init_random = 3, 10
    # Models trained for long distinguish many clusters; models trained for few steps depend less
    # on the client that they come from.  Restarts that differ in this find clusters that equal
    # ones all miss.
    start_steps = compared_steps = (30, 5, 100)
    candidates = 2

    def first_steps(self, pool, start, steps):
        """Safeguarded steps of gradient descent at ``1 / L_i``."""
        rates = 1.0 / client_curvatures(pool)
        return pool.ask(LocalUpdate, start, steps, rates, monotone=True, whole=True)


class _Trained(Kind):
    # Networks soon know their own rows by heart: after 30 steps of Adam the losses of two clients
    # of a cluster that misses one of ten classes differ by that more than by the class; distances
    # of parameters, unlike losses, do not get worse.  Linear models have three starts and
    # scikit-learn's two candidates, networks one start and enough candidates for it.
    exact = False
    averaging, optimizer = "model", "adam"
    max_iter, local_steps = 50, 10
    n_init = n_init_random = 1
    start_steps, compared_steps = (5, 30, 100), (50,)
    candidates = 10

    def first_steps(self, pool, start, steps):
        """Steps of Adam: the curvature has no bound."""
        return pool.ask(LocalUpdate, start, steps, NETWORK_STEP, "adam", whole=True)


class _Fitted(Kind):
    # Estimators are fitted before the rounds: models are weights of them.
    exact = False
    averaging, optimizer = "members", "sgd"
    max_iter, local_steps = 50, 1
    n_init = n_init_random = 3
    start_steps = compared_steps = (1,)
    candidates = 2

    def first_steps(self, pool, start, steps):
        """The estimators that the clients have fitted."""
        return pool.model.singles(pool.places)


MINIMISED = _Minimised()
TRAINED = _Trained()
FITTED = _Fitted()


def kind_of(pool):
    """Kind of the local models of a federation."""
    if pool.model.fits_whole:
        return FITTED
    return MINIMISED if pool.can_answer("solve") else TRAINED


def need_minima(pool, words):
    """Raise a ValueError of these words if models are trained, with the model's name for {}."""
    if not kind_of(pool).exact:
        raise ValueError(words.format(type(pool.model).__name__))
