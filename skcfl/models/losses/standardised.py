"""A loss of standardised targets, by that of targets in the user's units."""

import numpy as np


class Standardised:
    """Another loss at targets and predictions in its units, over some size.

    It is made where a network's targets are standardised, see ``Loss.standardised``, and is no
    choice of a user. Numbers are in double precision: squares of small units are no float32.

    Parameters
    ----------
    loss : Loss
        The other loss.
    mean, scale : float
        Mean and standard deviation of the targets.
    size : float
        What values are divided by; 1 leaves them in the user's units.
    """

    def __init__(self, loss, mean, scale, size):
        self.loss, self._size = loss, size
        if loss.link == "identity":
            # A loss of residuals: where the targets lie is nothing to it.
            self._at, self._spread, self._target = 0.0, scale, scale
        else:
            self._at, self._spread, self._target = loss.raw(mean), 1.0, mean

    def _of(self, z, y):
        return self._at + self._spread * np.float64(z), self._target * np.float64(y)

    def value(self, z, y):
        """Loss of every row."""
        return (self.loss.value(*self._of(z, y)) / self._size).astype(z.dtype)

    def gradient(self, z, y):
        """Derivative in `z`."""
        slope = self.loss.gradient(*self._of(z, y))
        slope *= self._spread / self._size
        return slope.astype(z.dtype)
