"""The clients of a federation: what they are sent, what they compute, what they answer."""

from .costs import Cost, estimate_cost
from .dask import DaskFederation
from .faults import Faults
from .federation import FanOutFederation, Federation, InProcessFederation
from .fit_page import FitReport, fit_report
from .handshake import Handshake
from .host import SiteRows
from .identity import SiteIdentity
from .ledger import Ledger
from .policy import SitePolicy
from .pool import ClientPool
from .privacy import ClientPrivacy
from .released import ReleasedFederation
from .sites import Site

__all__ = [
    "ClientPool",
    "ClientPrivacy",
    "Cost",
    "DaskFederation",
    "FanOutFederation",
    "Faults",
    "Federation",
    "FitReport",
    "Handshake",
    "InProcessFederation",
    "Ledger",
    "ReleasedFederation",
    "Site",
    "SiteIdentity",
    "SitePolicy",
    "SiteRows",
    "estimate_cost",
    "fit_report",
]
