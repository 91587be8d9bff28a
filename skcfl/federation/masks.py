"""Masked sums: a server learns the sum of the parties' arrays, and no array of a single party.

Secure aggregation by pairwise masks on a sparse graph (Bonawitz et al. 2017; Bell et al. 2020).
Every place is a party: a site, a worker, or this process with all of its clients, which hide
nothing from it.  A party sends its array as 64-bit fixed-point numbers plus masks modulo 2^64:
one for each of its neighbours, with opposite signs at the two ends.  The masks cancel in the sum
over all parties that were asked.

Neighbours agree on keys by X25519, once a fit.  The masks are streams of AES in counter mode that
begin at a number made of the number of the sum and of the parties in it.  So masks cancel only
between parties that were sent the same list of parties, and a sum without a lost party takes new
masks: the others are asked once more, and nothing of the masks is ever revealed.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np

from .._checks import needs
from .._typing import Array
from .sites import PlaceLost, Refused

#: Bytes of a key, and what is signed before it.
KEY, PURPOSE = 32, b"skcfl: key of masked sums: "
#: What a party says before masks are agreed on.
INTRODUCED = "key", "certificate", "signature"
#: What a party says that is not the one that made the keys.
NO_KEYS = "it has no keys of masked sums, as where it was started again"
#: Calls of exact masked sums, and the most models that fits ask about: sums by cluster are of no
#: more than one, and a stack has four fits.
EXACT = {"posterior_sums": 1, "posterior_products": 1, "left_out_sums": 4}
#: Bits of a sum in fixed point, without its sign.
BITS = 62
#: Step of the magnitudes that parties tell, and the one of numbers that are not finite: as
#: logarithms to the base of 2.
COARSE, INFINITE = 10, 1000
#: Largest bound of a sum, as a logarithm: larger numbers, as of a step too long, are not summed.
MOST_ROOM = 200
#: Sums in a row with bounds that a party's finite numbers may exceed; servers need one.
MOST_LARGE = 4
#: Neighbours of a party; up to so many others are all of them neighbours.
DEGREE = 24


def need_cryptography() -> Any:
    """The package cryptography; raise an ImportError that says how to install it."""
    with needs(
        "masked sums need cryptography, which is not installed. Install it: python -m pip install "
        '"skcfl[privacy]".'
    ):
        import cryptography
    return cryptography


# -------------------------------------------------------------------------------- arithmetic


def encoded(values: Array, scale: float) -> Array:
    """Floats as 64-bit fixed-point numbers modulo 2^64."""
    return np.round(values * scale).astype(np.int64).astype(np.uint64)


def decoded(total: Array, scale: float) -> Array:
    """The floats of :func:`encoded`, or of a sum of such numbers."""
    return total.astype(np.int64) / scale


def scale_of(bound: float) -> float:
    """Fixed-point scale at which sums up to a bound do not overflow: a power of two."""
    return 2.0 ** np.floor(BITS - np.log2(bound))


def rooms_of(values: list[Array], rooms: Any, n_parties: int) -> Array:
    """Bounds that exact sums need, where a party's part of them exceeds its part of a bound.

    Parameters
    ----------
    values : list of ndarray
        What the party adds to each block.
    rooms : ndarray of shape (n_blocks,)
        Bounds of the sums.
    n_parties : int
        Number of parties.

    Returns
    -------
    large : ndarray of shape (n_blocks,) of int
        Logarithms to the base of 2, rounded up to a multiple of `COARSE` other than 0 because they
        are sent without masks; 0 for blocks within their bound.
    """
    large = np.zeros(len(values), dtype=np.int64)
    for k, (value, room) in enumerate(zip(values, rooms, strict=True)):
        size = float(np.abs(value).max(initial=0.0)) * n_parties
        if not size <= room:
            steps = int(np.ceil(np.log2(size) / COARSE)) if np.isfinite(size) else 0
            large[k] = COARSE * (steps or 1) if np.isfinite(size) else INFINITE
    return large


# --------------------------------------------------------------------------------- the graph


class Graph:
    """Which parties of a fit share masks: all of few, the nearest on a shuffled ring of many.

    Parameters
    ----------
    n_parties : int
        Number of parties.
    seed : int
        Seed of the ring.

    Attributes
    ----------
    neighbours : ndarray of shape (n_parties, min(n_parties - 1, DEGREE))
        Neighbours of each party.
    """

    def __init__(self, n_parties: int, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(n_parties)
        self._position = np.argsort(order)
        self._reach = min(DEGREE // 2, (n_parties - 1) // 2)
        if n_parties <= DEGREE + 1:
            # On a ring of few the farthest may be reached both ways, or not at all.
            self._reach = n_parties
            others = [np.delete(np.arange(n_parties), k) for k in range(n_parties)]
            self.neighbours = np.array(others, dtype=int).reshape(n_parties, n_parties - 1)
            return
        steps = np.r_[-self._reach : 0, 1 : self._reach + 1]
        self.neighbours = order[(self._position[:, None] + steps) % n_parties]

    def component(self, place: int, here: Array) -> int:
        """Number of parties that one is connected with, itself included, where some are here.

        Parameters
        ----------
        place : int
            The party.
        here : ndarray of shape (n_parties,) of bool
            Parties of the sum.
        """
        if here.all():
            return len(here)
        places = np.sort(self._position[here])
        gaps = np.diff(places, append=places[0] + len(here))
        cuts = np.flatnonzero(gaps > self._reach)
        if len(cuts) < 2:  # one cut leaves the ring connected
            return len(places)
        at = int(np.searchsorted(places, self._position[place]))
        before = int(np.searchsorted(cuts, at))
        first, last = cuts[before - 1] + 1, cuts[before % len(cuts)]
        return int((last - first) % len(places)) + 1


@lru_cache(maxsize=8)
def graph_of(keys: bytes) -> Graph:
    """The graph of parties with these public keys, joined: no server chooses it."""
    digest = hashlib.sha256(keys).digest()
    return Graph(len(keys) // KEY, int.from_bytes(digest[:8], "big"))


# ---------------------------------------------------------------------------------- a party


class MaskParty:
    """A place in masked sums: its keys, and the sums that it has answered.

    Parameters
    ----------
    least : int
        Fewest parties that a sum may be over.
    identity : SiteIdentity, default=None
        What signs the key of the party and verifies those of the others; None signs nothing.
    is_enough : bool, default=False
        Whether its array is a sum over enough clients, and may be sent without masks if there
        is no other party.
    """

    def __init__(self, least: int, is_enough: bool = False, identity: Any = None) -> None:
        self.least, self.is_enough, self._last, self._n_large = least, is_enough, -1, 0
        self._key: Any = None
        self._identity = identity
        self._place, self._streams = -1, []  # type: int, list[tuple[int, Any]]
        self._here = np.zeros(0, dtype=bool)

    def public_key(self) -> Array:
        """The public key, (32,) of bytes."""
        need_cryptography()
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        if self._key is None:
            self._key = X25519PrivateKey.generate()
        return np.frombuffer(self._key.public_key().public_bytes_raw(), dtype=np.uint8)

    def introduction(self) -> dict[str, Array]:
        """The public key with its signature, which is empty if the party has no identity."""
        key = self.public_key()
        if self._identity is None:
            return {"key": key} | dict.fromkeys(INTRODUCED[1:], np.zeros(0, dtype=np.uint8))
        signed = zip(INTRODUCED[1:], self._identity.sign(PURPOSE + key.tobytes()), strict=True)
        return {"key": key} | {k: np.frombuffer(part, dtype=np.uint8) for k, part in signed}

    def _check_signers(self, keys: Array, proofs: Any) -> None:
        """Raise Refused unless each key is signed by another party that is expected."""
        if self._identity is None:
            return
        if not isinstance(proofs, list | tuple) or len(proofs) != len(keys):
            raise Refused("the keys of masked sums are not signed")
        signers = []
        for key, proof in zip(keys, proofs, strict=True):
            whole = isinstance(proof, list | tuple) and len(proof) == 2
            if not whole or not all(_is_bytes(part) for part in proof):
                raise Refused("the keys of masked sums are not signed")
            message, parts = PURPOSE + key.tobytes(), [part.tobytes() for part in proof]
            signers.append(self._identity.verify(message, *parts))
        if len(set(signers)) < len(signers):
            raise Refused("a place has signed several keys of masked sums")

    def agree(self, place: int, keys: Array, proofs: Any = None) -> None:
        """Agree on masks with the neighbours.

        Parameters
        ----------
        place : int
            Number of this party.
        keys : ndarray of shape (n_parties, 32) of uint8
            Public keys of all.
        proofs : list of (ndarray, ndarray), default=None
            Certificate and signature of each.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        if self._key is None:
            raise PlaceLost(NO_KEYS)
        if self._streams:
            raise Refused("it has agreed on the keys of masked sums before")
        whole = isinstance(keys, np.ndarray) and keys.dtype == np.uint8
        if not whole or keys.ndim != 2 or keys.shape[1] != KEY:
            raise Refused("the keys of masked sums are not 32 bytes of each place")
        n = len(keys)
        if n < max(self.least, 2):
            raise Refused(f"{n} places take part in masked sums, and {self.least} is the least")
        listed = isinstance(place, int) and 0 <= place < n
        listed = listed and np.array_equal(keys[place], self.public_key())
        if not listed or len(np.unique(keys, axis=0)) < n:
            raise Refused("the keys of masked sums are not those of different places")
        self._check_signers(keys, proofs)
        every = keys.tobytes()
        self._graph, self._place = graph_of(every), place
        self._here, about = np.ones(n, dtype=bool), hashlib.sha256(every).digest()
        for other in self._graph.neighbours[place].tolist():
            public = X25519PublicKey.from_public_bytes(keys[other].tobytes())
            secret = HKDF(SHA256(), KEY, salt=None, info=about).derive(self._key.exchange(public))
            cipher = Cipher(algorithms.AES(secret), modes.CTR(bytes(16)))
            self._streams.append((other, cipher.encryptor()))

    @property
    def n_parties(self) -> int:
        """Number of parties that agreed on keys, itself included."""
        return max(len(self._here), 1)

    def masked(self, number: int, here: Array, values: Array, asked: bytes = b"") -> Array:
        """A vector behind masks.

        Parameters
        ----------
        number : int
            Of the sum; larger than that of any sum before.
        here : ndarray of shape (n_parties,) of bool
            Parties of the sum.
        values : ndarray of shape (n,) of uint64
            The vector.
        asked : bytes, default=b""
            The question: masks of parties that were asked different ones do not cancel.

        Returns
        -------
        masked : ndarray of shape (n,) of uint64
        """
        self.check(number, here)
        self._last, self._n_large = number, 0
        if not self._streams:
            return values
        self._here = here
        about = number.to_bytes(8, "big") + np.packbits(here).tobytes() + asked
        # The rest counts blocks of the stream.
        nonce = hashlib.sha256(about).digest()[:12] + bytes(4)
        total, zeros = values.copy(), bytes(8 * len(values))
        for other, stream in self._streams:
            if here[other]:
                stream.reset_nonce(nonce)
                mask = np.frombuffer(stream.update(zeros), dtype="<u8")
                total = total + mask if self._place < other else total - mask
        return total

    def exceed(self, number: int, here: Array, large: Array) -> None:
        """Take the number of a sum with bounds that the vector exceeds: no server searches for it.

        Parameters
        ----------
        number, here : object
            As of :meth:`masked`.
        large : ndarray of int
            Larger bounds, as of :func:`rooms_of`.
        """
        self.check(number, here)
        self._last, self._n_large = number, self._n_large + bool((large <= MOST_ROOM).all())
        if self._n_large > MOST_LARGE:
            raise Refused(f"its numbers exceed the bounds of {MOST_LARGE} masked sums in a row")

    def check(self, number: int, here: Array) -> None:
        """Raise an error unless the party may answer a sum; parameters as of :meth:`masked`."""
        if not self._streams and not self.is_enough:
            raise PlaceLost(NO_KEYS)
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**63:
            raise Refused("the number of a masked sum is none")
        if number <= self._last:
            raise Refused(f"it has answered the masked sum {number}, or a later one, before")
        if not self._streams:
            return
        whole = isinstance(here, np.ndarray) and here.dtype == bool
        if not whole or here.shape != self._here.shape:
            raise Refused("the parties of a masked sum are not listed")
        if (here & ~self._here).any():
            raise Refused("a party of the sum was left out of one before")
        if not here[self._place]:
            raise Refused("its own part is not in the sum")
        count = self._graph.component(self._place, here)
        if count < self.least:
            raise Refused(f"the sum would be over {count} places, and {self.least} is the least")


def _is_bytes(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1
