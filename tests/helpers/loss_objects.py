"""Losses by name with other values of their parameters."""

from skcfl.models.losses import LOSSES


def loss_of(name, **parameters):
    """The loss of a name with those of some parameters that it has."""
    loss = LOSSES[name]()
    return loss.set_params(**{k: v for k, v in parameters.items() if k in loss.get_params()})
