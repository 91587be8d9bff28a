"""The clients of a federation: what they are sent, what they compute, what they answer."""

from .ledger import Ledger
from .pool import ClientPool
from .sites import Site

__all__ = ["ClientPool", "Ledger", "Site"]
