"""When rounds end."""

import numpy as np

__all__ = ["StopRule", "rounds_stable"]


class StopRule:
    """Rounds end when the partition is stable and the models hardly move.

    Parameters
    ----------
    tol : float, default=1e-4
        Relative change of the models in a round below which they hardly move; 0 never ends.
    window : int, default=1
        For how many rounds the partition must have been the same: those in which every client
        takes part about once.
    settled : int, default=None
        For how many times that window it must have been the same, so that the rounds end however
        the models move.
    """

    def __init__(self, tol=1e-4, window=1, settled=None):
        self.tol, self.window, self.settled = tol, window, settled

    def __call__(self, state):
        """True if the rounds may end."""
        if self.tol == 0:
            return False
        if self.settled is not None and state.stable >= self.settled * self.window:
            return True
        return state.stable >= self.window and state.change < self.tol


def rounds_stable(stable, old, new, rounds=1):
    """For how many rounds a partition has been the same.

    Parameters
    ----------
    stable : int
        For how many it had been.
    old, new : ndarray of shape (n_clients,)
        Labels before and after; `old` may be None, at the start.
    rounds : int, default=1
        Rounds between the two.

    Returns
    -------
    stable : int
        So many more, or 0 if the labels have changed.
    """
    return stable + rounds if old is not None and np.array_equal(old, new) else 0
