"""The base of all estimators: fits, predictions, new clients, reports; in sight of rows."""

from .federated import BaseFederated

__all__ = ["BaseFederated"]
