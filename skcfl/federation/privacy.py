"""Client-level privacy at the clients' side: what is declared, the account, and noisy answers."""

from __future__ import annotations

import copy
import os
import secrets
import threading
from contextlib import nullcontext
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import whole_number
from .._typing import Array
from ..calls.answers import check_arguments
from ..calls.call import CALLS
from ..calls.letters import sizes_of
from ..calls.posteriors_asked import are_same
from ..calls.releases import RELEASES
from ..clients.ids import joined_ids
from ..exceptions import PrivacyError
from ..numerics.gaussian_mechanism import epsilon_of, multiplier_of, sampled_epsilon
from .books import read_books, write_books
from .file_lock import locked
from .masks import EXACT, INFINITE, MaskParty, encoded, rooms_of, scale_of
from .scaling import Scaling
from .secret_numbers import SecretNumbers
from .serialization import dumps, loads
from .sites import Endpoint, Refused

if TYPE_CHECKING:
    from ..models import LocalModel

#: Standard deviations between declared bounds: those of the middle 95 % of normal values.
DEVIATIONS = 4.0
#: How bounds are declared.
EXAMPLE = "bounds={'features': (low, high), 'target': (low, high)}"
#: What bounds may be of.
BOUNDS = {"features", "target", "classes"}
# Relative rounding of costs.
ROUNDING = 1e-9


class ClientPrivacy:
    """Client-level differential privacy, as the owner of rows declares it.

    Two federations are neighbours if one of them is the other without the rows of one client.
    Everything that leaves the clients is then (epsilon, delta)-private: sums over clients in
    which each client has a bounded part, with Gaussian noise. See the page "Privacy" of the user
    guide.

    Parameters
    ----------
    epsilon : float
        Largest privacy loss, positive.
    delta : float, default=1e-5
        Probability of a larger loss, below one over the number of clients.
    unit : {"client", "record"}, default="client"
        What is protected: all rows of a client, or a single row, see
        :meth:`~skcfl.federation.InProcessFederation.released`.
    bounds : dict
        Ranges in which nearly all values lie, from public knowledge: "features", a pair (low,
        high) of numbers or of arrays with one number a feature; for regressors "target", a pair of
        numbers; for classifiers "classes", a list. They are units, and never measured: a value
        outside is allowed. Rows of other classes add nothing at a site. With an infinite `epsilon`
        None is allowed, for fits that measure units by masked sums; classifiers need "classes".
    masked : int or None, default=None
        Fewest places that a sum is over, where the server sees sums over all places only, behind
        masks; at least 2. Each place then adds its share of the noise, so that sums over as many
        have the noise that was promised. An infinite `epsilon` is allowed with masks: exact sums.
        None masks nothing.
    n_fits : int, default=1
        Fits that share the budget equally.
    participation : float, default=1.0
        Probability with which a client is drawn for a release, each by itself, by its place and in
        secret. Each release then has less noise, but sums over fewer clients. Below 1
        it needs the extra ``privacy``, a finite `epsilon` and one fit.
    account : str or path, default=None
        File that keeps what is spent where processes end, such as at a site between two jobs.
        Every place needs its own: each place that shares a file charges all releases to it. None
        keeps it in the memory of the process with the rows, for one federation. A file that is
        damaged, or was spent with another `participation`, releases nothing more.
    identity : SiteIdentity, default=None
        Certificate by which a site signs the key of its masks, and verifies the others'; it then
        takes no part in masked sums with other sites than those that it names. None signs nothing.
    random_state : int or None, default=None
        Seed of the noise, for studies only: whoever knows it can subtract the noise. Places with
        the same seed draw different noise, by the ids and features of their clients. None draws
        from the entropy of the operating system.

    Raises
    ------
    ValueError
        If a number is out of its range, or bounds are missing.

    Examples
    --------
    >>> from skcfl.federation import ClientPrivacy
    >>> privacy = ClientPrivacy(4.0, bounds={"features": (-2, 2), "target": (-3, 3)})
    >>> round(privacy.multiplier, 3)
    1.081
    """

    def __init__(
        self,
        epsilon: float,
        delta: float = 1e-5,
        unit: str = "client",
        bounds: dict[str, Any] | None = None,
        *,
        masked: int | None = None,
        n_fits: int = 1,
        participation: float = 1.0,
        account: str | os.PathLike[str] | None = None,
        identity: Any = None,
        random_state: int | None = None,
    ) -> None:
        self.masked = whole_number(masked, "masked", 2, optional=True)
        for name, value, most in (("epsilon", epsilon, np.inf), ("delta", delta, 1.0)):
            number = isinstance(value, Real) and not isinstance(value, bool)
            masks = masked is not None and unit == "client"
            if name == "epsilon" and masks and number and value == np.inf:
                continue
            if not number or not 0.0 < value < most:
                allowed = "positive and finite" if name == "epsilon" else "above 0 and below 1"
                raise ValueError(f"{name} must be {allowed}, got {value!r}.")
        if unit not in ("client", "record"):
            raise ValueError(f"unit must be 'client' or 'record', got {unit!r}.")
        self.n_fits, self.account = whole_number(n_fits, "n_fits"), account
        self.random_state = whole_number(random_state, "random_state", 0, optional=True)
        share = isinstance(participation, Real) and not isinstance(participation, bool)
        if not share or not 0.0 < participation <= 1.0:
            raise ValueError(
                f"participation must be above 0 and at most 1, got {participation!r}."
            )
        if participation < 1.0 and (n_fits > 1 or epsilon == np.inf or unit != "client"):
            raise ValueError(
                "participation below 1 needs unit='client', n_fits=1 and a finite epsilon, got "
                f"participation={participation!r}."
            )
        signs = all(callable(getattr(identity, name, None)) for name in ("sign", "verify"))
        if identity is not None and not (signs and masked is not None):
            raise ValueError(
                "identity must be a SiteIdentity, or have its methods sign and verify, and needs "
                f"masked, got identity={identity!r:.80}, masked={masked!r}."
            )
        self.identity = identity
        self.participation = float(participation)
        self.epsilon, self.delta, self.unit = float(epsilon), float(delta), unit
        self.bounds = _check_bounds(bounds, np.isfinite(self.epsilon))
        #: What was declared before sums were masked.
        self.unmasked: ClientPrivacy | None = None

    def __repr__(self) -> str:
        return f"ClientPrivacy({self.epsilon:g}, {self.delta:g}, bounds={self.bounds!r})"

    @property
    def multiplier(self) -> float:
        """Noise multiplier of a single release that spends the whole budget."""
        return multiplier_of(self.epsilon, self.delta)

    def with_masks(self, least: int) -> ClientPrivacy:
        """The same privacy, with sums behind masks."""
        made = copy.copy(self)
        made.masked, made.unmasked = whole_number(least, "masked", 2), self
        return made

    def check_unit(self) -> None:
        """Raise a ValueError unless clients are protected, or a release of records is kept."""
        if self.unit != "client" and self.account is None:
            raise ValueError(
                "account must be a file where unit is 'record' in a policy: a release that is "
                "drawn anew in each job would show more than is declared."
            )

    def terms(self, spent: float) -> dict[str, Any]:
        """What a server is sent: the budget, what is left of it, and the declared bounds.

        Parameters
        ----------
        spent : float
            Cost of the releases so far.

        Returns
        -------
        terms : dict
        """
        if self.participation < 1.0 and spent:
            spent = np.inf  # by a fit that was cut short, if by no other
        left = 1.0 if self.multiplier == 0.0 else max(1.0 - spent * self.multiplier**2, 0.0)
        return {
            "epsilon": self.epsilon,
            "masked": self.masked or 0,
            "delta": self.delta,
            "n_fits": self.n_fits,
            "participation": self.participation,
            "left": left,
            **self.bounds,
        }


def _check_bounds(bounds: Any, needed: bool) -> dict[str, Any]:
    """Bounds as arrays; raise a ValueError if those of the features are needed and missing."""
    if bounds is None and not needed:
        return {}
    if not isinstance(bounds, dict) or (needed and "features" not in bounds):
        raise ValueError(
            f"bounds must be declared, such as {EXAMPLE}: ranges of nearly all values, from "
            f"public knowledge; got {bounds!r:.80}."
        )
    if unknown := sorted(map(str, bounds.keys() - BOUNDS)):
        raise ValueError(
            f"bounds must be of 'features', 'target' or 'classes', got {', '.join(unknown)}."
        )
    checked: dict[str, Any] = {}
    for name in ("features", "target"):
        if name not in bounds:
            continue
        pair = bounds[name]
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"bounds[{name!r}] must be a pair (low, high), got {pair!r:.80}.")
        try:
            low, high = np.broadcast_arrays(*(np.asarray(end, dtype=float) for end in pair))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"bounds[{name!r}] must hold numbers, or arrays of one number a feature."
            ) from error
        axes = 1 if name == "features" else 0
        if low.ndim > axes or not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
            raise ValueError(
                f"bounds[{name!r}] must be finite with low < high, one number or one a feature, "
                f"got {pair!r:.80}."
            )
        checked[name] = np.stack([low, high])
    if "classes" in bounds:
        classes = np.unique(np.asarray(bounds["classes"]))
        if len(classes) < 2:
            raise ValueError(f"bounds['classes'] must name two classes or more, got {classes}.")
        checked["classes"] = classes
    return checked


def _undeclared(bounds: Any, kind: Any, noisy: bool) -> str | None:
    """Bounds that targets of a kind need and that are not declared, None if all are."""
    needed = {"classifier": "classes", "regressor": "target" if noisy else None}.get(kind)
    return None if needed in bounds else needed


def check_terms(terms: dict[str, Any], kind: Any, n_clients: int, n_features: int) -> None:
    """Raise an error if nothing may be released under these terms, before anything is.

    Parameters
    ----------
    terms : dict
        Of :meth:`ClientPrivacy.terms`.
    kind : {"classifier", "regressor", None}
        Kind of the targets.
    n_clients, n_features : int
        Size of the federation.
    """
    noisy = np.isfinite(terms["epsilon"])
    if (needed := _undeclared(terms, kind, noisy)) is not None:
        raise ValueError(
            f"bounds must declare {needed!r} for a {kind}, got {sorted(BOUNDS & terms.keys())}."
        )
    shape = terms["features"].shape[1:] if "features" in terms else ()
    if shape not in ((), (n_features,)):
        raise ValueError(
            f"bounds['features'] must be two numbers or two arrays of {n_features}, one number a "
            f"feature, got arrays of shape {shape}."
        )
    if terms["delta"] * n_clients >= 1.0 and noisy:
        raise ValueError(
            f"delta must be below one over the number of clients, {n_clients}: a mechanism that "
            f"publishes one client in {1 / terms['delta']:.0f} whole would satisfy "
            f"delta={terms['delta']:g}."
        )
    if terms["left"] * terms["n_fits"] < 1.0 - ROUNDING:
        raise PrivacyError(
            f"the privacy budget of epsilon={terms['epsilon']:g}, delta={terms['delta']:g} is "
            f"spent: {terms['left']:.0%} of it is left{terms.get('where', '')}, and a fit takes "
            f"1/{terms['n_fits']}. Declare n_fits before the first fit to have several."
        )


def scaling_of(terms: dict[str, Any], n_features: int, model: LocalModel) -> Scaling | None:
    """Units of the features by declared bounds; None without bounds, or if none are wanted."""
    if not model.standardize or "features" not in terms:
        return None
    low, high = (np.broadcast_to(end, (n_features,)) for end in terms["features"])
    mean = 0.5 * (low + high) if getattr(model, "fit_intercept", False) else np.zeros(n_features)
    return Scaling(mean, (high - low) / DEVIATIONS)


def target_units(terms: dict[str, Any]) -> tuple[float, float]:
    """Middle and standard deviation of the target by its declared bounds; 0 and 1 without."""
    if "target" not in terms:
        return 0.0, 1.0
    low, high = map(float, terms["target"])
    return 0.5 * (low + high), (high - low) / DEVIATIONS


class Account:
    """What the clients of one place have spent of their privacy budget.

    Parameters
    ----------
    privacy : ClientPrivacy
        What was declared.
    rng : Generator or SecretNumbers
        Source of the noise.
    before : Account, default=None
        The clients' account so far, which stays theirs behind masks.
    """

    def __init__(
        self,
        privacy: ClientPrivacy,
        rng: np.random.Generator | SecretNumbers,
        before: Account | None = None,
    ) -> None:
        self.privacy = privacy
        self._multiplier, self._lock = privacy.multiplier, threading.Lock()
        self._path = None if privacy.account is None else Path(privacy.account)
        self._books: dict[str, Any] = {"spent": 0.0, "multiplier": None}
        self.rng = rng
        #: Numbers by which a server knows the clients, drawn once.
        self._names: Array | None = None
        if before is not None and before.privacy is privacy.unmasked:
            self._books, self._lock, self.rng = before._books, before._lock, before.rng

    @property
    def spent(self) -> float:
        """Cost of the releases so far, the sum of ``1 / multiplier^2``."""
        return float(self._read()["spent"])

    def _read(self) -> dict[str, Any]:
        """What is spent, and the multiplier of the last release."""
        if self._path is not None and self._path.exists():
            kept = read_books(self._path, self.privacy.participation)
            return max(self._books, kept, key=lambda books: float(books["spent"]))
        return self._books

    def check_unit(self) -> None:
        """Raise Refused if records are protected, and not clients."""
        if self.privacy.unit == "record":
            raise Refused("it releases second moments, by released(), and answers nothing else")

    def terms(self) -> dict[str, Any]:
        """What a server is sent."""
        return self.privacy.terms(self.spent)

    @property
    def is_noisy(self) -> bool:
        """Whether answers have noise."""
        return bool(np.isfinite(self.privacy.epsilon))

    @property
    def declared_target(self) -> Array:
        """The declared bounds of the target, none where they are not declared."""
        return np.asarray((self.privacy.bounds or {}).get("target", ()), dtype=float)

    def declares(self, kind: Any) -> bool:
        """Whether targets of a kind have declared bounds: others are not looked at."""
        return _undeclared(self.privacy.bounds or {}, kind, self.is_noisy) is None

    def charge(self, multiplier: float) -> None:
        """Book a release before it is computed; raise Refused if the budget does not allow it."""
        if self._multiplier == 0.0 and multiplier == 0.0:
            return
        number = isinstance(multiplier, float | int) and not isinstance(multiplier, bool)
        if not number or not 0.0 < multiplier < np.inf:
            raise Refused(
                f"it answers with noise of a positive multiplier, got {multiplier!r:.40}"
            )
        privacy = self.privacy
        # Several jobs may have the file of one account.
        with self._lock, nullcontext() if self._path is None else locked(self._path):
            before = self._read()
            spent = float(before["spent"]) + multiplier**-2
            if privacy.participation < 1.0:
                if before["spent"] and before.get("multiplier") != multiplier:
                    raise Refused("it answers releases of one multiplier, that of the first one")
                count = round(spent * multiplier**2)
                about = float(multiplier), count, privacy.participation, privacy.delta
                would = sampled_epsilon(*about)
                over = would > privacy.epsilon * (1.0 + ROUNDING)
            else:
                would = epsilon_of(spent**-0.5, privacy.delta)
                over = spent * self._multiplier**2 > 1.0 + ROUNDING
            if over:
                raise Refused(
                    f"its account is spent: the release would raise epsilon to {would:.3g} at "
                    f"delta={privacy.delta:g}, and {privacy.epsilon:g} is the limit"
                )
            share = privacy.participation
            self._books.update(spent=spent, multiplier=float(multiplier), participation=share)
            if self._path is not None:
                write_books(self._path, self._books)

    def names(self, n_clients: int, site: str | None = None) -> Array:
        """Names in the place of the clients' ids, ascending: ids say who takes part.

        Random numbers, or text that begins with the name of the site.
        """
        if self._names is None:
            drawn: set[int] = set()
            while len(drawn) < n_clients:
                drawn.add(secrets.randbits(62))
            numbers = sorted(drawn)
            texts = [f"{site}/{number:019d}" for number in numbers]
            self._names = np.array(numbers if site is None else texts)
        return self._names


class OnlyReleases(Refused, AttributeError):
    """Raised where rows under privacy are asked for anything but a release."""


class PrivateRows(Endpoint):
    """Rows of a place that answers releases and nothing else.

    Parameters
    ----------
    rows : Rows
        The rows, in the user's units.
    account : Account
        What the place has spent.
    model : LocalModel
        Bound local model of the fit.
    ids : ndarray of shape (n_clients,)
        Ids of the clients, which stay here.
    parties_are_clients : bool, default=False
        Whether each client counts as a party of masked sums, where the place simulates them all.
    """

    def __init__(
        self,
        rows: Any,
        account: Account,
        model: LocalModel,
        ids: Array,
        parties_are_clients: bool = False,
    ) -> None:
        self._rows, self._account, self._model, self._ids = rows, account, model, ids
        self.places = rows.places
        self._site: Any = None
        self._measured: Any = None
        #: Parties that were counted in the last sum of clients by their models.
        self._counted: Array | None = None
        least = account.privacy.masked
        #: What the place counts as in masked sums.
        self.n_parties = len(rows.places) if parties_are_clients else 1
        self._party: MaskParty | None = None
        if least is not None:
            enough = self.n_parties >= least
            others = min(least, 1 if enough else 2) if parties_are_clients else least
            self._party = MaskParty(others, enough, account.privacy.identity)

    def joined(self, others: list[PrivateRows], merge: Any) -> PrivateRows:
        """The rows of several parts of the place, which every release is about: one account."""
        rows = merge([part._rows for part in in_one_place([self, *others])])
        ids = self._ids
        for part in others:
            ids = joined_ids(ids, part._ids)
        return PrivateRows(rows, self._account, self._model, ids)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise OnlyReleases(f"it answers private releases only, and not {name}")

    def mask_key(self) -> dict[str, Array]:
        """Public key of the place in masked sums, and who signs it."""
        return self._masks().introduction()

    def mask_agree(self, place: int, keys: Array, proofs: Any = None) -> bool:
        """Agree on masks; see :meth:`~skcfl.federation.masks.MaskParty.agree`."""
        self._masks().agree(place, keys, proofs)
        return True

    def _masks(self) -> MaskParty:
        if self._party is None:
            raise Refused("its sums are not masked")
        return self._party

    def release(
        self,
        name: str,
        arguments: dict[str, Any],
        multiplier: float,
        number: int = 0,
        here: Array | None = None,
        rooms: Array | None = None,
    ) -> dict[str, Array]:
        """Noisy sums over the clients.

        Parameters
        ----------
        name : str
            A release, of ``skcfl.calls.releases.RELEASES``.
        arguments : dict
            What it takes.
        multiplier : float
            The multiplier of the noise.
        number : int, default=0
            Of the sum, if sums are masked.
        here : ndarray of shape (n_parties,) of bool, default=None
            Parties of the sum, if sums are masked.
        rooms : ndarray of shape (n_blocks,), default=None
            Bounds of the sums of masked blocks without noise.

        Returns
        -------
        sums : dict of str to ndarray
            If sums are masked "masked", see :meth:`~skcfl.federation.masks.MaskParty.masked`, or
            "large", see :func:`~skcfl.federation.masks.rooms_of`.
        """
        if name not in RELEASES:
            raise Refused(f"it knows no release {name!r:.80}")
        release = RELEASES[name]
        release.check(self._model, arguments)
        if self._party is None:
            self._account.charge(multiplier)
            return self._answer(release, arguments, multiplier)
        self._party.check(number, here)  # type: ignore[arg-type]
        self._account.charge(multiplier)
        # So many parties at least are in the sum, and their noise with them.
        least: Any = self._account.privacy.masked
        share = multiplier * np.sqrt(self.n_parties / least)
        sent = self._of_enough(release, arguments, here) if multiplier == 0.0 else arguments
        sums = self._answer(release, sent, share)
        blocks = release.blocks(self._model, arguments)
        bounds: Any = release.room(blocks) if multiplier > 0.0 else _powers_of_two(rooms)
        asked = "release", name, arguments, multiplier
        return self._masked([sums[key] for key in blocks], bounds, number, here, asked)

    def _of_enough(self, release: Any, arguments: Any, here: Any) -> Any:
        """Arguments with which sums without noise show no single clients.

        Numbers of clients that the server sends are those that the same places have answered.
        """
        before = self._counted
        counted = here is None or (before is not None and np.array_equal(here, before))
        if "sizes" in arguments and arguments["sizes"] is None:
            self._counted = None if here is None else here.copy()
        try:
            least: Any = self._account.privacy.masked
            return release.of_enough(arguments, least, counted)
        except ValueError as error:
            raise Refused(str(error)) from error

    def _answer(self, release: Any, arguments: Any, multiplier: float) -> dict[str, Array]:
        """Noisy sums over the clients that are drawn."""
        rng, drawn = self._account.rng, None
        if self._account.privacy.participation < 1.0:
            drawn = rng.uniform(size=len(self._ids)) < self._account.privacy.participation
        return release.answer(self._clients(), arguments, multiplier, rng, drawn)

    def exact(
        self,
        call: str,
        arguments: dict[str, Any],
        units: tuple[Any, ...],
        number: int,
        here: Array,
        rooms: Array,
    ) -> dict[str, Array]:
        """Masked sums of a call that the clients answer by sums only, without noise.

        Parameters
        ----------
        call : str
            A name in ``skcfl.calls.CALLS``.
        arguments : dict
            Its arguments.
        units : tuple
            Means and scales of the features, or None twice; mean and scale of the target, or None
            twice.
        number, here, rooms : object
            As of :meth:`release`.

        Returns
        -------
        sums : dict of str to ndarray
            As of :meth:`release`. Numbers that are not finite are too large.
        """
        self._check_exact(number, here)
        if call not in EXACT:
            raise Refused(f"it answers sums over clients only, and not {call!r:.80}")
        if (K := len(arguments["theta"])) > EXACT[call]:
            raise Refused(f"it answers {call} of at most {EXACT[call]} models, got {K}")
        site = self._in_units(units)
        check_arguments(call, arguments, sizes_of(site, arguments))
        answers = site.answer(call, arguments)
        if "non_finite" in answers:
            large = np.full(len(CALLS[call].up), INFINITE)
            self._masks().exceed(number, here, large)
            return {"large": large}
        values = [answers[name] for name in CALLS[call].up]
        asked = "exact", call, CALLS[call].packed(arguments), units
        return self._masked(values, _powers_of_two(rooms), number, here, asked)

    def exact_moments(
        self, of: str, means: Array | None, number: int, here: Array, rooms: Array
    ) -> dict[str, Array]:
        """Masked moments of the features or the target, by which a server chooses units.

        Parameters
        ----------
        of : {"features", "target"}
            What is measured.
        means : ndarray or None
            None asks for the number of rows, their weight, and sums; means for squares about them.
        number, here, rooms : object
            As of :meth:`release`.

        Returns
        -------
        sums : dict of str to ndarray
        """
        self._check_exact(number, here)
        if means is None:
            n_rows, _, _, total, sums = self._rows.moments(of, "sums")
            values = [np.array([float(n_rows), total]), sums]
        else:
            values = [self._rows.moments(of, "squares", means)]
        asked = "moments", of, means
        return self._masked(values, _powers_of_two(rooms), number, here, asked)

    def _check_exact(self, number: int, here: Array) -> None:
        if self._account.privacy.epsilon < np.inf:
            raise Refused("its sums have noise")
        self._masks().check(number, here)

    def _in_units(self, units: tuple[Any, ...]) -> Any:
        """Site of the clients in some units, made once."""
        if self._measured is None or not are_same(self._measured[0], units):
            mean, scale, centre, spread = units
            model = self._model if centre is None else self._model.in_units(centre, spread)
            scaling = None if mean is None else Scaling(mean, scale)
            self._measured = units, self._site_in(model, scaling)
        return self._measured[1]

    def _site_in(self, model: LocalModel, scaling: Scaling | None) -> Any:
        """Site of the clients with features in a scaling."""
        rows = self._rows
        if scaling is not None:
            model, scaling = model.with_scaling(scaling.checked(rows.X.shape[1]))
        scaled = rows if scaling is None else rows.scaled(scaling)
        return scaled.site_of(model, slice(None))

    def _masked(
        self, values: list[Array], rooms: Any, number: int, here: Any, asked: Any
    ) -> dict[str, Array]:
        """Sums behind masks, or which of them exceed this party's part of their bounds."""
        party = self._masks()
        whole = len(np.shape(rooms)) == 1 and len(rooms) == len(values)
        if not whole or not all(0.0 < room < np.inf for room in rooms):
            raise Refused("the bounds of a masked sum are not one for each of its blocks")
        pairs = list(zip(values, rooms, strict=True))
        large = rooms_of(values, rooms, party.n_parties)
        if large.any():
            party.exceed(number, here, large)
            return {"large": large}
        flat = [encoded(np.ravel(value), scale_of(room)) for value, room in pairs]
        # As it is after a message, so that places of this process know it by the same bytes.
        asked = dumps(loads(dumps((asked, [float(room) for room in rooms]))))
        return {"masked": party.masked(number, here, np.concatenate(flat), asked)}

    def _clients(self) -> Any:
        if self._site is None:
            rows, terms = self._rows, self._account.privacy.terms(0.0)
            scaling = scaling_of(terms, rows.X.shape[1], self._model)
            self._site = self._site_in(self._model, scaling)
            self._site.client_ids = self._ids
        return self._site


def _powers_of_two(rooms: Any) -> Any:
    """Bounds from a server, which are powers of two: finer ones would show sizes of parts."""
    if np.ndim(rooms) == 1 and not all(np.frexp(room)[0] == 0.5 for room in rooms):
        raise Refused("the bounds of a masked sum are no powers of two")
    return rooms


def in_one_place(places: list[Any]) -> list[Any]:
    """Places of this process; raise a ValueError if a private client has rows in several.

    Servers cannot see it, as they know private clients by random names, and the client would be
    in a sum twice.
    """
    private = [place for place in places if isinstance(place, PrivateRows)]
    ids = [one for place in private for one in place._ids.tolist()]
    if len(set(ids)) < len(ids):
        raise ValueError("A client's rows must be in one place, and those of some are in several.")
    return places
