"""The server's half of masked sums: it carries keys and shares, and sees the sum."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .._typing import Array
from ..exceptions import FederationError, PrivacyError
from .masks import SEALED, SHARE, decoded, neighbours_of, scale_of, unmasked
from .sites import PlaceLost, Refused


class MaskedPlaces:
    """Places that answer masked sums, with keys for one fit.

    Parameters
    ----------
    places : list of Place
        The parties, each with the rows of some clients.
    least : int
        Fewest parties of a sum.

    Raises
    ------
    FederationError
        If fewer answer.
    """

    def __init__(self, places: list[Any], least: int) -> None:
        self.places, self.least = places, least
        first = self._ask(range(len(places)), "mask_key", lambda k: ())
        # The parties of the fit are those with a key.
        self.places = [places[k] for k in sorted(first)]
        self.keys = np.array([_bytes(first[k], (32,)) for k in sorted(first)])
        self._need(len(self.places))
        seed = secrets.randbits(31)
        self.neighbours = neighbours_of(len(self.places), seed)
        everyone = range(len(self.places))
        sealed = self._ask(everyone, "mask_agree", lambda k: (k, self.keys, seed))
        if len(sealed) < len(self.places):
            raise FederationError("a place was lost while keys of masked sums were exchanged")
        routed = self._routed(sealed)
        self._ask(everyone, "mask_accept", lambda k: (routed[k],))
        self.gone = np.zeros(len(self.places), dtype=bool)

    def sum(self, sent: tuple[Any, ...], number: int, sizes: list[tuple[int, float]]) -> Any:
        """One masked sum.

        Parameters
        ----------
        sent : tuple
            Arguments of ``release``, without the number.
        number : int
            Of the sum.
        sizes : list of (int, float)
            Number of entries of each block, and the bound of its sum.

        Returns
        -------
        values : list of ndarray
            Sums of the blocks, flat.
        n_parties : int
            Parties of the sum.
        """
        length = sum(size for size, _ in sizes)
        there = np.flatnonzero(~self.gone).tolist()
        answers = self._ask(there, "release", lambda k: (*sent, number))
        vectors, sealed = {}, {}
        for k, answer in answers.items():
            whole = isinstance(answer, dict) and answer.keys() == {"masked", "shares"}
            if not whole:
                raise PrivacyError("a place answered a masked sum by something else.")
            vectors[k] = _bytes(answer["masked"], (length,), np.uint64)
            sealed[k] = answer["shares"]
        self._need(len(vectors))
        here = np.isin(np.arange(len(self.places)), list(vectors))
        routed = self._routed(sealed)
        revealed = self._ask(list(vectors), "mask_reveal", lambda k: (number, here, routed[k]))
        shares = {
            k: _bytes(value, (len(self.neighbours[k]) + 1, SHARE)) for k, value in revealed.items()
        }
        try:
            total = unmasked(vectors, shares, self.neighbours, self.keys, self.gone, number)
        except ValueError as error:
            raise FederationError(str(error)) from error
        self.gone = ~here
        cuts = np.cumsum([size for size, _ in sizes])[:-1]
        parts = np.split(total, cuts)
        values = [
            decoded(part, scale_of(room)) for part, (_, room) in zip(parts, sizes, strict=True)
        ]
        return values, len(vectors)

    def _need(self, count: int) -> None:
        if count < self.least:
            raise FederationError(
                f"{count} places answer a masked sum, and at least {self.least} are needed."
            )

    def _routed(self, sealed: dict[int, Any]) -> list[Array]:
        """Shares as each party gets them, zeros of parties that sent none."""
        out = []
        for k, others in enumerate(self.neighbours):
            rows = np.zeros((len(others), SEALED), dtype=np.uint8)
            for at, other in enumerate(others.tolist()):
                if other in sealed:
                    shape = (len(self.neighbours[other]), SEALED)
                    place = int(np.searchsorted(self.neighbours[other], k))
                    rows[at] = _bytes(sealed[other], shape)[place]
            out.append(rows)
        return out

    def _ask(
        self, some: Any, name: str, arguments: Callable[[int], tuple[Any, ...]]
    ) -> dict[int, Any]:
        """Answers of some parties, without those that are lost."""
        waiting = {k: started(self.places[k], name, arguments(k)) for k in some}
        answers = {}
        for k, wait in waiting.items():
            try:
                answers[k] = wait()
            except Refused as error:
                raise PrivacyError(f"a place refuses {name}: {error}.") from error
            except PlaceLost:
                continue
        return answers


def started(place: Any, name: str, arguments: tuple[Any, ...]) -> Callable[[], Any]:
    """Let a place begin to answer; what it raises at once is raised when it is waited for."""
    try:
        return place.start(name, *arguments)
    except PlaceLost as error:
        return partial(_raise, error)


def _raise(error: Exception) -> None:
    raise error


def _bytes(value: Any, shape: tuple[int, ...], dtype: Any = np.uint8) -> Array:
    """An array of a message, checked."""
    array = isinstance(value, np.ndarray) and value.shape == shape and value.dtype == dtype
    if not array:
        raise PrivacyError(f"a place sent something else than {shape} of {np.dtype(dtype)}.")
    return value
