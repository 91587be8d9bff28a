"""What is automatic in rounds, by the kind of local model: minimised, or trained."""

from dataclasses import dataclass

__all__ = ["Automatic", "automatic"]


@dataclass(frozen=True)
class Automatic:
    """What stands for "auto", and how starts are found.

    Attributes
    ----------
    exact : bool
        Whether models are minimised in the end: rounds have converged, or fall short.
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

        Networks never stop moving under Adam: what is automatic is how long they train.
        """
        if max_iter != "auto":
            return max_iter, False
        return self.max_iter, not self.exact


# Models trained for long tell many clusters apart; models trained for few steps are less bound to
# the client they come from.  Restarts that differ in this find what equal ones all miss.
MINIMISED = Automatic(
    exact=True,
    averaging="gradient",
    optimizer="sgd",
    max_iter=300,
    local_steps=1,
    n_init=3,
    n_init_random=10,
    start_steps=(30, 5, 100),
    compared_steps=(30, 5, 100),
    candidates=2,
)
# Networks soon know their own rows by heart: after 30 steps of Adam the losses of two clients of a
# cluster that misses one of ten classes differ by that more than by the class; distances of
# parameters, unlike losses, do not get worse.  Linear models have three starts and scikit-learn's
# two candidates, networks one start and enough candidates for it.
TRAINED = Automatic(
    exact=False,
    averaging="model",
    optimizer="adam",
    max_iter=50,
    local_steps=10,
    n_init=1,
    n_init_random=1,
    start_steps=(5, 30, 100),
    compared_steps=(50,),
    candidates=10,
)


def automatic(pool):
    """What is automatic for the local models of a federation."""
    return MINIMISED if pool.second_order else TRAINED
