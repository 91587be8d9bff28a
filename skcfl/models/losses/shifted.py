"""A loss of predictions that a known offset is added to."""

import numpy as np


class Shifted:
    """Another loss at ``z + offset``; the encoded targets end with the offset of each output.

    It is made where the rows are, see ``LinearModel.beside``, and is no choice of a user.

    Parameters
    ----------
    loss : Loss
        The other loss.
    n_targets : int
        Targets of a row, which come before the offsets.
    integral : bool
        True if the targets are integers: codes of classes.
    """

    def __init__(self, loss, n_targets, integral):
        self.loss, self.n_targets, self.integral = loss, n_targets, integral

    def __getattr__(self, name):
        # What is no function of targets is that of the other loss.
        if name.startswith("__") or name == "loss":
            raise AttributeError(name)
        return getattr(self.loss, name)

    def split(self, y):
        """Targets as the other loss reads them, and offsets (..., C, n)."""
        targets, offset = y[..., : self.n_targets, :], y[..., self.n_targets :, :]
        return targets.astype(np.intp) if self.integral else targets, offset

    def codes(self, y):
        """Class codes of encoded targets."""
        return self.loss.codes(self.split(y)[0])

    def targets_raw(self, y):
        """Raw predictions near the targets; see ``Loss.targets_raw``."""
        targets, offset = self.split(y)
        return self.loss.targets_raw(targets) - offset

    def log_constant(self, y, dispersion):
        """Term of the log-density; see ``Loss.log_constant``."""
        return self.loss.log_constant(self.split(y)[0], dispersion)

    def conjugate(self, a, y):
        """Convex conjugate in `z`: the shift takes ``a offset`` from it."""
        targets, offset = self.split(y)
        return self.loss.conjugate(a, targets) - (a * offset).sum(axis=-2)

    def conjugate_terms(self, a, y):
        """Size of the terms of the sum `conjugate`."""
        targets, offset = self.split(y)
        return self.loss.conjugate_terms(a, targets) + np.abs(a * offset).sum(axis=-2)

    def project(self, a, y):
        """Slopes in the domain of the conjugate."""
        return self.loss.project(a, self.split(y)[0])


def _of_shifted(name):
    def method(self, z, y, *arguments, **options):
        targets, offset = self.split(y)
        return getattr(self.loss, name)(z + offset, targets, *arguments, **options)

    method.__doc__ = f"See ``Loss.{name}``."
    return method


for _name in (
    *("value", "gradient", "curvature", "curvature_slope", "newton_curvature", "own_curvature"),
    *("curvature_product", "curvature_blocks", "curvature_factors", "terms", "slope_terms"),
    *("steadiness", "ceiling", "floor"),
):
    setattr(Shifted, _name, _of_shifted(_name))
