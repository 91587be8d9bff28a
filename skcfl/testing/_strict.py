"""A federation with pickled messages and rows that the server cannot reach."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from .._typing import Kind
from ..federation.made import BehindFederation
from ..federation.pool import ClientPool
from ..federation.sites import Site

if TYPE_CHECKING:
    from ..federation.handshake import Handshake
    from ..models import LocalModel

# Arguments that are rows, and the rooms that have none.
ROWS = frozenset({"block", "X", "y"})
SERVER = tuple(
    f"skcfl.{room}" for room in ("rounds", "fusion", "personal", "pooling", "estimators")
)


class StrictSite(Site):
    """Site behind a wall: only bytes go through it.

    Parameters
    ----------
    site : Site
        The clients.
    """

    def __init__(self, site):
        self._StrictSite__site = site
        self.n_clients = site.n_clients
        self.client_sizes = _through(site.client_sizes)
        self.client_weights = _through(site.client_weights)
        self.without_rows = _through(site.without_rows)

    @property
    def reachable(self):
        """Clients that may answer if a call is repeated."""
        return _through(self._StrictSite__site.reachable)

    def answer(self, call, arguments):
        """Ask through pickle."""
        return _through(self._StrictSite__site.answer(*_through((call, arguments))))

    def derive(self, step, *arguments):
        """Sites behind separate walls."""
        sites = self._StrictSite__site.derive(*_through((step, *arguments)))
        return [StrictSite(site) for site in sites]

    def __getattr__(self, name):
        raise AttributeError(
            f"a server asked its site for {name!r}, which no message gives: see skcfl.calls"
        )


@cache
def kernels(kind: type) -> frozenset[str]:
    """Names of a local model's methods that take rows or blocks of them: what servers lack."""
    found = inspect.getmembers(kind, inspect.isfunction)
    return frozenset(
        name for name, method in found if ROWS & inspect.signature(method).parameters.keys()
    )


class _SpecOnly:
    """A local model with kernels that servers may not call; mixed into the model's class."""

    def __getattribute__(self, name):
        kind = type(self)
        if name in kernels(kind) and (caller := _caller()).startswith(SERVER):
            raise AttributeError(
                f"{caller} asked a model for {name!r}, which takes rows: a server has what is in "
                "skcfl.models.ModelSpec"
            )
        return super().__getattribute__(name)


def spec_only(model: LocalModel) -> Any:
    """The same model; server code gets only its spec."""
    strict = copy.copy(model)
    kind = type(model)
    if not issubclass(kind, _SpecOnly):
        strict.__class__ = type(kind.__name__, (_SpecOnly, kind), {"__module__": kind.__module__})
    return strict


class StrictPool(ClientPool):
    """Pool that shows servers its public names only."""

    def __getattribute__(self, name):
        if name.startswith("_") and not name.startswith("__"):
            caller = _caller()
            if not caller.startswith(("skcfl.federation", "skcfl.testing", "copy")):
                raise AttributeError(f"{caller} asked a pool for {name!r}, which is private")
        return super().__getattribute__(name)


class StrictFederation(BehindFederation):
    """Federation that keeps a server to the rules: for tests of methods and of pools.

    Servers see public names of the pool only, and of its model no method that takes rows;
    arguments and answers go through pickle, so that nothing is shared; and a site answers the
    calls of ``skcfl.calls`` and no others.

    Parameters
    ----------
    federation : Federation
        The clients.

    Examples
    --------
    >>> from skcfl import FedAvgRegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.federation import InProcessFederation
    >>> from skcfl.testing import StrictFederation
    >>> data = make_clustered_regression(n_clients=6, n_clusters=2, random_state=0)
    >>> federation = StrictFederation(InProcessFederation(data.X, data.y, data.groups))
    >>> FedAvgRegressor().fit_federation(federation).n_clusters_
    1
    """

    @property
    def carries_objects(self) -> bool:  # type: ignore[override]
        """As the federation behind the wall says."""
        return self.federation.carries_objects

    def hello(self, kind: Kind = None) -> Handshake:
        """Ask the clients for their ids, through pickle."""
        return _through(self.federation.hello(kind))

    def rows(self, model: LocalModel, hello: Handshake) -> list[Any]:
        """Rows that the places hold."""
        return self.federation.rows(model, hello)

    def open_with_folds(
        self,
        model: LocalModel,
        random_state: Any = None,
        hello: Handshake | None = None,
        robust: bool = False,
        before: Any = None,
    ) -> tuple[Any, Any]:
        """The pool behind the wall, and folds behind another."""
        pool, folds = super().open_with_folds(model, random_state, hello, robust, before)
        return _wall(pool), _StrictFolds(folds)


class _StrictFolds:
    def __init__(self, folds):
        self._folds = folds

    def penalised(self, model):
        return _StrictFolds(self._folds.penalised(model))

    def judged_by(self, judges, alone=False):
        return _StrictFolds(self._folds.judged_by(_through(judges), alone))

    def deal(self, n_folds, seed):
        return [_StrictFold(fold) for fold in self._folds.deal(n_folds, seed)]

    def split(self, cv):
        return [_StrictFold(fold) for fold in self._folds.split(cv)]


class _StrictFold:
    def __init__(self, fold):
        self._fold = fold

    def pool(self, random_state=None):
        return _wall(self._fold.pool(random_state))

    def scores(self, params, scoring=None):
        return _through(self._fold.scores(_through(params), scoring))


def _wall(pool):
    """The same pool, strict."""
    strict = object.__new__(StrictPool)
    vars(strict).update(vars(pool))
    vars(strict)["_site"] = StrictSite(pool._site)
    vars(strict)["model"] = spec_only(pool.model)
    return strict


def _through(message):
    return pickle.loads(pickle.dumps(message))


def _caller():
    """Module that asked for an attribute."""
    return sys._getframe(2).f_globals.get("__name__", "")
