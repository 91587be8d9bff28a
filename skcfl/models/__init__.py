"""Local models: what a client trains."""

from ._autoencoder import Autoencoder
from ._linear import LinearModel
from ._local_model import LocalModel
from ._location import Location
from ._mlp import MLP
from ._sklearn_model import SklearnModel
from ._spec import ModelSpec
from ._torch_model import TorchModel

__all__ = [
    "MLP",
    "Autoencoder",
    "LinearModel",
    "LocalModel",
    "Location",
    "ModelSpec",
    "SklearnModel",
    "TorchModel",
]
