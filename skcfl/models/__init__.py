"""Local models: what a client trains."""

from ._base import LocalModel
from ._linear import LinearModel
from ._location import Location

__all__ = ["LinearModel", "LocalModel", "Location"]
