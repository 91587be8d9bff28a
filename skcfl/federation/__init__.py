"""The clients of a federation: what they are sent, what they compute, what they answer."""

from .inprocess import ClientPool
from .ledger import Ledger

__all__ = ["ClientPool", "Ledger"]
