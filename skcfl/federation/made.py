"""A federation with other columns than its rows were given with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array, Kind
from ..exceptions import FederationError
from .federation import Federation, _FewerPlaces, _present, limits_of
from .handshake import Handshake
from .ledger import Ledger
from .made_columns import Columns
from .presence import Presence
from .scaling import Scaling
from .sites import ask_each

if TYPE_CHECKING:
    from ..models import LocalModel

# Quantiles are looked for within so many standard deviations of the mean.
REACH = 30.0
# Parts of that interval, which all quantiles of a feature share, and of each later one, and how
# often these are cut. Numbers sent grow with the parts, exchanges with the rounds.
FIRST_PARTS, PARTS, ROUNDS = 128, 8, 7
# Cells between the outer quantiles; those with rows are counted.
CELLS = 64


class BehindFederation(Federation):
    """Base of the federations that stand before another one, and have its clients.

    Parameters
    ----------
    federation : Federation
        The clients.
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        vars(self).update(limits_of(federation))

    @property
    def wire_bytes(self) -> tuple[int, int]:  # type: ignore[override]
        """Bytes ``(up, down)`` that have travelled since the last hello."""
        return self.federation.wire_bytes

    def hello(self, kind: Kind = None) -> Handshake:
        """Ask the clients who they are; see :meth:`Federation.hello`."""
        return self.federation.hello(kind)

    def collected(self, answers: Iterator[Array]) -> Array:
        """Entries of all rows; see ``Federation.collected``."""
        return self.federation.collected(answers)


@dataclass
class MadeHello(Handshake):
    """The first message of clients, as it would be with the new columns.

    Attributes
    ----------
    columns : Columns
        How these are made.
    levels : tuple of tuple of int
        Number of levels of each crossed, and of each nested grouping.
    """

    columns: Any = None
    levels: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    @classmethod
    def of(cls, hello: Handshake, columns: Columns, levels: Any = ((), ())) -> MadeHello:
        """That of clients who have said another hello."""
        # Codes and curves are in double precision.
        new = replace(
            hello, n_features=columns.n_columns, feature_names=None, dtype=np.dtype(float)
        )
        return cls(**vars(new), columns=columns, levels=levels)


class MadeFederation(BehindFederation):
    """Clients of a federation with other columns.

    Parameters
    ----------
    federation : Federation
        The clients.
    columns : Columns
        What their rows become.
    """

    def __init__(self, federation: Federation, columns: Columns) -> None:
        super().__init__(federation)
        self.columns = columns

    @property
    def journal(self) -> Any:  # type: ignore[override]
        """The checkpoint of the fit, if it has one: that of the federation."""
        return self.federation.journal

    def hello(self, kind: Kind = None) -> Handshake:
        """Ask the clients who they are; see :meth:`Federation.hello`."""
        return MadeHello.of(self.federation.hello(kind), self.columns)

    def rows(self, model: LocalModel, hello: Handshake) -> list[Any]:
        """What the places hold, with the new columns."""
        how = self.columns.recipe, self.columns.trees, self.columns.n_outputs
        raw = replace(hello, n_features=self.columns.n_features)
        return [part.made(*how) for part in self.federation.rows(model, raw)]


def distinct_values(
    federation: Federation, model: LocalModel, hello: Handshake, columns: Any
) -> list[Array]:
    """Sorted different values of some columns over all clients.

    Parameters
    ----------
    federation : Federation
        The clients.
    model : LocalModel
        Bound local model.
    hello : Handshake
        Who the clients are.
    columns : list of int
        The columns.

    Returns
    -------
    values : list of ndarray
        One for each column.
    """
    parts = federation.rows(model, hello)
    asked = [(np.asarray(columns),)] * len(parts)
    answers = ask_each(parts, "distinct", asked, retries=federation.retries)
    split = [np.split(values, np.cumsum(counts)[:-1]) for values, counts in answers]
    return [np.unique(np.concatenate(each)) for each in zip(*split, strict=True)]


class NoQuantiles(ValueError):
    """Raised where rows are sparse, or some places do not answer what quantiles need."""


def may_choose(federation: Any) -> bool:
    """If True, no client is known to refuse calls, about all of its rows or a part."""
    parts = getattr(federation, "parts", [getattr(federation, "federation", federation)])
    if parts != [federation]:
        return all(map(may_choose, parts))
    return getattr(federation, "faults", None) is None and (
        getattr(federation, "_guard", None) is None
    )


def quantiles(
    federation: Federation,
    model: LocalModel,
    hello: Handshake,
    shares: Array,
    ledger: Ledger,
    before: Presence | None = None,
) -> tuple[Array, Array]:
    """Quantiles of the columns over the rows of all clients, from sums over them.

    Parameters
    ----------
    federation : Federation
        The clients.
    model : LocalModel
        Bound local model.
    hello : Handshake
        Who the clients are.
    shares : ndarray of shape (m,)
        Ascending shares of the rows.
    ledger : Ledger
        Counts what is sent.
    before : Presence, default=None
        Of an earlier attempt at the same fit; the clients that it lost are left out.

    Returns
    -------
    quantiles : ndarray of shape (n_features, m)
    n_values : ndarray of shape (n_features,)
        A lower bound of the number of different values between the first and the last quantile.
    """
    presence = Presence(hello.ids, federation.min_clients, federation.retries, before)
    parts = _present(federation.rows(model, hello), presence, hello, model)
    while True:
        try:
            return _quantiles_of(parts, federation.retries, hello, shares, ledger)
        except _FewerPlaces:
            parts = [part for part in parts if not part.is_lost]


def _quantiles_of(
    parts: list[Any], retries: int, hello: Handshake, shares: Array, ledger: Ledger
) -> tuple[Array, Array]:
    """Quantiles over the rows of some places; _FewerPlaces is raised if one of them is lost."""

    def book(up, down):
        n = len(hello.ids)
        ledger.book(up=n * up, down=n * down, clients=n, shared_bytes=(8 * up, 8 * down))

    def ask(name, *arguments, **how):
        answers = ask_each(parts, name, [arguments] * len(parts), retries=retries, **how)
        if any(part.is_lost for part in parts):
            raise _FewerPlaces
        return answers

    def below(edges):
        book(edges.size + len(edges), edges.size)
        try:
            answers = ask("below", edges, may_refuse=True)
        except FederationError as error:
            raise NoQuantiles(
                f"no place answers below, from which knots are found: {error}"
            ) from error
        if len(answers) < len(parts):
            raise NoQuantiles("some places do not answer below, from which knots are found.")
        found = sum(answers)
        return found[:, :-1] / np.maximum(found[:, -1:], 1e-300)

    def moments(step, *means):
        d = hello.n_features
        book(*((d, d) if means else (4 * d + 1, 0)))
        answers = ask("moments", "features", step, *means)
        if step == "sums" and any(stored is not None for _, _, stored, *_ in answers):
            raise NoQuantiles(
                "X must be dense for curves and trees, got a sparse matrix: take X.toarray() or "
                "basis='linear'."
            )
        return answers

    scaling = Scaling.of_parts(moments)
    d, m = len(scaling.mean), len(shares)
    low = np.repeat((scaling.mean - REACH * scaling.scale)[:, None], m, axis=1)
    high = np.repeat((scaling.mean + REACH * scaling.scale)[:, None], m, axis=1)
    grid, shared = np.arange(1, PARTS) / PARTS, np.arange(1, FIRST_PARTS) / FIRST_PARTS
    for number in range(1 + ROUNDS):
        edges = low[:, :, None] + (high - low)[:, :, None] * (grid if number else shared)
        # The first interval is that of all quantiles.
        flat = edges.reshape(d, -1) if number else edges[:, 0]
        order = np.argsort(flat, axis=1, kind="stable")
        ranks = np.empty_like(flat)
        sums = below(np.take_along_axis(flat, order, axis=1))
        np.put_along_axis(ranks, order, sums, axis=1)
        ranks = ranks.reshape(edges.shape) if number else ranks[:, None]
        at = (ranks < shares[:, None] - 1e-12).sum(axis=2)
        padded = np.concatenate([low[:, :, None], edges, high[:, :, None]], axis=2)
        low = np.take_along_axis(padded, at[:, :, None], axis=2)[:, :, 0]
        high = np.take_along_axis(padded, at[:, :, None] + 1, axis=2)[:, :, 0]
    between = low[:, :1] + (high[:, -1:] - low[:, :1]) * np.linspace(0.0, 1.0, CELLS + 1)
    counts = np.diff(np.maximum.accumulate(below(between), axis=1), axis=1)
    return high, (counts > 1e-12).sum(axis=1)
