"""Clients that answer exact masked sums, as a server's algorithms see them."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..calls.letters import sizes_of
from ..exceptions import PrivacyError
from .ledger import Ledger
from .masked_sums import MaskedPlaces, MaskedSum, TooLarge
from .masks import COARSE
from .scaling import Scaling, UserUnits
from .serialization import array_bytes

if TYPE_CHECKING:
    from .._typing import Array
    from ..calls.call import Call
    from ..models import LocalModel


class SummedPool:
    """What :class:`~skcfl.federation.ClientPool` is, for calls that are sums over the clients.

    Units are those of the rows, as in a fit without masks: their moments are masked sums, too.

    Parameters
    ----------
    masked : MaskedPlaces
        The places.
    model : LocalModel
        Bound local model.
    n_clients : int
        Number of clients.
    random_state : RandomState
        Source of the server's draws.
    ledger : Ledger
        What was sent.

    Attributes
    ----------
    model : LocalModel
        Bound local model, in the units of the rows.
    scaling : Scaling or None
        Units of the features.
    """

    #: Nothing is known of single clients.
    travels, answered = False, None

    def __init__(
        self,
        masked: MaskedPlaces,
        model: LocalModel,
        n_clients: int,
        random_state: Any,
        ledger: Ledger,
    ) -> None:
        self._masked, self._n_places = masked, np.count_nonzero(masked.here)
        self.model: Any = model
        self.n_clients, self.random_state, self.ledger = n_clients, random_state, ledger
        self.n_params, self.dtype = model.n_params, np.dtype(model.dtype)
        self.without_rows = np.zeros(n_clients, dtype=bool)
        self.other_units: dict[Any, float] = {}
        units: list[Any] = [None] * 4
        self.scaling: Scaling | None = None
        if model.standardize:
            measured = self._measured("features", model.n_features, model.fit_intercept)
            scaling = model.spared(measured)
            units[:2] = scaling.mean, scaling.scale
            self.model, scaling = model.with_scaling(scaling)
            self.scaling = None if scaling is None else model.of_features(scaling)
        if model.has_units:
            target = self._measured("target", 1, True)
            units[2:] = float(target.mean[0]), float(target.scale[0])
            self.model = self.model.in_units(*units[2:])
        self._units = tuple(units)

    @property
    def units(self) -> UserUnits:
        """Parameters in the user's units, and back."""
        return UserUnits(self.model, self.scaling)

    @property
    def steady(self) -> bool:
        """Whether sums of one call and the next are of the same clients."""
        return bool(np.count_nonzero(self._masked.here) == self._n_places)

    def lane(self, seed: Any = None, remembers: bool = True) -> SummedPool:
        """The same clients with a ledger of their own; see :meth:`ClientPool.lane`."""
        pool = copy.copy(self)
        # Sums over places have an order: their masks are numbered.
        pool.ledger = Ledger(in_series=True)
        if seed is not None:
            pool.random_state = np.random.RandomState(seed)
        return pool

    def ask(self, call: type[Call], *args: Any, **arguments: Any) -> Any:
        """One exchange: sums over the clients, NaN if they are not finite at some client.

        Parameters
        ----------
        call : type
            A class of :mod:`skcfl.calls` with sums only.
        *args, **arguments : object
            Its arguments.

        Raises
        ------
        PrivacyError
            If clients would send single answers, or a place refuses.
        """
        if not call.is_summed():
            raise PrivacyError(f"{call.name} asks for single answers, and clients send sums.")
        sent = call.asked(self, *args, **arguments)
        shapes = call.shapes(sent, sizes_of(self, sent))
        sizes = [int(np.prod(shape)) for shape in shapes.values()]
        try:
            values = self._sum("exact", (call.name, sent, self._units), sizes, _units_of(sent))
        except TooLarge:
            values = [np.full(size, np.nan) for size in sizes]
        answers = {
            name: value.reshape(shape)
            for (name, shape), value in zip(shapes.items(), values, strict=True)
        }
        return call.result(self, answers, sent, None)

    def _measured(self, of: str, length: int, centred: bool) -> Scaling:
        """Units of the features or of the target over the rows of all clients."""
        return Scaling.of_parts(partial(self._moments, of, length), centred, of)

    def _moments(self, of: str, length: int, step: str, means: Array | None = None) -> list[Any]:
        """Moments as of one place, see :meth:`Scaling.of_parts`."""
        if step == "squares":
            return self._sum("exact_moments", (of, means), [length])
        (n_rows, total), sums = self._sum("exact_moments", (of, None), [2, length])
        return [(n_rows, np.finfo(float).eps, None, total, sums)]

    def _sum(
        self, name: str, sent: tuple[Any, ...], sizes: list[int], about: str = ""
    ) -> list[Array]:
        total = self._masked.sum(name, sent, sizes, about=about)
        book_sum(self.ledger, total, self.n_clients, sum(sizes), array_bytes(sent) // 8)
        return total.values


def book_sum(
    ledger: Ledger, total: MaskedSum, n_clients: int, n_values: int, n_arguments: int
) -> None:
    """Book a masked sum of some values, as often as it was asked for."""
    asked, shared = total.n_asked, (8 * n_values, 8 * n_arguments)
    around = [
        size - asked * values for size, values in zip(total.message_bytes, shared, strict=True)
    ]
    for k in range(asked):
        ledger.book(
            up=n_clients * n_values,
            down=n_clients * n_arguments,
            clients=n_clients,
            shared_bytes=shared,
            envelope=(around[0], around[1]) if k == 0 else (0, 0),
        )


def _units_of(sent: dict[str, Any]) -> str:
    """Sizes of the numbers among arguments, such as a dispersion, in steps of a thousand."""
    sizes = [np.log2(abs(one)) / COARSE for one in sent.values() if isinstance(one, float) and one]
    return " ".join(f"{size:.0f}" for size in sizes)
