"""Losses of predictions: one file a loss, which says everything of it.

A leaf package: arrays in, arrays out.  A new loss is one file here and an entry in the list
below; the tests run over that list.  :class:`Loss` says what a file must have, and
:func:`skcfl.testing.check_loss` checks it.
"""

from __future__ import annotations

from .gamma import Gamma
from .huber import Huber
from .log_loss import Logistic
from .loss import Loss
from .poisson import Poisson
from .quantile import Quantile
from .squared_error import SquaredError
from .squared_hinge import SquaredHinge
from .tweedie import Tweedie

__all__ = [
    "Gamma",
    "Huber",
    "Logistic",
    "Loss",
    "Poisson",
    "Quantile",
    "SquaredError",
    "SquaredHinge",
    "Tweedie",
    "make_loss",
]

#: Losses by the name that users know.
LOSSES = {
    loss.name: loss
    for loss in (SquaredError, Huber, Quantile, Poisson, Gamma, Tweedie, Logistic, SquaredHinge)
}
REGRESSION_LOSSES = tuple(name for name, loss in LOSSES.items() if not loss.classifier)
CLASSIFICATION_LOSSES = tuple(name for name, loss in LOSSES.items() if loss.classifier)


def make_loss(loss: str | Loss, n_classes: int | None = None) -> Loss:
    """Loss of a name, for a number of classes.

    Parameters
    ----------
    loss : str or Loss
        The name of a loss with default values of its parameters, or an object.
    n_classes : int or None, default=None
        Number of classes, which log loss depends on.

    Returns
    -------
    loss : Loss

    Raises
    ------
    ValueError
        If there is no loss of this name.

    Examples
    --------
    >>> from skcfl.models.losses import make_loss
    >>> make_loss("log_loss", n_classes=4)
    Multinomial()
    """
    if isinstance(loss, Loss):
        return loss.for_classes(n_classes)
    if not isinstance(loss, str) or loss not in LOSSES:
        raise ValueError(f"loss must be a Loss or one of {sorted(LOSSES)}, got {loss!r}.")
    return LOSSES[loss]().for_classes(n_classes)
