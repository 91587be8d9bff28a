"""The server's half of masked sums: it carries keys, and sees the sum."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .._typing import Array
from ..calls.answer_bounds import OutOfBounds
from ..exceptions import FederationError, PrivacyError
from .bounds import require
from .masks import BITS, INTRODUCED, KEY, MOST_ROOM, decoded, scale_of
from .serialization import size_of
from .sites import PlaceLost, Refused, raising

#: Bound of a sum of exact numbers that is tried first, and the largest one, as logarithms to the
#: base of 2.
ROOM = 30
#: Bits of a sum that are enough, and bits for terms that cancel in it where it has fewer.
PRECISE, CANCEL = 50, 8
#: Part of its bound by which the rounding of a sum may exceed it.
ROUNDING_OF_SUMS = 1e-12

#: A number as large as those by which places know what they keep.
SOME_NUMBER = 2**62
NO_PARTIES = np.zeros(0, dtype=bool)


class TooLarge(FederationError):
    """Raised if exact numbers do not fit a masked sum."""


class MaskedSum(NamedTuple):
    """A sum over parties.

    Attributes
    ----------
    values : list of ndarray
        Sums of the blocks, flat; none if parties may not be asked once more.
    n_parties : int
        Parties of the sum.
    n_asked : int
        How often parties were asked for it: again where one was lost, or had large numbers.
    message_bytes : tuple of int
        Bytes ``(up, down)`` of the messages of one place, without the list of parties.
    """

    values: list[Array]
    n_parties: int
    n_asked: int
    message_bytes: tuple[int, int]


class MaskedPlaces:
    """Places that answer masked sums, with keys for one fit.

    Parameters
    ----------
    places : list of Place
        The parties, each with the rows of some clients. One of this process counts as its
        ``n_parties`` clients.
    least : int
        Fewest parties of a sum.
    min_clients : int, default=1
        Fewest clients of all places of a sum.

    Raises
    ------
    FederationError
        If fewer answer.
    """

    def __init__(self, places: list[Any], least: int, min_clients: int = 1) -> None:
        self.places, self.least, self.number = places, least, -1
        self.min_clients = min_clients
        self.here = np.ones(len(places), dtype=bool)
        if len(places) > 1:
            found = self._ask(dict.fromkeys(range(len(places)), ()), "mask_key", _check_key)
            # The parties of the fit are those with a key.
            self.places = [places[k] for k in found]
            self._need(range(len(self.places)))
            keys = np.array([one["key"] for one in found.values()])
            proofs = [tuple(map(one.get, INTRODUCED[1:])) for one in found.values()]
            asked = {k: (k, keys, proofs) for k in range(len(keys))}
            agreed = self._ask(asked, "mask_agree", lambda said: None)
            self.here = np.isin(np.arange(len(keys)), list(agreed))
        #: Bounds of sums of exact numbers that are tried next, and those that some party needs,
        #: by what was asked and block.
        self._rooms: dict[str, tuple[list[int], list[int]]] = {}

    def sum(
        self,
        name: str,
        sent: tuple[Any, ...],
        sizes: list[int],
        bounds: list[float] | None = None,
        most: float = np.inf,
        about: str = "",
    ) -> MaskedSum:
        """One masked sum.

        Parameters
        ----------
        name : str
            Method of the places. Its last arguments are the number of the sum, the parties, and
            the bounds of exact numbers.
        sent : tuple
            Its first arguments.
        sizes : list of int
            Number of entries of each block.
        bounds : list of float, default=None
            Bounds of the sums of the blocks, where the places know them too; None finds some.
        most : int, default=inf
            How often parties may be asked, because parties are lost.
        about : str, default=""
            What the size of exact numbers depends on.

        Returns
        -------
        total : MaskedSum

        Raises
        ------
        FederationError
            If too few parties answer, or their numbers are too large.
        """
        first = [ROOM] * len(sizes), [-MOST_ROOM] * len(sizes)
        about = f"{name} {sent[0]} {len(sizes)} {about}"
        tried, needed = map(list, self._rooms.get(about, first))
        asked, fresh = 0, [False] * len(sizes)
        up = down = 0
        while True:
            some = np.flatnonzero(self.here).tolist()
            count = self._need(some)
            self.number, asked = self.number + 1, asked + 1
            rooms = [2.0**room for room in tried] if bounds is None else bounds
            settings = None if bounds is not None else np.array(rooms)
            whole = *sent, self.number, self.here.copy(), settings
            check = partial(_check_part, sizes=sizes, tried=tried if bounds is None else None)
            answers = self._ask(dict.fromkeys(some, whole), name, check)
            is_large = "large" in next(iter(answers.values()), ())
            answer = {"masked": np.zeros(len(sizes) if is_large else sum(sizes))}
            sizes_of_it = message_bytes(name, (*sent, self.number, NO_PARTIES, settings), answer)
            up, down = up + sizes_of_it[0], down + sizes_of_it[1]
            if len(answers) < len(some):
                # Masks with the lost parties do not cancel: the others take new ones.
                self.here = np.isin(np.arange(len(self.here)), list(answers))
                if asked >= most:
                    return MaskedSum([], 0, asked, (up, down))
                continue
            none = np.zeros(len(sizes), dtype=np.int64)
            large = np.array([answer.get("large", none) for answer in answers.values()])
            if large.any():
                for block in np.flatnonzero(large.any(axis=0)):
                    needed[block] = tried[block] = int(large[:, block].max())
                    fresh[block] = True
                if max(tried) > MOST_ROOM:
                    raise TooLarge(
                        "numbers of a masked sum are too large for fixed point: rescale X or y."
                    )
                continue
            total = np.zeros(sum(sizes), dtype=np.uint64)
            for answer in answers.values():
                total = total + answer["masked"]
            parts = np.split(total, np.cumsum(sizes)[:-1])
            values = [
                decoded(part, scale_of(room)) for part, room in zip(parts, rooms, strict=True)
            ]
            _check_sums(values, rooms)
            if bounds is None:
                blocks = zip(values, tried, needed, fresh, strict=True)
                finer = [_finer(*block) for block in blocks]
                self._rooms[about] = finer, needed
                if finer != tried:
                    tried = finer
                    continue
            return MaskedSum(values, count, asked, (up, down))

    def _need(self, some: Any) -> int:
        """Number of parties of some places, if it is enough."""
        count = sum(getattr(self.places[k], "n_parties", 1) for k in some)
        if count < self.least:
            raise FederationError(
                f"{count} parties (places, or clients of this process) answer a masked sum, and "
                f"at least {self.least} are needed."
            )
        check_clients([self.places[k] for k in some], self.min_clients)
        return count

    @property
    def there(self) -> list[Any]:
        """The places that have answered so far."""
        return [place for place, here in zip(self.places, self.here, strict=True) if here]

    def _ask(self, asked: dict[int, tuple[Any, ...]], name: str, check: Any) -> dict[int, Any]:
        """Answers of the parties that are asked, by their numbers."""
        return believed({k: self.places[k] for k in asked}, name, asked, check, name)[0]


def check_clients(places: list[Any], least: int) -> None:
    """Raise a FederationError if the places that answer have too few clients."""
    n = sum(len(place.places) for place in places) if least > 1 else least
    if n < least:
        raise FederationError(f"places of {n} clients answer, and min_clients={least}.")


def message_bytes(name: str, sent: Any, answer: Any) -> tuple[int, int]:
    """Bytes ``(up, down)`` of the messages of a place that is in another process."""
    request: tuple[Any, ...] = (SOME_NUMBER, [], [], name, sent)
    return size_of(("done", answer, None)), size_of(request)


def started(place: Any, name: str, arguments: tuple[Any, ...]) -> Callable[[], Any]:
    """Let a place begin to answer; what it raises at once is raised when it is waited for."""
    try:
        return place.start(name, *arguments)
    except PlaceLost as error:
        return raising(error)


def believed(
    places: dict[int, Any], name: str, asked: Any, check: Any, about: str, more: str = ""
) -> tuple[dict[int, Any], list[str]]:
    """Answers of places, without those that are lost or sent what a check does not believe.

    Parameters
    ----------
    places : dict of int to Endpoint
        The places, by numbers.
    name : str
        What they are asked.
    asked : dict of int to tuple
        Arguments of each.
    check : callable
        Raises OutOfBounds unless an answer may be believed.
    about, more : str
        What errors say of the question, and what follows if a place refuses it.

    Returns
    -------
    answers : dict of int to object
        One of each place that answers, by its number.
    lost : list of str
        Why others are not there.
    """
    waiting = {k: started(place, name, asked[k]) for k, place in places.items()}
    answers, lost = {}, []
    for k, wait in waiting.items():
        try:
            answer = wait()
            check(answer)
            answers[k] = answer
        except OutOfBounds as error:
            places[k].disbelieve(f"{about}: {error}")
            lost.append(str(error))
        except Refused as error:
            raise PrivacyError(f"a place refuses {about}: {error}.{more}") from error
        except PlaceLost as error:
            lost.append(str(error))
    return answers, lost


def _check_sums(values: list[Array], rooms: list[float]) -> None:
    """Raise a FederationError for sums beyond their bounds: each party was within its part."""
    for value, room in zip(values, rooms, strict=True):
        size = float(np.abs(value).max(initial=0.0))
        if size > room * (1.0 + ROUNDING_OF_SUMS):
            raise FederationError(
                f"a masked sum has an entry of size {size:.3g}, and its bound is {room:.3g}: the "
                "masks of the places do not cancel, as where one sent its part of another sum."
            )


def _finer(values: Array, room: int, needed: int, fresh: bool) -> int:
    """The next bound: a smaller one if a sum has few bits and no party needs so large a one.

    What parties needed for the sum before, of another model, does not count if next to nothing is
    left of this one.
    """
    size = float(np.abs(values).max(initial=0.0))
    bits = BITS - room + np.log2(size) if size > 0.0 else 0.0
    if bits >= PRECISE:
        return room
    needed = needed if fresh or bits >= CANCEL else -MOST_ROOM
    least = int(np.ceil(np.log2(size))) + CANCEL if size > 0.0 else -MOST_ROOM
    return min(room, max(least, needed))


def _check_key(said: Any) -> None:
    """Raise OutOfBounds unless a place has sent its key."""
    whole = isinstance(said, dict) and said.keys() == {*INTRODUCED}
    require(whole, "it sent something else than a key of masked sums")
    _check_array(said["key"], (KEY,), np.uint8)


def _check_part(answer: Any, sizes: list[int], tried: list[int] | None) -> None:
    """Raise OutOfBounds unless a place has sent its part of a sum.

    Instead of numbers beyond the bounds that are tried it sends larger bounds.
    """
    whole = isinstance(answer, dict) and len(answer) == 1
    if whole and tried is not None and "large" in answer:
        large = answer["large"]
        _check_array(large, (len(sizes),), np.int64)
        larger = (large == 0) | (large > tried)
        require(large.any() and larger.all(), "it asked for no larger bounds")
        return
    require(whole and "masked" in answer, "it sent something else than its part of a masked sum")
    _check_array(answer["masked"], (sum(sizes),), np.uint64)


def _check_array(value: Any, shape: tuple[int, ...], dtype: Any) -> None:
    array = isinstance(value, np.ndarray) and value.shape == shape and value.dtype == dtype
    require(array, f"it sent something else than {shape} of {np.dtype(dtype)}")
