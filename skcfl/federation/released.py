"""Record-level privacy: one noisy matrix of second moments a client, and rows that have it.

A client adds up ``z z'`` over its rows, ``z = (1, x, y)`` in declared units, each scaled down to a
norm of C.  One record changes the sum by at most ``C^2`` in Frobenius norm, so symmetric Gaussian
noise of standard deviation ``m C^2`` on the diagonal, and ``m C^2 / sqrt(2)`` beside it, makes it
private with the multiplier m, and no server has to be trusted.  The positive semidefinite part of
the matrix is that of as many *pseudo-rows* as it has columns, and quadratic methods know rows by
their second moments only: they run on pseudo-rows, and all that follows is private too.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from .._checks import LARGEST, whole_number
from .._typing import Array, MatrixLike
from ..calls.answer_bounds import OutOfBounds
from ..calls.releases import rounded
from ..exceptions import FederationError, PrivacyError
from ..numerics.gaussian_mechanism import multiplier_of
from .bounds import check_ids, require
from .checking import check_features
from .federation import InProcessFederation, limits_of
from .file_lock import locked, write_whole
from .privacy import BOUNDS, DEVIATIONS, ClientPrivacy
from .private_sums import private_copy
from .rows import Rows
from .sites import PlaceLost, Refused, WrappedSite
from .wrong_rows import without

if TYPE_CHECKING:
    from ..models import LocalModel
    from .handshake import Handshake

#: Bound of the norm of a row, in roots of the number of its columns.
ROOM = 1.3
#: Least weight of a pseudo-row: noisy numbers of rows may be negative.
LEAST_WEIGHT = 0.1
#: Least dispersion that noisy sums may claim, in units of the declared target.
LEAST_DISPERSION = 0.05
#: What a site releases, beside what it declares.
RELEASED = {"ids", "moments", "noise"}
#: What it declares.
DECLARED = {"epsilon", "delta", "features", "target"}
#: Why nothing is chosen on parts of pseudo-rows.
NO_FOLDS = (
    "Released second moments have no rows to hold out, by which lam='auto', n_clusters='auto' and "
    "other automatic choices compare models. Give the values, or release with n_folds and compare "
    "fits to train(k) on held_out(k); LamSearch('bic') chooses lam without held-out rows."
)


class PseudoRows(Rows):
    """Rows that are scored with others only: single ones mean nothing."""

    def take(self, index):
        """Refuse to score the models of a fold on some of the rows."""
        raise ValueError(NO_FOLDS)


class PseudoSite(WrappedSite):
    """Site with rows that are neither held out nor the observations of a test."""

    def _of(self, site, clients=slice(None)):
        return PseudoSite(site)

    def answer(self, call, arguments):
        """Answers, but to tests, which need the distribution of rows."""
        if call == "score_draws":
            raise FederationError("tests and intervals need rows, not released second moments")
        return self.site.answer(call, arguments)

    def derive(self, step, *arguments):
        """Sites of the same clients, or of some of them, with all rows."""
        if step in {"held_out", "folds"}:
            raise ValueError(NO_FOLDS)
        return super().derive(step, *arguments)


class ReleasedFederation(InProcessFederation):
    """Pseudo-rows of clients that have released their second moments, with record-level noise.

    Made by ``federation.released(...)``. Any estimator with squared error fits them that has
    ``fit_intercept=False`` and ``standardize=False``: a column of ones is among the features.
    Pseudo-rows are not held out, so that "auto" choices that hold rows out raise a ValueError.
    Targets and features are in declared units, see :meth:`design` and :meth:`target`.

    Parameters
    ----------
    ids : ndarray of shape (n_clients,)
        The clients.
    moments : ndarray of shape (n_folds, n_clients, q, q)
        Noisy sums over the rows of each fold; q is the number of features, plus two.
    noise : float
        Standard deviation of the noise on a diagonal.
    privacy : ClientPrivacy
        What was declared.
    n_jobs : int or None, default=None
        As of :class:`InProcessFederation`.

    Attributes
    ----------
    epsilon, delta : float
        Privacy of each record.
    n_folds : int
        Folds of the rows.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import DittoRegressor
    >>> from skcfl.federation import InProcessFederation
    >>> rng = np.random.default_rng(0)
    >>> X, hospital = rng.standard_normal((2000, 2)), np.repeat(np.arange(8), 250)
    >>> y = X @ [1.0, -0.5] + 0.3 * rng.standard_normal(2000)
    >>> federation = InProcessFederation(X, y, hospital)
    >>> bounds = {"features": (-2, 2), "target": (-2, 2)}
    >>> released = federation.released(4.0, bounds=bounds, random_state=0)
    >>> model = DittoRegressor(lam=0.1, fit_intercept=False, standardize=False)
    >>> model.fit_federation(released).cluster_coef_[0, 1:].round(1)
    array([ 1. , -0.5])
    >>> released.target(model.predict(released.design(X), groups=hospital)).shape
    (2000,)
    """

    def __init__(
        self,
        ids: Array,
        moments: Array,
        noise: float,
        privacy: ClientPrivacy,
        n_jobs: int | None = None,
    ) -> None:
        self.moments, self.noise, self.declared = moments, noise, privacy
        self.epsilon, self.delta, self.n_folds = privacy.epsilon, privacy.delta, len(moments)
        rows, weights = pseudo_rows(moments.sum(axis=0))
        n, q = len(ids), moments.shape[-1]
        X, y = rows[:, :, :-1].reshape(n * q, q - 1), rows[:, :, -1].ravel()
        super().__init__(X, y, np.repeat(ids, q), weights.ravel(), n_jobs=n_jobs)

    def rows(self, model: LocalModel, hello: Handshake) -> list[Any]:
        """The pseudo-rows, for a model that knows rows by their second moments."""
        quadratic = getattr(model, "quadratic", False) and hasattr(model, "fit_intercept")
        intercept = getattr(model, "fit_intercept", True)
        if not quadratic or intercept or model.standardize:
            raise ValueError(
                "Released second moments need a linear model with loss='squared_error', "
                "fit_intercept=False and standardize=False, as one column of the pseudo-rows is "
                f"the intercept's; got {model!r:.200}."
            )
        (rows,) = super().rows(model, hello)
        about = rows.X, rows.y, rows.codes, rows.sample_weight, rows.places, self.n_jobs
        return [PseudoRows(*about, wraps=[PseudoSite])]

    def design(self, X: MatrixLike) -> Array:
        """Rows as the pseudo-rows are: a column of ones, and the features in declared units.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features in the user's units.

        Returns
        -------
        design : ndarray of shape (n_samples, n_features + 1)
        """
        return _design(np.asarray(X, dtype=float), self.declared)

    def target(self, predictions: Array) -> Array:
        """Predictions of a fit in the user's units.

        Parameters
        ----------
        predictions : ndarray of shape (n_samples,)
            In declared units.

        Returns
        -------
        targets : ndarray of shape (n_samples,)
        """
        low, high = self.declared.bounds["target"]
        return 0.5 * (low + high) + (high - low) / DEVIATIONS * np.asarray(predictions)

    def train(self, fold: int) -> ReleasedFederation:
        """The clients without the rows of one fold; see :meth:`held_out`."""
        return self._of(np.delete(self.moments, fold, axis=0))

    def held_out(self, fold: int) -> ReleasedFederation:
        """The clients with the rows of one fold, to judge a fit to :meth:`train`."""
        return self._of(self.moments[fold : fold + 1])

    def _of(self, moments: Array) -> ReleasedFederation:
        made = ReleasedFederation(self.ids, moments, self.noise, self.declared, self.n_jobs)
        return private_copy(made, **limits_of(self))

    def pooled(self) -> InProcessFederation:
        """Pseudo-rows for :class:`~skcfl.PartialPooling`, with the noise in their likelihood.

        The normal equations ``b_i - G_i x_i`` of a client have the variance ``s^2 G_i`` of its
        rows, and that of the noise. Pseudo-rows of these make directions count by what they
        are worth. Their dispersion is 1, and curves of their columns mean nothing: fit with
        ``dispersion=1.0, df=numpy.inf, basis="linear"`` and one cluster.

        Returns
        -------
        federation : InProcessFederation

        Raises
        ------
        ValueError
            If the federation has a ``max_share``.
        """
        if self.max_share is not None:
            raise ValueError(
                f"max_share must be None for pooled(), got {self.max_share}: its rows have no "
                "weights."
            )
        sums = self.moments.sum(axis=0)
        values, vectors = np.linalg.eigh(sums)
        A = vectors * np.maximum(values, 0.0)[:, None, :] @ vectors.transpose(0, 2, 1)
        G, b, c = A[:, :-1, :-1], A[:, :-1, -1], A[:, -1, -1]
        n, p = b.shape
        rows = np.maximum(A[:, 0, 0], 1.0).sum()
        theta = np.linalg.solve(G.sum(axis=0) + 1e-6 * np.eye(p), b.sum(axis=0))
        s2 = max(float(c.sum() - theta @ b.sum(axis=0)) / rows, LEAST_DISPERSION)
        # Each fold has noise of its own.
        v = self.n_folds * self.noise**2 / 2 * (1.0 + theta @ theta)
        g, U = np.linalg.eigh(G)
        g = np.maximum(g, 0.0)
        spread = s2 * g + v + 1e-9
        root = g / np.sqrt(spread)
        X = root[:, :, None] * U.transpose(0, 2, 1)
        y = np.einsum("ipj,ip->ij", U, b) / np.sqrt(spread)
        ids = np.repeat(self.ids, p)
        X, y, limits = X.reshape(n * p, p), y.ravel(), limits_of(self)
        return InProcessFederation(X, y, ids, n_jobs=self.n_jobs, **limits)


def pseudo_rows(moments: Array) -> tuple[Array, Array]:
    """Rows (n_clients, q, q) with given second moments, and their weights (n_clients, q)."""
    values, vectors = np.linalg.eigh(moments)
    rows = np.sqrt(np.maximum(values, 0.0))[:, :, None] * vectors.transpose(0, 2, 1)
    q = moments.shape[-1]
    counts = np.square(rows[:, :, 0]).sum(axis=1)
    weights = np.repeat(np.maximum(counts / q, LEAST_WEIGHT)[:, None], q, axis=1)
    return rows / np.sqrt(weights)[:, :, None], weights


def _design(X: Array, privacy: ClientPrivacy) -> Array:
    low, high = (np.broadcast_to(end, X.shape[1:]) for end in privacy.bounds["features"])
    scaled = (X - 0.5 * (low + high)) * (DEVIATIONS / (high - low))
    return np.column_stack([np.ones(len(X)), scaled])


def clipped_rows(Z: Array) -> tuple[Array, float]:
    """Rows scaled down to a norm, and the norm."""
    bound = ROOM * np.sqrt(Z.shape[1])
    size = np.linalg.norm(Z, axis=1, keepdims=True)
    return Z * np.minimum(1.0, bound / np.maximum(size, 1e-300)), float(bound)


def _noise_of(privacy: ClientPrivacy, n_columns: int) -> float:
    """Standard deviation of the noise on the diagonal of a matrix."""
    bound = float(ROOM * np.sqrt(n_columns))
    return multiplier_of(privacy.epsilon, privacy.delta) * bound**2


def release_moments(
    federation: Any, privacy: ClientPrivacy, n_folds: int = 1
) -> ReleasedFederation:
    """Let the clients of a federation in this process release their second moments.

    Parameters
    ----------
    federation : InProcessFederation
        The clients.
    privacy : ClientPrivacy
        With the unit "record".
    n_folds : int, default=1
        Folds of the rows of each client, each with a matrix of its own: a record is in one of
        them, so that they cost what one does.

    Returns
    -------
    federation : ReleasedFederation

    Raises
    ------
    ValueError
        If the rows are elsewhere, sparse, or the target has no bounds.
    """
    if not isinstance(federation, InProcessFederation) or sparse.issparse(federation.X):
        raise ValueError(
            "released() needs dense rows in this process, or sites that declare what they release "
            f"in their policy, got {type(federation).__name__}."
        )
    if federation.faults is not None:
        raise ValueError(
            f"faults must be None where second moments are released, got {federation.faults!r}."
        )
    whole_number(n_folds, "n_folds", 1, 1000)
    if "target" not in privacy.bounds:
        raise ValueError("bounds must declare 'target' for released second moments.")
    if federation.sample_weight is not None:
        raise ValueError("sample_weight must be None where second moments are released.")
    X = check_features(federation.X, dtype=float)
    y, right = federation._targets("regressor"), federation.right_rows("regressor")
    X, y, codes = without(right, X, y, federation.codes)
    low, high = privacy.bounds["target"]
    scaled = (np.asarray(y, dtype=float) - 0.5 * (low + high)) * (DEVIATIONS / (high - low))
    Z, _ = clipped_rows(np.column_stack([_design(X, privacy), scaled]))
    q, n = Z.shape[1], len(federation.ids)
    rng = federation._noise_rng(privacy)
    fold = rng.integers(n_folds, size=len(Z))
    moments = np.zeros((n_folds, n, q, q))
    np.add.at(moments, (fold, codes), Z[:, :, None] * Z[:, None, :])
    sd = _noise_of(privacy, q)
    draws = rng.standard_normal(moments.shape)
    upper = np.triu(draws / np.sqrt(2.0), 1)
    noise = upper + np.swapaxes(upper, -1, -2)
    noise[..., np.arange(q), np.arange(q)] = draws[..., np.arange(q), np.arange(q)]
    moments = rounded(moments + sd * noise, sd)
    made = ReleasedFederation(federation.ids, moments, sd, privacy, federation.n_jobs)
    return private_copy(made, **limits_of(federation))


# ------------------------------------------------------------------------- at sites


def kept_release(federation: Any, n_folds: int) -> dict[str, Any]:
    """The release that a policy lets clients make, drawn once and kept in the file of its account.

    Parameters
    ----------
    federation : InProcessFederation
        The clients, with a policy that declares the unit "record".
    n_folds : int
        As of :func:`release_moments`.

    Returns
    -------
    release : dict
        "ids", "moments" and "noise" of :class:`ReleasedFederation`, and the declared terms.

    Raises
    ------
    Refused
        If the policy declares none, the file has another release, or client ids are neither
        numbers nor text.
    """
    privacy = federation._declared()
    if privacy is None or privacy.unit != "record":
        raise Refused("its policy declares no release of records")
    terms = {"epsilon": privacy.epsilon, "delta": privacy.delta, **privacy.bounds}
    path, ids = Path(privacy.account), federation.ids
    if ids.dtype == object:  # a file would hold them as a pickle, which is not read
        ids = np.array(ids.tolist())
    if ids.dtype == object:
        raise Refused("client ids must be numbers or text where second moments are released")
    with locked(path):  # of two jobs at the same time, too, one makes the release
        if not path.exists():
            made = release_moments(federation, privacy, n_folds)
            whole = {"ids": ids, "moments": made.moments, "noise": made.noise, **terms}
            file = io.BytesIO()
            np.savez(file, **whole)
            # A file that is cut would be a second release.
            write_whole(path, file.getvalue())
    with np.load(path, allow_pickle=False) as kept:
        found = {name: kept[name] for name in kept.files}
    same = found.keys() == {"ids", "moments", "noise", *terms}
    same = same and all(np.array_equal(found[name], value) for name, value in terms.items())
    if not same or len(found["moments"]) != n_folds:
        raise Refused(
            "it has released second moments under other terms, or in other folds, and does so once"
        )
    return {**found, "noise": float(found["noise"]), **terms}


def released_by_sites(federation: Any, n_folds: int) -> ReleasedFederation:
    """What the sites of a federation release, by their policies.

    Parameters
    ----------
    federation : RemoteFederation
        The sites.
    n_folds : int
        As of :func:`release_moments`.

    Returns
    -------
    federation : ReleasedFederation

    Raises
    ------
    PrivacyError
        If a site does not answer, or sites declare different terms.
    """
    places = getattr(federation, "_roots", None)
    if places is None:
        raise ValueError("epsilon and bounds must be given for rows of this process.")
    parts: list[dict[str, Any]] = []
    waiting = [place.start("released", n_folds) for place in places]
    for place, wait in zip(places, waiting, strict=True):
        transport = place.line.transport
        try:
            found = wait()
            _check_releases(found, n_folds, transport.site)
        except PlaceLost as error:
            raise PrivacyError(f"a site does not release its second moments: {error}.") from error
        except OutOfBounds as error:
            raise PrivacyError(
                f"{transport.name} released something else than second moments: {error}."
            ) from error
        parts += found
    terms = {name: value for name, value in parts[0].items() if name not in RELEASED}
    for part in parts[1:]:
        if part.keys() != parts[0].keys() or not all(
            np.array_equal(part[name], value) for name, value in terms.items()
        ):
            raise PrivacyError("All sites must declare the same epsilon, delta and bounds.")
    bounds = {name: tuple(terms[name]) for name in BOUNDS & terms.keys()}
    privacy = ClientPrivacy(terms["epsilon"], terms["delta"], "record", bounds)
    if len({part["moments"].shape[2] for part in parts}) > 1:
        raise PrivacyError("All sites must have the same features.")
    ids = np.concatenate([part["ids"] for part in parts])
    moments = np.concatenate([part["moments"] for part in parts], axis=1)
    if len(np.unique(ids)) < len(ids):
        raise PrivacyError("the rows of a client are released at several sites.")
    order = np.argsort(ids)
    sd = _noise_of(privacy, moments.shape[-1])
    made = ReleasedFederation(ids[order], moments[:, order], sd, privacy)
    return private_copy(made, **limits_of(federation))


def _check_releases(parts: Any, n_folds: int, site: str | None) -> None:
    """Raise OutOfBounds unless a place has sent the releases of its parts."""
    require(isinstance(parts, list) and len(parts) > 0, "its releases are no list")
    for part in parts:
        whole = isinstance(part, dict) and part.keys() >= RELEASED | DECLARED
        require(whole, "a release is not whole")
        check_ids(part["ids"], site)
        moments = part["moments"]
        whole = isinstance(moments, np.ndarray) and moments.dtype == np.float64
        shape = (n_folds, len(part["ids"]))
        whole = whole and moments.ndim == 4 and moments.shape[:2] == shape
        require(whole and moments.shape[2] == moments.shape[3] > 2, "its matrices are none")
        within = np.abs(moments).max() <= LARGEST[moments.dtype]
        require(within, "its matrices hold numbers that are too large, or NaN")
