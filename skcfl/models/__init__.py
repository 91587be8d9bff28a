"""Local models: what a client trains."""

from ._autoencoder import Autoencoder
from ._base import LocalModel
from ._linear import LinearModel
from ._location import Location
from ._mlp import MLP

__all__ = ["MLP", "Autoencoder", "LinearModel", "LocalModel", "Location"]
