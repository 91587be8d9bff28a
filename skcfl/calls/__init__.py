"""What servers ask of clients: one class a call, see :mod:`skcfl.calls.call`."""

from . import curvatures as curvatures
from . import descriptions as descriptions
from . import differences_asked as differences_asked
from . import first_order as first_order
from . import kept_models as kept_models
from . import levels_asked as levels_asked
from . import mixtures_asked as mixtures_asked
from . import posteriors_asked as posteriors_asked
from . import proofs_asked as proofs_asked
from . import summed as summed
from . import trees_asked as trees_asked
from .call import CALLS as CALLS
from .call import Call

__all__ = ["Call"]
