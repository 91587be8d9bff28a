"""Masked sums: a server learns the sum of the places' arrays, and no array of a single place.

Secure aggregation by pairwise masks (Bonawitz et al. 2017; the graph of Bell et al. 2020).  Every
place is a party.  It sends its array as 64-bit fixed-point numbers plus masks modulo 2^64: a mask
for each of its neighbours in a graph, with opposite signs at the two ends, and one of its own.
Pairwise masks cancel in the sum.  The seeds of the others are shared by Shamir's scheme, so that
enough neighbours can reveal

* of a party that has sent its array, the seed of the mask of its own,
* of a party that has not, the key of its pairwise masks,

and never both, so that what a party has sent can not be unmasked by itself.  Keys are agreed on by
X25519, streams are ChaCha20, shares travel through the server encrypted (ChaCha20-Poly1305).
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from .._typing import Array
from .sites import Refused

#: Prime of the field of the shares, a Mersenne prime above all secrets of 256 bits.
PRIME = 2**521 - 1
#: Bytes of a share, of an encrypted one, and of keys and seeds.
SHARE, SEALED, KEY = 66, 66 + 16, 32
#: Bits of a sum in fixed point, without its sign.
BITS = 62
#: Up to so many parties every one is a neighbour of every other.
COMPLETE = 24
#: Neighbours of a party among more.
DEGREE = 24


def _need_cryptography() -> Any:
    try:
        import cryptography
    except ImportError as error:
        raise ImportError(
            "masked sums need cryptography, which is not installed. Install it: python -m pip "
            'install "skcfl[privacy]".'
        ) from error
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


def stream(key: bytes, n: int) -> Array:
    """So many random numbers of 64 bits from a key."""
    _need_cryptography()
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * n)), dtype="<u8").astype(np.uint64)


def derived(secret: bytes, *about: Any) -> bytes:
    """A key for one purpose from a secret."""
    _need_cryptography()
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = ":".join(map(str, about)).encode()
    return HKDF(SHA256(), KEY, salt=None, info=info).derive(secret)


def split(secret: bytes, places: Array, threshold: int) -> list[bytes]:
    """Shares of a secret for parties by their numbers, `threshold` of which reveal it."""
    number = int.from_bytes(secret, "big")
    coefficients = [number, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = []
    for place in places.tolist():
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * (place + 1) + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE, "big"))
    return shares


def joined_shares(shares: dict[int, bytes]) -> bytes:
    """The secret of shares, by the numbers of the parties that had them.

    Raises
    ------
    ValueError
        If they are not shares of one secret.
    """
    points = {int(place) + 1: int.from_bytes(share, "big") for place, share in shares.items()}
    total = 0
    for x, y in points.items():
        above, below = 1, 1
        for other in points:
            if other != x:
                above = above * -other % PRIME
                below = below * (x - other) % PRIME
        total = (total + y * above * pow(below, -1, PRIME)) % PRIME
    if total >= 2 ** (8 * KEY):
        raise ValueError("the shares of a mask do not belong together.")
    return total.to_bytes(KEY, "big")


def neighbours_of(n_parties: int, seed: int) -> list[Array]:
    """Neighbours of each party: all others, or a random regular graph of many."""
    everyone = np.arange(n_parties)
    if n_parties <= COMPLETE:
        return [np.delete(everyone, k) for k in range(n_parties)]
    order = np.random.default_rng(seed).permutation(n_parties)
    position = np.argsort(order)
    steps = np.r_[-(DEGREE // 2) : 0, 1 : DEGREE // 2 + 1]
    return [np.sort(order[(position[k] + steps) % n_parties]) for k in range(n_parties)]


def threshold_of(n_neighbours: int) -> int:
    """Shares that reveal a secret: more than half of those of the neighbours and of its party.

    No two secrets of a party can both have so many where no holder reveals both.
    """
    return (n_neighbours + 1) // 2 + 1


# ---------------------------------------------------------------------------------- a party


class MaskParty:
    """A place in masked sums: its keys, its shares, and what it has revealed.

    Parameters
    ----------
    least : int
        Fewest parties that a sum may be over.
    """

    def __init__(self, least: int) -> None:
        _need_cryptography()
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self.least = least
        self._key = X25519PrivateKey.generate()
        self._place, self._neighbours = -1, np.zeros(0, dtype=int)
        self._secrets: dict[int, bytes] = {}
        self._key_shares: dict[int, bytes] = {}
        self._seeds: dict[int, bytes] = {}
        self._seed_shares: dict[int, bytes] = {}
        self._revealed: set[int] = set()
        #: Parties with a key that was revealed: they are lost for good.
        self._lost = np.zeros(0, dtype=bool)

    def public_key(self) -> Array:
        """The public key, (32,) of bytes."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        raw = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return np.frombuffer(raw, dtype=np.uint8)

    def agree(self, place: int, keys: Array, seed: int) -> Array:
        """Agree on secrets with the neighbours; shares of the key for them, encrypted.

        Parameters
        ----------
        place : int
            Number of this party.
        keys : ndarray of shape (n_parties, 32) of uint8
            Public keys of all.
        seed : int
            Seed of the graph.

        Returns
        -------
        shares : ndarray of shape (n_neighbours, SEALED) of uint8
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        n = len(keys)
        if self._secrets:
            raise Refused("it has agreed on the keys of masked sums before")
        if n < self.least:
            raise Refused(f"{n} places take part in masked sums, and {self.least} is the least")
        if not np.array_equal(keys[place], self.public_key()) or len(np.unique(keys, axis=0)) < n:
            raise Refused("the keys of masked sums are not those of different places")
        self._place, self._lost = place, np.zeros(n, dtype=bool)
        self._neighbours = neighbours_of(n, seed)[place]
        for other in self._neighbours.tolist():
            public = X25519PublicKey.from_public_bytes(keys[other].tobytes())
            self._secrets[other] = self._key.exchange(public)
        raw = self._key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        return self._sealed(raw, "key")

    def accept(self, shares: Array) -> None:
        """Take the neighbours' shares of their keys, (n_neighbours, SEALED)."""
        self._key_shares = self._opened(shares, "key")

    def masked(self, number: int, values: Array) -> tuple[Array, Array]:
        """A vector behind masks, and shares of the seed of its own mask.

        Parameters
        ----------
        number : int
            Of the sum; each is asked for once.
        values : ndarray of shape (n,) of uint64
            The vector.

        Returns
        -------
        masked : ndarray of shape (n,) of uint64
        shares : ndarray of shape (n_neighbours, SEALED) of uint8
        """
        if not self._key_shares:
            raise Refused("it has no shares of the keys of masked sums yet")
        if number in self._seeds:
            raise Refused(f"it has answered the masked sum {number} before")
        seed = secrets.token_bytes(KEY)
        self._seeds[number] = seed
        total = values + stream(seed, len(values))
        for other in self._neighbours[~self._lost[self._neighbours]].tolist():
            mask = stream(derived(self._secrets[other], "mask", number), len(values))
            total = total + mask if self._place < other else total - mask
        sealed = self._sealed(seed, f"seed {number}")
        self._seed_shares[number] = self._last_part
        return total, sealed

    def unmask(self, number: int, here: Array, shares: Array) -> Array:
        """Shares that unmask a sum: of seeds of parties that have sent, of keys of the others.

        Parameters
        ----------
        number : int
            Of the sum.
        here : ndarray of shape (n_parties,) of bool
            Parties with a vector in the sum.
        shares : ndarray of shape (n_neighbours, SEALED) of uint8
            The neighbours' shares of their seeds, zeros of those that have sent nothing.

        Returns
        -------
        revealed : ndarray of shape (n_neighbours + 1, SHARE) of uint8
            The last one is of the party's own seed.
        """
        if number not in self._seeds or number in self._revealed:
            raise Refused(f"it unmasks a sum once, after its own part of it: not {number}")
        here = np.asarray(here, dtype=bool)
        if here.shape != self._lost.shape or (here & self._lost).any():
            raise Refused("a party of the sum was lost before")
        if np.count_nonzero(here) < self.least:
            raise Refused(
                f"the sum would be over {np.count_nonzero(here)} places, and {self.least} is the "
                "least"
            )
        if not here[self._place]:
            raise Refused("its own part is not in the sum")
        self._revealed.add(number)
        self._lost = self._lost | ~here
        sent = here[self._neighbours]
        seeds = self._opened(shares, f"seed {number}", sent)
        out = np.zeros((len(self._neighbours) + 1, SHARE), dtype=np.uint8)
        out[-1] = np.frombuffer(self._seed_shares[number], dtype=np.uint8)
        for k, other in enumerate(self._neighbours.tolist()):
            share = seeds[other] if sent[k] else self._key_shares[other]
            out[k] = np.frombuffer(share, dtype=np.uint8)
        return out

    def _sealed(self, secret: bytes, about: str) -> Array:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        count = len(self._neighbours)
        holders = np.append(self._neighbours, self._place)
        parts = split(secret, holders, threshold_of(count))
        self._last_part = parts[-1]
        out = np.zeros((count, SEALED), dtype=np.uint8)
        for k, other in enumerate(self._neighbours.tolist()):
            key = derived(self._secrets[other], "share", about, self._place)
            sealed = ChaCha20Poly1305(key).encrypt(bytes(12), parts[k], None)
            out[k] = np.frombuffer(sealed, dtype=np.uint8)
        return out

    def _opened(self, shares: Array, about: str, some: Array | None = None) -> dict[int, bytes]:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        if np.shape(shares) != (len(self._neighbours), SEALED):
            raise Refused("the shares of masked sums are not one for each neighbour")
        opened = {}
        for k, other in enumerate(self._neighbours.tolist()):
            if some is not None and not some[k]:
                continue
            key = derived(self._secrets[other], "share", about, other)
            try:
                part = ChaCha20Poly1305(key).decrypt(bytes(12), shares[k].tobytes(), None)
            except InvalidTag:
                raise Refused("a share of a masked sum was changed on its way") from None
            opened[other] = part
        return opened


# ---------------------------------------------------------------------------------- a server


def unmasked(
    vectors: dict[int, Array],
    revealed: dict[int, Array],
    neighbours: list[Array],
    keys: Array,
    gone: Array,
    number: int,
) -> Array:
    """The sum of masked vectors.

    Parameters
    ----------
    vectors : dict of int to ndarray of shape (n,) of uint64
        Masked vectors by party.
    revealed : dict of int to ndarray of shape (n_neighbours + 1, SHARE)
        What parties reveal, see :meth:`MaskParty.unmask`.
    neighbours : list of ndarray
        Of each party.
    keys : ndarray of shape (n_parties, 32)
        Public keys.
    gone : ndarray of shape (n_parties,) of bool
        Parties that were lost before this sum: the others use no mask with them.
    number : int
        Of the sum.

    Returns
    -------
    total : ndarray of shape (n,) of uint64

    Raises
    ------
    ValueError
        If too few parties reveal their shares.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    size = len(next(iter(vectors.values())))
    total = np.zeros(size, dtype=np.uint64)
    for vector in vectors.values():
        total = total + vector
    found: dict[int, dict[int, bytes]] = {}
    for holder, shares in revealed.items():
        for k, other in enumerate(neighbours[holder].tolist()):
            found.setdefault(other, {})[holder] = shares[k].tobytes()
        found.setdefault(holder, {})[holder] = shares[-1].tobytes()
    for party in range(len(keys)):
        if gone[party]:
            continue
        shares = found.get(party, {})
        threshold = threshold_of(len(neighbours[party]))
        if len(shares) < threshold:
            raise ValueError(
                f"{len(shares)} of {len(neighbours[party])} neighbours reveal their share of a "
                f"masked sum, and {threshold} are needed."
            )
        secret = joined_shares(shares)
        if party in vectors:
            total = total - stream(secret, size)
            continue
        private = X25519PrivateKey.from_private_bytes(secret)
        for other in neighbours[party].tolist():
            if other in vectors:
                public = X25519PublicKey.from_public_bytes(keys[other].tobytes())
                mask = stream(derived(private.exchange(public), "mask", number), size)
                total = total - mask if other < party else total + mask
    return total
