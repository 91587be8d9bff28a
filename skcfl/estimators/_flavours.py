"""What the fusion methods take from the everyday classes."""

from __future__ import annotations

from ..base.everyday_models import ClassifierMixin, NeuralMixin, RegressorMixin

__all__ = ["ClassifierMixin", "GenericMixin", "NeuralMixin", "RegressorMixin"]


class GenericMixin:
    """The local model is the parameter ``model``."""
