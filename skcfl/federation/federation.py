"""A federation: the clients before a model is chosen."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy import sparse
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import _get_feature_names

from .._checks import about, check_float, check_size, whole_number
from .._typing import Array, ClientIds, DTypeLike, Kind, MatrixLike, RandomState, Targets, Weights
from ..clients.draws import fingerprints, mixed
from ..clients.ids import check_ids, encode, locate
from ..exceptions import PrivacyError
from ..numerics.by_cluster import weight_by_cluster
from ..numerics.matrices import quotient
from . import wrong_rows
from .checking import as_rows, check_features, check_targets, check_weights, refuse_columns
from .fanout import joined
from .faults import Faults
from .folds import Folds
from .handshake import Handshake, joined_hellos
from .policy import FitGuard, Guard, SitePolicy, check_policy, known_classes
from .pool import ClientPool
from .presence import Presence
from .privacy import Account, PrivateRows, in_one_place
from .private_sums import Protected, private_copy
from .query_log import row_keys
from .recording import recorded
from .rows import Rows
from .scaling import Scaling, outlying
from .secret_numbers import SecretNumbers
from .shares import check_share, largest_weight
from .sites import Refused, ask_each
from .turns import in_turns

if TYPE_CHECKING:
    from ..models import LocalModel
    from .journal import Journal
    from .privacy import ClientPrivacy


class _FewerPlaces(Exception):
    """Raised where some of the places that are measured are lost."""


class Federation(Protected, ABC):
    """Clients to fit estimators on, wherever they are.

    See Also
    --------
    InProcessFederation : Clients of this process.
    FanOutFederation : Clients of several federations.
    """

    #: How many clients have to answer when they are asked.
    min_clients = 1
    #: How often silent clients are asked again where all are needed.
    retries = 10
    #: Largest share of the total weight that a client may have; None is any.
    max_share: float | None = None

    #: Name of the site that the clients are of, by which their names begin.
    site: str | None = None
    #: Bytes ``(up, down)`` that have travelled to and from other processes since the last hello.
    wire_bytes: tuple[int, int] = (0, 0)

    #: True if objects of Python, which are code, may travel: in one organisation only.
    carries_objects = False

    #: The checkpoint of the fit, if it has one: the journal of its answers.
    journal: Journal | None = None

    @abstractmethod
    def hello(self, kind: Kind = None) -> Handshake:
        """Ask the clients who they are.

        Parameters
        ----------
        kind : {"classifier", "regressor", None}, default=None
            Kind of the targets: classes are sent for classifiers; targets of regressors are
            checked to be numbers.

        Returns
        -------
        hello : Handshake

        Raises
        ------
        ValueError
            If the clients do not agree on their features, an id is in two places, or targets do
            not suit.
        """

    @abstractmethod
    def rows(self, model: LocalModel, hello: Handshake) -> list[Any]:
        """What the places hold, targets encoded, as a list of objects like Rows."""

    def collected(self, answers: Iterator[Array]) -> Array:
        """Entries of all rows, in the federation's order: part by part, each as it was given.

        Parameters
        ----------
        answers : iterator of ndarray
            For each place that :meth:`rows` lists an entry per row.

        Returns
        -------
        entries : ndarray
        """
        return next(answers)

    def open(
        self, model: LocalModel, random_state: RandomState = None, hello: Handshake | None = None
    ) -> ClientPool:
        """The pool of clients that server code holds.

        Parameters
        ----------
        model : LocalModel
            Bound local model.
        random_state : int, RandomState instance or None, default=None
            Source of the server's draws, and of the seed of the clients'.
        hello : Handshake, default=None
            Who the clients are, if they were asked.

        Returns
        -------
        pool : ClientPool
            With the features standardised, and the weights of classes counted, if `model` says
            so.
        """
        return self.open_with_folds(model, random_state, hello)[0]

    def open_with_folds(
        self,
        model: LocalModel,
        random_state: RandomState = None,
        hello: Handshake | None = None,
        robust: bool = False,
        before: Presence | None = None,
    ) -> tuple[ClientPool, Folds]:
        """The pool of clients, and the same rows to be dealt to folds.

        Parameters
        ----------
        model, random_state, hello : object
            As for :meth:`open`.
        robust : bool, default=False
            Whether units are those of most clients, by medians over them, and not of all rows: a
            client in other units must not set everybody's scale.
        before : Presence, default=None
            Of an earlier attempt at the same fit.  The clients that it lost or rejected have no
            rows in this one, so that nothing is measured with them.

        Returns
        -------
        pool : ClientPool
        folds : Folds
        """
        hello = self.hello(model.estimator_type) if hello is None else hello
        presence = Presence(hello.ids, self.min_clients, self.retries, before)
        parts = _present(self.rows(model, hello), presence, hello, model)
        for part in parts:
            if getattr(part, "guard", None) is not None and not part.wraps:
                presence.guarded[part.places] = True
        if self.journal is not None:
            about = self.journal, hello, self._bytes_of_fit, self.rows
            parts = recorded(parts, model.estimator_type, *about)
        if self.max_share is not None:
            weights = np.where(presence.left_out, 0.0, hello.weights)
            most = largest_weight(weights, self.max_share)
            if most < weights.max():
                parts = [part.capped(most) for part in parts]
        n_clients = len(hello.ids)
        classes: Any = hello.classes
        if model.class_weight is not None:
            if model.class_weight == "balanced":
                own = [(len(classes),)] * len(parts)
                totals = sum(ask_each(parts, "class_totals", own, retries=self.retries))
                factors = quotient(totals.sum() / len(classes), totals.astype(float))
            else:
                factors = _class_factors(model.class_weight, classes)
            parts = [part.weighed(factors) for part in parts]
            model = copy.copy(model)
            model.class_factors = factors
        # Features and targets are measured at the same time.
        centred = {"features": model.fit_intercept} if model.standardize else {}
        centred |= {"target": True} if model.has_units else {}
        measures = [
            partial(self._measured, parts, of, about, robust, presence)
            for of, about in centred.items()
        ]
        travel = any(part.travels for part in parts)
        measured = in_turns(measures) if travel else [measure() for measure in measures]
        found = dict(zip(centred, measured, strict=True))
        scaling, odd = found.get("features", (None, {}))
        odd_targets: dict[tuple[int, int], float] = {}
        if scaling is not None:
            model, scaling = model.with_scaling(model.spared(scaling))
            if scaling is not None:
                parts = [part.scaled(scaling) for part in parts]
                scaling = model.of_features(scaling)
            odd = {place: ratio for place, ratio in odd.items() if place[1] < model.n_features}
        if model.has_units:
            target, odd_ones = found["target"]
            model = model.in_units(float(target.mean[0]), float(target.scale[0]))
            if model.standardised is not None or model.describe_loss().has_units:
                odd_targets = odd_ones
        site = joined([(part.site(model), part.places) for part in parts])
        pool = ClientPool(site, model, random_state, scaling, presence)
        pool.ledger.wire = self._bytes_of_fit
        if model.class_weight == "balanced":
            size = n_clients * len(classes)
            pool.relay(up=size, down=size, sums=True)
        # Hello, sizes and weights, and with units the spreads of each client.
        calls = 2 + (len(found) > 0)
        pool.ledger.book(calls=calls, clients=calls * n_clients)
        if model.has_units:
            # As for features, and with theirs: counts and sums, the mean, squares, the scale.
            first = len(found) == 1
            pool.relay(up=5 * n_clients, down=n_clients, sums=True, calls=first)
            pool.relay(up=n_clients, down=n_clients, sums=True, calls=first)
        pool.other_units = odd | {(i, -1): ratio for (i, _), ratio in odd_targets.items()}
        return pool, Folds(parts, model, classes, presence)

    def _bytes_of_fit(self) -> tuple[int, int]:
        """Bytes ``(up, down)`` since the last hello, and before, of a fit that goes on."""
        before = (0, 0) if self.journal is None else self.journal.wire_bytes
        return before[0] + self.wire_bytes[0], before[1] + self.wire_bytes[1]

    def _measured(
        self, parts: list[Any], of: str, centred: bool, robust: bool, presence: Presence
    ) -> tuple[Scaling, dict[tuple[int, int], float]]:
        """Scaling of the features, or the target, of rows in several places.

        Clients in other units than most have no part in it: they are returned as the ratios of
        their spreads to the others', by client and feature.  If a place is lost between two steps
        the others are measured anew.
        """
        here = [part for part in parts if getattr(part, "n_rows", 1)]

        def ask(step: str, *means: Any) -> Any:
            arguments = [(of, step, *means)] * len(here)
            answers = ask_each(here, "moments", arguments, retries=self.retries)
            if len(answers) < len(here):
                raise _FewerPlaces
            return answers

        while True:
            try:
                clients, features, ratios = outlying(ask)
                clients = np.concatenate([part.places for part in here])[clients]
                odd = dict(
                    zip(zip(clients.tolist(), features.tolist(), strict=True), ratios, strict=True)
                )
                if len(clients) and not robust:
                    out = np.union1d(clients, np.flatnonzero(presence.left_out))
                    here = [
                        part.without(out) for part in here if not np.isin(part.places, out).all()
                    ]
                return (Scaling.of_clients if robust else Scaling.of_parts)(ask, centred, of), odd
            except _FewerPlaces:
                here = [part for part in here if not part.is_lost]


class InProcessFederation(Federation):
    """Clients of this process.

    Parameters
    ----------
    X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
        Rows of all clients, in any order; arrays with more axes for local models that take them.
    y : array-like of shape (n_samples,) or None
        Targets; None for unsupervised local models.
    groups : array-like of shape (n_samples,)
        Id of each row's client.
    sample_weight : array-like of shape (n_samples,), default=None
        Weight of each row; at least one is positive.
    n_jobs : int or None, default=None
        Threads of a computation over clients; None is 1, -1 all processors.
    faults : Faults, default=None
        Clients that do not answer; None if all do.
    policy : SitePolicy, default=None
        What the clients agree to answer; None is everything.
    min_clients : int, default=1
        How many clients have to answer when they are asked.
    retries : int, default=10
        How often silent clients are asked again where all are needed: for sums over all clients,
        and for proofs. A round goes on without them.
    max_share : float or None, default=None
        Largest share of the total weight that a client may have. Weights are declared by the
        clients: the rows of a client with more count less. None is no limit.

    Raises
    ------
    ValueError
        If X, ids or weights are not valid, or their lengths differ.

    Examples
    --------
    >>> from skcfl import IFCARegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.federation import InProcessFederation
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> federation = InProcessFederation(data.X, data.y, data.groups)
    >>> model = IFCARegressor(n_clusters=3, random_state=0).fit_federation(federation)
    >>> model.labels_.shape
    (12,)
    """

    names: Any = None
    faults: Faults | None = None
    row_shape: tuple[int, ...] | None = None
    _guard: Guard | None = None
    _keys: Sequence[bytes] = ()
    _account: Account | None = None
    #: Rows of a site with noise that may count, None of others.
    _right: Array | None = None

    def __init__(
        self,
        X: MatrixLike,
        y: Targets,
        groups: ClientIds,
        sample_weight: Weights = None,
        *,
        n_jobs: int | None = None,
        faults: Faults | None = None,
        policy: SitePolicy | None = None,
        min_clients: int = 1,
        retries: int = 10,
        max_share: float | None = None,
    ) -> None:
        X, self.row_shape = as_rows(X)
        with about("X"):
            self.names = _get_feature_names(X)
        refuse_columns(X)
        check_policy(policy)
        declared = None if policy is None else policy.privacy
        if declared is not None and declared.epsilon < np.inf and not sparse.issparse(X):
            X, sample_weight, self._right = wrong_rows.features_and_weights(X, sample_weight)
        self.X = X = check_features(X)
        self.y: Any = y
        if y is not None and len(np.shape(y)) and np.shape(y)[0] != X.shape[0]:
            raise ValueError(f"y must have one entry per row, {X.shape[0]}, got {np.shape(y)[0]}.")
        self.ids, self.codes = encode(check_ids(groups, X.shape[0], "groups"))
        self.sample_weight = check_weights(sample_weight, X)
        self.n_jobs, self.faults = n_jobs, faults
        self._checked: dict[Kind, Any] = {}  # targets of each kind that was asked for
        if faults is not None and not isinstance(faults, Faults):
            raise TypeError(f"faults must be Faults or None, got {type(faults).__name__}.")
        self._guard = None if policy is None else Guard(policy)
        if policy is not None and policy.query_log is not None:
            self._keys = row_keys(X, y, self.ids, self.codes, sample_weight)
        self._account = None if declared is None else self._opened(declared)
        self.min_clients, self.retries, self.max_share = checked(min_clients, retries, max_share)

    @classmethod
    def of_checked(cls, kind: Kind, **checked: Any) -> Self:
        """Federation of what an estimator has checked: attributes by name."""
        self = object.__new__(cls)
        vars(self).update(checked, _checked={kind: checked["y"]})
        return self

    def _noise_rng(self, privacy: ClientPrivacy) -> np.random.Generator | SecretNumbers:
        """Source of the noise of these clients: places with the same seed draw by their rows."""
        if privacy.random_state is None:
            return SecretNumbers()
        digest = blake2b(repr(self.ids.tolist()).encode())
        digest.update(np.sort(mixed(self.codes, fingerprints(self.X))).tobytes())
        return np.random.default_rng([privacy.random_state, int(digest.hexdigest(), 16)])

    def _opened(self, privacy: ClientPrivacy) -> Account:
        """The account of these clients."""
        if sparse.issparse(self.X):
            raise ValueError("X must be dense under privacy, got a sparse matrix.")
        if self.faults is not None:
            raise ValueError(
                "faults must be None under privacy: clients then answer sums, in which no single "
                f"client fails, got {self.faults!r}."
            )
        return Account(privacy, self._noise_rng(privacy), self._account)

    @property
    def carries_objects(self) -> bool:  # type: ignore[override]
        """True without a policy and without privacy."""
        return self._guard is None and self._account is None

    def _declared(self) -> ClientPrivacy | None:
        return None if self._account is None else self._account.privacy

    def _check_owner(self, method: str) -> None:
        if self._guard is not None:
            raise PrivacyError(
                f"{method}() is refused: the policy says what clients answer. Declare it there, "
                "by policy=SitePolicy(privacy=ClientPrivacy(...))."
            )

    def _under(self, privacy: ClientPrivacy) -> Self:
        return private_copy(self, _account=self._opened(privacy), _checked={})

    def _targets(self, kind: Kind) -> Any:
        """Targets checked as those of a kind, whatever kind was asked for before."""
        if kind not in self._checked:
            self._checked[kind] = check_targets(self._private_targets(kind)[0], self.X, kind)
        return self._checked[kind]

    @property
    def _noisy(self) -> Account | None:
        """The account if an error about rows would be an answer without noise."""
        return self._account if self._account and self._account.is_noisy else None

    def _private_targets(self, kind: Kind) -> tuple[Any, Any]:
        """Targets, and a mask of the rows that may count, instead of an error under privacy."""
        if self._noisy is None or self.y is None or kind is None:
            return self.y, True
        bounds, silent = self._noisy.privacy.bounds, self._right is not None
        return wrong_rows.targets(self.y, kind, bounds, self.X.dtype, silent)

    def right_rows(self, kind: Kind) -> Array:
        """Mask of the rows that fits of a kind take, (n_rows,)."""
        every = np.ones(len(self.codes), dtype=bool) if self._right is None else self._right
        return every & self._private_targets(kind)[1]

    def hello(self, kind: Kind = None) -> Handshake:
        """Ask the clients who they are; see :meth:`Federation.hello`."""
        if self._account is not None:
            self._account.check_unit()
        seen = kind is not None and (self._account is None or self._account.declares(kind))
        y = self._targets(kind) if seen else None
        y = y if kind == "classifier" else None
        classes = known_classes(y, self.codes, self._guard, self._account)
        n_rows, n_features = self.X.shape
        about_rows = n_features, self.names, self.X.dtype, classes, n_rows, self.row_shape
        sizes = np.bincount(self.codes, minlength=len(self.ids))
        weights = weight_by_cluster(self.codes, self.sample_weight, len(self.ids))
        hello = Handshake(self.ids, *about_rows, sizes, weights)
        if self._account is None:
            return hello
        # Private clients say how many they are, and nothing of their rows.
        n = len(self.ids)
        sizes, weights = np.ones(n, dtype=np.intp), np.ones(n)
        hello = replace(hello, n_rows=n, sizes=sizes, weights=weights)
        return replace(hello, ids=self._names, privacy=self._account.terms())

    @property
    def _names(self) -> Any:
        """What a server knows the clients by."""
        if self._account is None:
            return self.ids
        return self._account.names(len(self.ids), self.site)

    def rows(self, model: LocalModel, hello: Handshake) -> list[Any]:
        """The rows, targets as the model takes them."""
        names = self._names
        whole = hello.ids is names
        places = np.arange(len(names)) if whole else locate(hello.ids, names)[0]
        return [self.rows_at(places, model, hello.dtype, hello.classes)]

    def rows_at(
        self, places: Array, model: LocalModel, dtype: DTypeLike, classes: Array | None
    ) -> Rows | PrivateRows:
        """The rows of clients whose positions in the whole federation are `places`.

        `dtype` is that of the features and `classes` are those of all clients.
        """
        guard = None if self._guard is None else FitGuard(self._guard)
        with nullcontext() if guard is None else guard.counting():
            return self._rows_at(places, model, dtype, classes, guard)

    def _rows_at(
        self,
        places: Array,
        model: LocalModel,
        dtype: DTypeLike,
        classes: Array | None,
        guard: FitGuard | None,
    ) -> Rows | PrivateRows:
        if self._account is not None:
            self._account.check_unit()
        X, codes, weights, kind = self.X, self.codes, self.sample_weight, model.estimator_type
        if (noisy := self._noisy) is not None:
            if not noisy.declares(kind):
                raise Refused(f"its bounds declare nothing of a {kind}")
            y = None if kind is None or self.y is None else self._targets(kind)
        else:
            y = self._checked.get(kind, self.y)
        classifier = kind == "classifier"
        if classes is not None and not classifier:
            raise Refused(f"classes are those of classifiers, the model is {model!r:.80}")
        if kind is None or (classifier and classes is None):
            y = None  # without classes predictions can be made
        elif classes is not None:
            # An answer about classes that the server chooses would tell the targets, one by one.
            known = known_classes(y, self.codes, self._guard, self._account)
            if known is None or not np.isin(known, classes).all():
                raise ValueError("y has classes that are not among those of the model.")
            y = np.searchsorted(classes, y)
        elif np.asarray(y).dtype.kind in "iub":
            y = np.asarray(y, dtype=float)  # integers are codes of classes
        check_float(dtype)  # integers would cut values off where the server chooses
        X = X if X.dtype == dtype else X.astype(dtype)
        # An error about rows would be an answer without noise.
        if np.dtype(model.dtype) != X.dtype and noisy is None:  # networks are in single precision
            numbers = {"X": X, "y": None if classes is not None else y}
            for name, values in {**numbers, "sample_weight": weights}.items():
                if values is not None:
                    check_size(values, name, model.dtype)
        if y is not None:
            model.check_target(y if noisy is None else noisy.declared_target)
        if self._account is not None:
            if noisy is not None:
                right = self.right_rows(None if y is None else kind)
                if y is not None and not classifier:
                    right &= wrong_rows.suit(model, y)
                X, y, codes, weights = wrong_rows.without(right, X, y, codes, weights)
            rows = Rows(X, y, codes, weights, places, self.n_jobs)
            # The place of a policy is one party.
            return PrivateRows(rows, self._account, model, self.ids, self._guard is None)
        wraps = [] if self.faults is None else [self.faults.wrapper(self.ids, places)]
        about = self.n_jobs, wraps, guard, self._keys
        return Rows(X, y, codes, weights, places, *about)


class FanOutFederation(Federation):
    """Clients of several federations, as one.

    Parameters
    ----------
    parts : list of Federation
        Each with its own clients, and without ``min_clients`` and ``max_share`` of its own.
    min_clients : int, default=1
        How many clients have to answer when they are asked.
    retries : int, default=10
        How often silent clients are asked again where all are needed.
    max_share : float or None, default=None
        Largest share of the total weight that a client may have. Weights are declared by the
        clients: the rows of a client with more count less. None is no limit.

    Examples
    --------
    >>> from skcfl import FedAvgRegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.federation import FanOutFederation, InProcessFederation
    >>> data = make_clustered_regression(n_clients=6, n_clusters=2, random_state=0)
    >>> here = data.groups < "client03"
    >>> federation = FanOutFederation(
    ...     [
    ...         InProcessFederation(data.X[here], data.y[here], data.groups[here]),
    ...         InProcessFederation(data.X[~here], data.y[~here], data.groups[~here]),
    ...     ]
    ... )
    >>> len(FedAvgRegressor().fit_federation(federation).groups_)
    6
    """

    def __init__(
        self,
        parts: Sequence[Federation],
        *,
        min_clients: int = 1,
        retries: int = 10,
        max_share: float | None = None,
    ) -> None:
        self.parts = list(parts)
        self.min_clients, self.retries, self.max_share = checked(min_clients, retries, max_share)
        if not self.parts:
            raise ValueError("parts must hold at least one federation, got none.")
        for k, part in enumerate(self.parts):
            for name, usual in (("min_clients", 1), ("max_share", None)):
                if getattr(part, name) != usual:
                    raise ValueError(
                        f"part {k} has {name}={getattr(part, name)} of its own, where one limit "
                        "holds for the clients of all parts: set it on the FanOutFederation."
                    )

    @property
    def carries_objects(self) -> bool:  # type: ignore[override]
        """True if all parts are in one organisation."""
        return all(part.carries_objects for part in self.parts)

    def _declared(self) -> ClientPrivacy | None:
        each = [part._declared() for part in self.parts]
        if None in each and any(each):
            raise PrivacyError("All places must declare the same privacy, and some declare none.")
        return each[0]

    def _check_owner(self, method: str) -> None:
        for part in self.parts:
            part._check_owner(method)

    def _with_masks(self, least: int) -> Self:
        return private_copy(self, parts=[part._with_masks(least) for part in self.parts])

    def _under(self, privacy: ClientPrivacy) -> Self:
        return private_copy(self, parts=[part._under(privacy) for part in self.parts])

    @property
    def wire_bytes(self) -> tuple[int, int]:  # type: ignore[override]
        """Bytes ``(up, down)`` that have travelled in all parts since the last hello."""
        each = [part.wire_bytes for part in self.parts]
        return sum(up for up, _ in each), sum(down for _, down in each)

    def hello(self, kind: Kind = None) -> Handshake:
        """Ask the clients who they are; see :meth:`Federation.hello`."""
        return joined_hellos([(f"part {k}", p.hello(kind)) for k, p in enumerate(self.parts)])

    def rows(self, model: LocalModel, hello: Handshake) -> list[Any]:
        """The rows of all parts."""
        return in_one_place([rows for part in self.parts for rows in part.rows(model, hello)])

    def collected(self, answers: Iterator[Array]) -> Array:
        """Entries of all rows, part by part; see :meth:`Federation.collected`."""
        return np.concatenate([part.collected(answers) for part in self.parts])


def _present(parts: Any, presence: Presence, hello: Handshake, model: LocalModel) -> list[Any]:
    """What the places hold without the rows of clients that are left out.

    A place all of whose clients are left out is not asked any more.
    """
    lost = np.flatnonzero(presence.left_out)
    if len(lost) == 0:
        return parts
    X, y = np.zeros((0, hello.n_features), hello.dtype), None
    if model.estimator_type is not None:
        y = np.zeros(0, float if hello.classes is None else int)
    none = np.zeros(0, dtype=np.intp)
    return [
        part.without(lost)
        if not presence.left_out[part.places].all()
        else Rows(X, y, none, None, part.places)
        for part in parts
    ]


def limits_of(federation: Federation) -> dict[str, Any]:
    """The limits of a federation, for one that is made from it."""
    return {name: getattr(federation, name) for name in ("min_clients", "retries", "max_share")}


def checked(min_clients: int, retries: int, share: float | None) -> tuple[int, int, float | None]:
    """The least number of clients, retries and the largest share of a client, checked."""
    counts = whole_number(min_clients, "min_clients"), whole_number(retries, "retries", 0)
    return *counts, check_share(share)


def _class_factors(class_weight: dict[Any, float], classes: Any) -> Array:
    """Factors of the weights of each class's rows that a user gives."""
    factors = compute_class_weight(class_weight, classes=classes, y=classes)
    if not (np.isfinite(factors) & (factors >= 0)).all() or not factors.any():
        raise ValueError(
            "class_weight must have finite numbers that are not negative, at least one of "
            f"them positive, got {class_weight!r}."
        )
    return factors
