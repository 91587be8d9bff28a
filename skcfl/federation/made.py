"""A federation with other columns than its rows were given with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array, Kind
from .federation import Federation, Hello
from .made_columns import Columns
from .sites import ask_each

if TYPE_CHECKING:
    from ..models import LocalModel


@dataclass
class MadeHello(Hello):
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
    def of(cls, hello: Hello, columns: Columns, levels: Any = ((), ())) -> MadeHello:
        """That of clients who have said another hello."""
        # Codes and curves are in double precision.
        changed = replace(hello, dtype=np.dtype(float), feature_names=None)
        about = vars(replace(changed, n_features=columns.n_columns))
        return cls(**about, columns=columns, levels=levels)


class MadeFederation(Federation):
    """Clients of a federation with other columns.

    Parameters
    ----------
    federation : Federation
        The clients.
    columns : Columns
        What their rows become.
    """

    def __init__(self, federation: Federation, columns: Columns) -> None:
        self.federation, self.columns = federation, columns
        self.min_clients, self.retries = federation.min_clients, federation.retries
        self.max_share = federation.max_share

    @property
    def wire_bytes(self) -> tuple[int, int]:  # type: ignore[override]
        """Bytes ``(up, down)`` that have travelled since the last hello."""
        return self.federation.wire_bytes

    def hello(self, kind: Kind = None) -> Hello:
        """Ask the clients who they are; see :meth:`Federation.hello`."""
        return MadeHello.of(self.federation.hello(kind), self.columns)

    def rows(self, model: LocalModel, hello: Hello) -> list[Any]:
        """What the places hold, with the new columns."""
        recipe = self.columns.recipe
        raw = replace(hello, n_features=self.columns.n_features)
        return [part.made(recipe) for part in self.federation.rows(model, raw)]

    def collected(self, answers: Iterator[Array]) -> Array:
        """Entries of all rows; see :meth:`Federation.collected`."""
        return self.federation.collected(answers)


def distinct_values(
    federation: Federation, model: LocalModel, hello: Hello, columns: Any
) -> list[Array]:
    """Sorted different values of some columns over all clients.

    Parameters
    ----------
    federation : Federation
        The clients.
    model : LocalModel
        Bound local model.
    hello : Hello
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
