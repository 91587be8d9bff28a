"""Rows that belong to clients: their ids, their checks, and the federation that a fit asks."""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from numbers import Integral
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import check_is_fitted, validate_data

from .._checks import about
from .._typing import Array, Groups, Kind, MatrixLike, Targets, Weights
from ..clients.ids import check_ids, column_position, encode, family, locate
from ..exceptions import PrivacyError, RejectedClientWarning, SingleClientWarning
from ..federation.checking import FLOATS, as_rows, check_features, check_targets, check_weights
from ..federation.federation import Federation, InProcessFederation
from ..federation.handshake import Handshake
from ..federation.presence import Presence
from .fitting import BaseFit, Task

_METHODS_WITH_GROUPS = (
    "fit",
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "score",
)

#: Methods that need sums only, the first choice first.
PRIVATE_METHODS = ("PartialPooling", "FedAvg", "IFCA", "OracleClusters", "Ditto", "PFedMe")
PRIVATE_METHODS += ("FedRep",)


def needs_single_answers(estimator: Any) -> PrivacyError:
    """The error of an estimator that private clients do not answer."""
    return PrivacyError(
        f"{type(estimator).__name__} needs single answers of clients, and clients under privacy "
        f"give sums: {', '.join(PRIVATE_METHODS)} need nothing else."
    )


class OfClients(BaseFit):
    """Base of the estimators of rows that belong to clients.

    A subclass has the parameters ``group_col``, ``n_jobs`` and ``random_state``.
    """

    group_col: str | int | None
    n_jobs: int | None
    random_state: Any

    _parameter_constraints: dict[str, Any] = {
        "group_col": [str, Integral, None],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
    }

    # What every fit publishes.
    groups_: Array
    floats_up_: int
    floats_down_: int
    calls_: int
    client_calls_: int
    wire_bytes_: tuple[int, int]
    missing_clients_: Array
    absences_: list[dict[str, Any]]
    rejected_clients_: Array
    _has_groups: bool
    _row_shape: tuple[int, ...] | None

    @property
    @abstractmethod
    def _n_model_features(self) -> int:
        """Number of features without the column of the ids, after fit."""

    @property
    def _n_user_features(self) -> int:
        """Number of columns that the user gives for them."""
        return self._n_model_features

    @abstractmethod
    def _open(
        self,
        federation: Federation,
        hello: Handshake,
        header: Any,
        groups: Array | None,
        before: Presence | None = None,
    ) -> Task:
        """What a fit to the clients of a federation is about.

        Clients that an attempt `before` lost or rejected are left out.
        """

    def _check_number(self, n_clients: int) -> None:
        """Raise a ValueError if there are too few clients."""

    def _kind(self) -> Kind:
        """Estimator type: "classifier", "regressor" or None (unsupervised)."""
        return getattr(self._local_model(), "estimator_type", None)

    # ------------------------------------------------------------------------------------ fit

    def _task(self, X: MatrixLike, y: Targets, groups: Groups, sample_weight: Weights) -> Task:
        """Check the rows and find their clients: what a fit is about, the estimator unchanged."""
        header = copy.copy(self)  # takes n_features_in_ and feature_names_in_
        X, ids = self._take_ids(X, groups, header)
        X, y = self._check_rows(X, y, dtype=FLOATS)
        sample_weight = check_weights(sample_weight, X)
        groups, codes = self._check_clients(ids, X.shape[0])
        ids = np.zeros(1, dtype=int) if groups is None else groups
        about = {"sample_weight": sample_weight, "n_jobs": self.n_jobs}
        about |= {"row_shape": header._row_shape, "codes": codes, "ids": ids}
        kind = self._kind()
        federation = InProcessFederation.of_checked(kind, X=X, y=y, **about)
        return self._open(federation, federation.hello(kind), header, groups)

    def _federation_task(self, federation: Federation) -> Task:
        """Ask the clients who they are: what a fit is about, the estimator unchanged."""
        hello, header = self._introduced(federation)
        if hello.privacy is not None:
            raise needs_single_answers(self)
        return self._open(federation, hello, header, hello.ids)

    def _introduced(self, federation: Federation) -> tuple[Handshake, Any]:
        """Who the clients are, and what carries the names of their features."""
        check_federation(federation)
        if self.group_col is not None:
            raise ValueError(
                "group_col must be None where a federation is fitted, which knows the clients of "
                f"its rows, got {self.group_col!r}."
            )
        hello = federation.hello(self._kind())
        header = copy.copy(self)
        header._row_shape = hello.row_shape
        header.n_features_in_ = hello.n_features
        header.__dict__.pop("feature_names_in_", None)
        if hello.feature_names is not None:
            header.feature_names_in_ = hello.feature_names
        self._check_number(len(hello.ids))
        return hello, header

    def _check_clients(self, ids: Any, n_samples: int) -> tuple[Array | None, Array]:
        """Sorted ids of the clients, None if there are none, and each row's client."""
        if ids is None:
            warnings.warn(
                f"{type(self).__name__}.fit got no groups, so all rows are one client and one "
                "model is fitted. If a tool such as cross_val_score or GridSearchCV called fit, "
                "it passed groups to the splitter only: put the ids in a column of X, set "
                "group_col to its name, and pass cv=ClientKFold(group_col=...) of "
                "skcfl.model_selection, which splits the rows inside each client; or enable "
                "metadata routing. Else pass groups= with one client id per row.",
                SingleClientWarning,
                stacklevel=5,
            )
            return None, np.zeros(n_samples, dtype=np.intp)
        groups, codes = self._encode_ids(check_ids(ids, n_samples, self._ids_name()))
        self._check_number(len(groups))
        return groups, codes

    def _encode_ids(self, ids: Array) -> tuple[Array, Array]:
        """Sorted ids of the clients and each row's client; a method may know of more clients."""
        return encode(ids)

    def _of_the_pool(self, task: Task) -> tuple[dict[str, Any], Array, bool]:
        """Attributes of the clients and of what they sent; who is missing, and if all is known."""
        pool, ids = task.pool, task.hello.ids
        missing, complete = pool.roll_call()
        fitted = {
            "groups_": ids,
            "missing_clients_": ids[missing],
            "absences_": pool.presence.absences.listed(),
            "rejected_clients_": ids[pool.rejected],
            "_n_rows": pool.n_samples,
            "_has_groups": task.groups is not None,
            "_row_shape": task.header._row_shape,
            **pool.ledger.published(),
        }
        return fitted, missing, complete

    def _found(self, task: Task) -> Iterator[tuple[str, type[Warning]]]:
        rejected = self.rejected_clients_
        if len(rejected):
            some = ", ".join(map(repr, rejected[:5].tolist()))
            yield (
                f"{len(rejected)} of {len(self.groups_)} clients sent numbers that "
                f"are not finite, and take no part: {some}"
                f"{', ...' if len(rejected) > 5 else ''} (rejected_clients_).",
                RejectedClientWarning,
            )

    def _feature_names(self, header: Any, n_features: int) -> Array:
        """Names of the features, without the group column."""
        names = getattr(header, "feature_names_in_", None)
        if names is None:
            return np.array([f"x{k}" for k in range(n_features)], dtype=object)
        if self.group_col is None:
            return np.array(names)
        return np.delete(names, column_position(self.group_col, names, len(names)))

    # ------------------------------------------------------------------------------------ rows

    def _take_ids(self, X: Any, groups: Groups, header: Any = None) -> tuple[Any, Any]:
        """Check the columns of X and take the ids out of them: features, ids (None if none).

        What a fit learns of the columns goes to `header`; without one they must be those of fit.
        """
        fits, known = header is not None, self if header is None else header
        X, shape = as_rows(X)
        if shape is not None:
            self._check_row_shape(shape, fits)
        if fits:
            header._row_shape = shape
        with about("X"):
            validate_data(known, X, reset=fits, skip_check_array=True)
        if self.group_col is None:
            ids = groups
        else:
            X, ids = self._take_column(X, groups, known)
        if not fits and X.shape[1] != self._n_user_features:
            raise ValueError(
                f"The fit had {self._n_user_features} features, X has {X.shape[1]} besides "
                f"the ids: group_col, now {self.group_col!r}, was changed after fit. Fit again."
            )
        return self._numbers(X, header), ids

    def _numbers(self, X: Any, header: Any) -> Any:
        """X with numbers in the place of whatever is none."""
        return X

    def _take_column(self, X: Any, groups: Groups, header: Any) -> tuple[Any, Any]:
        if groups is not None:
            raise ValueError(
                f"groups and group_col={self.group_col!r} are both given. The ids come from one "
                "place: leave groups out, or set group_col=None. (Under metadata routing, groups "
                "still reach a splitter.)"
            )
        # an array passed after a fit on a DataFrame has the columns of fit, as its features have
        names = getattr(X, "columns", getattr(header, "feature_names_in_", None))
        position = column_position(self.group_col, names, X.shape[1])
        others = np.delete(np.arange(X.shape[1]), position)
        if sparse.issparse(X):
            return X[:, others], X[:, [position]].toarray().ravel()
        return _safe_indexing(X, others, axis=1), _safe_indexing(X, position, axis=1)

    def _ids_name(self) -> str:
        return "groups" if self.group_col is None else f"Column group_col={self.group_col!r} of X"

    def _check_row_shape(self, shape: tuple[int, ...], fits: bool) -> None:
        """Raise a ValueError if rows of several axes are not those of fit, or hold the ids."""
        if fits:
            self._local_model().for_rows(shape)
        elif shape != self._row_shape:
            raise ValueError(
                f"X has rows of shape {shape}; fit had rows of shape "
                f"{self._row_shape or (self.n_features_in_,)}."
            )
        if self.group_col is not None:
            raise ValueError(
                f"group_col must be None where X has rows of shape {shape}, which have no columns "
                f"to take ids from, got {self.group_col!r}. Pass groups=."
            )

    def _check_features(self, X: Any, dtype: Any) -> Any:
        return check_features(X, dtype, self)

    def _check_rows(self, X: Any, y: Any, dtype: Any) -> tuple[Any, Any]:
        """Features and targets, y None if the local model is unsupervised."""
        X = self._check_features(X, dtype)
        kind = self._kind()
        return X, None if kind is None else check_targets(y, X, kind, self)

    # ----------------------------------------------------------------------------- federations

    def _hello_of(self, federation: Federation, kind: Kind) -> Handshake:
        """Who the clients are, if they have the features of fit."""
        check_is_fitted(self)
        check_federation(federation)
        hello, name, n = federation.hello(kind), type(self).__name__, self._n_model_features
        if hello.n_features != n:
            raise ValueError(
                f"{name} was fitted on {n} features, the clients of the federation have "
                f"{hello.n_features}."
            )
        theirs = hello.feature_names
        if hasattr(self, "feature_names_in_") and theirs is not None:
            names = list(self._feature_names(self, n))
            if names != list(theirs):
                raise ValueError(
                    f"{name} was fitted on the features {names}, the clients of the federation "
                    f"have {list(theirs)}."
                )
        return hello

    # ---------------------------------------------------------------------------- scikit-learn

    def get_metadata_routing(self) -> Any:
        """Metadata that the methods ask for.

        With ``group_col`` the estimator does not ask for ``groups``, so that these can be passed
        for a splitter's sake.

        Returns
        -------
        routing : MetadataRequest
            The requests.
        """
        routing: Any = super().get_metadata_routing()
        if self.group_col is not None:
            for method in _METHODS_WITH_GROUPS:
                request = getattr(routing, method)
                if "groups" in request.requests:  # the local model may offer no probabilities
                    request.add_request(param="groups", alias=False)
        return routing


def check_new_ids(known: Array, clients: Array | None) -> Array:
    """Ids of new clients; raise a ValueError for no ids, ids of another type, or known ids."""
    if clients is None:
        raise ValueError(
            "adapt needs clients with ids: fit with groups= (or group_col) and pass the ids "
            "of the new clients the same way."
        )
    if len(known) == 0:
        return clients
    if family(known) != family(clients):
        raise ValueError(
            "groups must hold ids of one type: in fit they are such as "
            f"{known[:1].tolist()[0]!r}, those of the new clients {clients[:1].tolist()[0]!r}."
        )
    positions, unseen = locate(known, clients)
    if len(unseen) < len(clients):
        seen = clients[positions >= 0].tolist()
        raise ValueError(
            f"groups holds clients that were seen in fit: {seen[:5]}. Pass rows of new "
            "clients only; fit again to learn more of the others."
        )
    return clients


def check_federation(federation: Any) -> None:
    """Raise a TypeError if this is no federation."""
    if not isinstance(federation, Federation):
        raise TypeError(
            "federation must be one of skcfl.federation, such as InProcessFederation, got "
            f"{type(federation).__name__}."
        )
