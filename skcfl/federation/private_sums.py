"""Client-level privacy as a server asks for it: private federations, and sums of releases."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from .._checks import LARGEST
from ..exceptions import FederationError, PrivacyError
from ..numerics.gaussian_mechanism import (
    epsilon_of,
    multiplier_of,
    sampled_epsilon,
    sampled_multiplier,
)
from .bounds import require
from .ledger import Ledger
from .masked_sums import MaskedPlaces, MaskedSum, believed, check_clients, message_bytes
from .privacy import ClientPrivacy, scaling_of, target_units
from .scaling import UserUnits
from .summed_pool import SummedPool, book_sum

if TYPE_CHECKING:
    from .._typing import Array
    from ..calls.releases import Release
    from ..models import LocalModel
    from .federation import Federation
    from .handshake import Handshake
    from .released import ReleasedFederation


class Protected:
    """The part of a federation that makes private ones."""

    #: What a private fit does where noise drowns what clients have in common.
    on_noise: Literal["local", "error"] = "local"

    def private(
        self,
        epsilon: float,
        delta: float = 1e-5,
        unit: str = "client",
        bounds: dict[str, Any] | None = None,
        *,
        on_noise: Literal["local", "error"] = "local",
        n_fits: int = 1,
        participation: float = 1.0,
        random_state: int | None = None,
    ) -> Self:
        """The same clients under client-level differential privacy, with an account of its own.

        Clients of the returned federation answer noisy sums only, until the budget is spent: one
        fit spends it all unless `n_fits` says otherwise. Everything that an estimator learns from
        it is (epsilon, delta)-private. Two federations are neighbours if one is the other without
        the rows of one client; the number of clients is public.

        Parameters
        ----------
        epsilon, delta, unit, bounds, n_fits, participation, random_state : object
            As of :class:`~skcfl.federation.ClientPrivacy`.
        on_noise : {"local", "error"}, default="local"
            What a fit does if the noise, which is known beforehand, would drown what clients have
            in common. "local" warns, releases nothing and leaves each client with a model of its
            own rows; "error" raises a PrivacyError.

        Returns
        -------
        federation : Federation
            For ``fit_federation`` of :class:`~skcfl.PartialPooling`, the first choice, and
            others that need sums only. Estimators that need more raise a PrivacyError.

        Raises
        ------
        ValueError
            If a number is out of its range, or bounds are missing.
        PrivacyError
            If the clients are private or masked already: :meth:`masked` comes last. If the rows
            are elsewhere: their owners declare privacy in their policy.
        """
        if on_noise not in ("local", "error"):
            raise ValueError(f"on_noise must be 'local' or 'error', got {on_noise!r}.")
        if unit != "client":
            raise ValueError(
                f"unit must be 'client', got {unit!r}; released() protects single records."
            )
        self._check_owner("private")
        self._check_undeclared("private")
        how: dict[str, Any] = {"n_fits": n_fits, "random_state": random_state}
        how["participation"] = participation
        federation = self._under(ClientPrivacy(epsilon, delta, unit, bounds, **how))
        federation.on_noise = on_noise
        return federation

    def masked(self, least_clients: int = 3, bounds: dict[str, Any] | None = None) -> Self:
        """The same clients, with a server that sees their sums and nothing else.

        Each place adds random masks to its sums that cancel in the total over all places, such as
        sites. The clients of this process are one place, which adds them up without masks:
        nothing in a process is hidden from it. If a place is lost, the others are asked again with
        new masks. After :meth:`private` the noise is inside the masks: each party adds its share,
        so that the sum over `least_clients` parties has all of it.

        Parameters
        ----------
        least_clients : int, default=3
            Fewest parties of a sum: clients of this process, or places elsewhere. They refuse a
            sum over fewer. More is better under privacy: noise grows like the number of parties
            over this one.
        bounds : dict, default=None
            As of :class:`~skcfl.federation.ClientPrivacy`; not after :meth:`private`. Fits that
            find what a fit without masks does, see the page "Privacy", measure their units: None
            is enough for regressors, ``{"classes": [...]}`` for classifiers. Others need all.

        Returns
        -------
        federation : Federation
            For the estimators that fit private clients.

        Raises
        ------
        ValueError
            If `least_clients` is no integer of at least 2, or bounds are not valid.
        PrivacyError
            If the rows are elsewhere: their owners declare masks in their policy.
        ImportError
            If cryptography is not installed.
        """
        self._check_owner("masked")
        if self._declared() is None:
            return self._under(ClientPrivacy(np.inf, bounds=bounds, masked=least_clients))
        if bounds is not None:
            raise ValueError("bounds are those of private(), got others for masked().")
        return self._with_masks(least_clients)

    def released(
        self,
        epsilon: float | None = None,
        delta: float = 1e-5,
        bounds: dict[str, Any] | None = None,
        *,
        n_folds: int = 1,
        random_state: int | None = None,
    ) -> ReleasedFederation:
        """Pseudo-rows from one noisy matrix of second moments a client: record-level privacy.

        Every record is (epsilon, delta)-private, whoever sees the matrices: no server and no
        other client has to be trusted. Everything after is post-processing, however many fits.
        Clients need many rows, as hospitals have: the noise is that of each client.

        Parameters
        ----------
        epsilon, delta, bounds, random_state : object
            As of :class:`~skcfl.federation.ClientPrivacy`, with a "target". Left out where the
            rows are elsewhere: their owners declare them, in a policy with the unit "record" and
            a file that keeps the release.
        n_folds : int, default=1
            Folds of the rows, for tuning: a record is in one of them, so that they cost what one
            does, and each has noise of its own.

        Returns
        -------
        federation : ReleasedFederation

        Raises
        ------
        ValueError
            If a number is out of its range, or bounds are missing.
        PrivacyError
            If the rows are elsewhere, and an owner does not release them.
        """
        from .released import release_moments, released_by_sites

        if epsilon is None:
            return released_by_sites(self, n_folds)
        self._check_owner("released")
        self._check_undeclared("released")
        privacy = ClientPrivacy(epsilon, delta, "record", bounds, random_state=random_state)
        return release_moments(self, privacy, n_folds)

    def _declared(self) -> ClientPrivacy | None:
        """The privacy of this federation, None if there is none."""
        return None

    def _check_owner(self, method: str) -> None:
        """Raise a PrivacyError if a policy says already what clients answer."""

    def _check_undeclared(self, method: str) -> None:
        """Raise a PrivacyError if a method would take back what is declared."""
        if self._declared() is not None:
            raise PrivacyError(
                f"{method}() is refused: the clients are private or masked, and answer sums over "
                "clients and nothing else. Ask the federation from which this one was made. Noise "
                "and masks are declared in the order private(...).masked(...)."
            )

    def _with_masks(self, least: int) -> Self:
        """The same federation under its privacy, with sums behind masks."""
        declared: Any = self._declared()
        return self._under(declared.with_masks(least))

    def _under(self, privacy: ClientPrivacy) -> Self:
        """The same federation under some privacy."""
        raise PrivacyError(
            f"{type(self).__name__} has its rows elsewhere, and their owners keep the account: "
            "declare it there, by policy=SitePolicy(privacy=ClientPrivacy(...))."
        )


def joined_terms(said: Sequence[tuple[str, Handshake]]) -> dict[str, Any] | None:
    """The privacy that all places declare, None where no place declares any.

    The least budget that is left counts; "where" names its places if others have more.

    Raises
    ------
    PrivacyError
        If places do not agree.
    """
    terms: list[Any] = [hello.privacy for _, hello in said]
    if all(one is None for one in terms):
        return None
    first: Any = terms[0]
    for (name, _), other in zip(said[1:], terms[1:], strict=True):
        keys = {*(first or ()), *(other or ())} - {"left", "where"}
        same = first is not None and other is not None and keys <= first.keys() & other.keys()
        if not same or not all(np.array_equal(first[key], other[key]) for key in keys):
            raise PrivacyError(
                f"All places must declare the same privacy and bounds: {said[0][0]} and {name} "
                "differ."
            )
    left = min(one["left"] for one in terms)
    least = [name for (name, _), one in zip(said, terms, strict=True) if one["left"] == left]
    where = "" if len(least) == len(said) else f" at {' and '.join(least)}"
    return {**first, "left": left, "where": where}


class Releases:
    """The server's half of a private fit: asks for releases, adds the places' sums up, notes them.

    Parameters
    ----------
    federation : Federation
        The clients.
    hello : Handshake
        Who they are, with the terms of their privacy.
    model : LocalModel
        Bound local model.
    n_releases : int
        Releases of the fit, which share its budget equally.
    random_state : RandomState
        Source of the server's draws.

    Attributes
    ----------
    n_clients : int
        Number of clients.
    model : LocalModel
        Bound local model, in the declared units.
    scaling : Scaling or None
        Declared units of the features.
    centre, spread : float
        Middle and standard deviation of the target, as declared; 0 and 1 of classes.
    multiplier : float
        Noise multiplier of each release.
    ledger : Ledger
        What was sent.
    log : dict of str to list
        "call", "block", "clip", "noise" and "clipped" of each block of each release.
    count, spent : int
        Releases so far, and those that the places have charged their accounts for.
    withheld : int
        Clusters of the last exact release with too few clients: their sums are withheld.
    """

    def __init__(
        self,
        federation: Federation,
        hello: Handshake,
        model: LocalModel,
        n_releases: int,
        random_state: Any,
    ) -> None:
        terms: Any = hello.privacy
        if federation.max_share is not None:
            raise PrivacyError(
                f"max_share must be None where clients are private, got {federation.max_share}: "
                "they do not say what they weigh."
            )
        kind = model.estimator_type
        self.n_clients, self.random_state = len(hello.ids), random_state
        self.terms, self.n_releases = terms, n_releases
        self.centre, self.spread = target_units(terms) if kind == "regressor" else (0.0, 1.0)
        self.model, self.scaling = model.with_scaling(scaling_of(terms, hello.n_features, model))
        self._federation, self._hello = federation, hello
        self._parts: list[Any] | None = None
        self._masked: MaskedPlaces | None = None
        #: Places that have answered the last release, if sums are not masked.
        self._there: list[Any] | None = None
        #: Clients that a release is about, on average.
        self.n_expected = self.n_clients * terms["participation"]
        about = terms["epsilon"], terms["delta"]
        if terms["participation"] < 1.0:
            self.multiplier = sampled_multiplier(*about, n_releases, terms["participation"])
        else:
            self.multiplier = multiplier_of(*about) * np.sqrt(terms["n_fits"] * n_releases)
        self.ledger = Ledger()
        self.ledger.wire = lambda: federation.wire_bytes
        self.log: dict[str, list[Any]] = {
            name: [] for name in ("release", "call", "block", "clip", "noise", "clipped")
        }
        self.count = self.spent = self.withheld = 0

    @property
    def left(self) -> int:
        """Releases that the fit may ask for yet.

        A release that was asked for again, because a party was lost, takes the place of another.
        """
        return self.n_releases - self.spent

    @property
    def units(self) -> UserUnits:
        """Parameters in the user's units, and back."""
        return UserUnits(self.model, self.scaling)

    @property
    def _places(self) -> list[Any]:
        if self._parts is None:
            self._parts = self._federation.rows(self.model, self._hello)
        return self._parts

    @property
    def masked(self) -> MaskedPlaces:
        """The places as parties of masked sums."""
        if self._masked is None:
            least = self.terms["masked"], self._federation.min_clients
            self._masked = MaskedPlaces(self._places, *least)
        return self._masked

    @property
    def missing(self) -> Array:
        """Clients of places that do not answer, (n_clients,) of bool."""
        there = self._there if self._masked is None else self._masked.there
        out = np.full(self.n_clients, there is not None)
        for place in there or ():
            out[place.places] = False
        return out

    def pool(self) -> SummedPool:
        """The clients as a pool that answers exact masked sums; what it measures is its units."""
        made = SummedPool(self.masked, self.model, self.n_clients, self.random_state, self.ledger)
        self.model, self.scaling = made.model, made.scaling
        return made

    def ask(
        self, release: type[Release], counts: bool = True, **arguments: Any
    ) -> tuple[dict[str, Array], dict[str, float]] | None:
        """One release: sums over the clients, and the standard deviation of their noise.

        None if parties of a masked release were lost, and no release is left to ask again.

        Parameters
        ----------
        release : type
            A class of :mod:`skcfl.calls.releases`.
        counts : bool, default=True
            Whether it is one of the releases of the fit; exact ones that prepare others are not.
        **arguments : object
            What it takes.

        Returns
        -------
        sums : dict of str to ndarray
        noise : dict of str to float

        Raises
        ------
        PrivacyError
            If a place refuses it.
        FederationError
            If fewer places answer than are needed.
        """
        release.check(self.model, arguments)
        blocks = release.blocks(self.model, arguments)
        sums, scale, n_asked = self._sums(release, arguments, blocks)
        # What was asked again has been paid for again.
        self.spent += n_asked if self.multiplier > 0.0 else counts
        if not sums:
            if self.count == 0:
                raise FederationError("places were lost before a release was answered.")
            return None
        noise = {name: scale * sd for name, sd in release.noise(blocks, self.multiplier).items()}
        if not counts:
            return sums, noise
        if (clients := arguments.get("sizes")) is not None:
            self.withheld = int(np.count_nonzero(clients < self.terms["masked"]))
        self.count += 1
        for k, (name, block) in enumerate(list(blocks.items())[:-1]):
            share = float(np.clip(sums["clipped"][k] / self.n_expected, 0.0, 1.0))
            row = self.count, release.name, name, block.clip, noise[name], share
            for column, value in zip(self.log.values(), row, strict=True):
                column.append(value)
        return sums, noise

    def _sums(
        self, release: Any, arguments: Any, blocks: Any
    ) -> tuple[dict[str, Array], float, int]:
        """Sums, their noise relative to that of a place without masks, and how often asked for."""
        sizes = [int(np.prod(block.shape)) for block in blocks.values()]
        sent = release.name, arguments, self.multiplier
        n_arguments = sum(np.size(value) for value in arguments.values())
        if not self.terms["masked"]:
            check, places = partial(_check_sums, blocks=blocks), dict(enumerate(self._places))
            about = dict.fromkeys(places, sent), check, f"the release {release.name}"
            cut = " A fit that is cut short has spent what it asked for."
            found, lost = believed(places, "release", *about, cut)
            if not found:
                raise FederationError(f"no place answers the release {release.name}: {lost[0]}")
            self._there = [places[k] for k in found]
            check_clients(self._there, self._federation.min_clients)
            answers = list(found.values())
            sums = {name: np.sum([answer[name] for answer in answers], axis=0) for name in blocks}
            total = MaskedSum([], len(answers), 1, message_bytes("release", sent, answers[0]))
            book_sum(self.ledger, total, self.n_clients, sum(sizes), n_arguments)
            return sums, float(np.sqrt(len(answers))), 1
        if self.multiplier == 0.0:
            # Where clients are counted other sums are zero, and have bounds of their own.
            counting = "" if arguments.get("sizes") is None else "counted"
            total = self.masked.sum("release", sent, sizes, about=counting)
        else:
            total = self.masked.sum("release", sent, sizes, release.room(blocks), self.left)
        book_sum(self.ledger, total, self.n_clients, sum(sizes), n_arguments)
        sums = {
            name: value.reshape(blocks[name].shape)
            for name, value in zip(blocks, total.values, strict=bool(total.values))
        }
        return sums, float(np.sqrt(total.n_parties / self.terms["masked"])), total.n_asked

    @property
    def epsilon(self) -> float:
        """Epsilon of the releases so far, at the declared delta."""
        if self.multiplier == 0.0 and self._masked is not None:
            return np.inf
        if self.spent == 0:
            return 0.0
        share, delta = self.terms["participation"], self.terms["delta"]
        if share < 1.0:
            found = sampled_epsilon(self.multiplier, self.spent, share, delta)
        else:
            found = epsilon_of(self.multiplier / np.sqrt(self.spent), delta)
        # The account allows no more than was declared.
        return min(found, self.terms["epsilon"])

    def published(self) -> dict[str, Any]:
        """Fitted attributes that say what was released."""
        return {
            "epsilon_": self.epsilon,
            "delta_": self.terms["delta"] if self.count and np.isfinite(self.epsilon) else 0.0,
            "releases_": {name: np.array(column) for name, column in self.log.items()},
        }


def _check_sums(answer: Any, blocks: Any) -> None:
    """Raise OutOfBounds unless an answer has the arrays of a release."""
    whole = isinstance(answer, dict) and answer.keys() == blocks.keys()
    whole = whole and all(
        isinstance(value, np.ndarray)
        and value.shape == blocks[key].shape
        and value.dtype == np.float64
        and np.abs(value).max(initial=0.0) <= LARGEST[value.dtype]
        for key, value in answer.items()
    )
    require(whole, "it sent something else than the sums of a release")


def private_copy(federation: Any, **changes: Any) -> Any:
    """Shallow copy of a federation with other attributes."""
    made = copy.copy(federation)
    vars(made).update(changes)
    return made
