"""What a server can compute about rows from the messages of a fit."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from sklearn.base import clone

from .._typing import Array
from ..calls import CALLS
from ..federation.federation import InProcessFederation
from ..federation.sites import WrappedSite

if TYPE_CHECKING:
    from ..federation.federation import Federation

#: Relative error up to which something counts as found.
FOUND = 1e-2
#: Condition of a system of equations beyond which a server can not solve it.
WORST_CONDITION = 1e12
# Answers that are values of losses.
_VALUES = "values", "losses"


@dataclass
class Reconstruction:
    """What a server can compute about the rows of clients; see ``reconstruct``.

    Attributes
    ----------
    rows : dict of object to float
        Relative error of the row that the server finds, by id of each client with a single row;
        infinite where it finds none.
    grams : dict of object to float
        Relative error of the matrix of second moments of the features that the server finds, by
        id of each client; infinite where it finds none.
    floats_single, floats_summed : int
        Numbers that single clients sent to the server, and numbers that were sums over clients.
    calls : dict of str to int
        How often each call was answered with arrays of single clients.
    """

    rows: dict[Any, float] = field(default_factory=dict)
    grams: dict[Any, float] = field(default_factory=dict)
    floats_single: int = 0
    floats_summed: int = 0
    calls: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = []
        of_rows = "rows of clients with one row", self.rows
        for what, errors in (of_rows, ("matrices of second moments", self.grams)):
            found = [error for error in errors.values() if error < FOUND]
            best = f", the best to {min(found):.0e}" if found else ""
            lines.append(f"{what}: {len(found)} of {len(errors)} found{best}")
        lines.append(f"floats up: {self.floats_single} single, {self.floats_summed} in sums")
        return "\n".join(lines)


@dataclass
class _Answer:
    """One answer, as the server has it: of clients at some positions."""

    call: str
    clients: Array
    arguments: dict[str, Any]
    answers: dict[str, Any]
    decay: Array


class _SpiedSite(WrappedSite):
    """Site with a list of what it was asked and has answered."""

    def __init__(self, site: Any, log: list[_Answer], clients: Array, whole: bool = True) -> None:
        super().__init__(site)
        self._log, self._clients, self._whole = log, clients, whole

    def answer(self, call: str, arguments: dict[str, Any]) -> dict[str, Any]:
        sent = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
        answers = self.site.answer(call, arguments)
        kept = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in answers.items()}
        clients = self._clients if self._whole else np.full(self.n_clients, -1)
        decay = np.asarray(getattr(self.site.model, "decay", 0.0))
        self._log.append(_Answer(call, clients, sent, kept, decay))
        return answers

    def _of(self, site: Any, clients: Any = slice(None)) -> _SpiedSite:
        return _SpiedSite(site, self._log, self._clients[clients], self._whole)

    def derive(self, step: str, *arguments: Any) -> list[Any]:
        made = super().derive(step, *arguments)
        for site in made:
            # Losses of a part of the rows have other second moments.
            site._whole = self._whole and step in {"subset", "penalised"}
        return made


class _SpiedFederation(InProcessFederation):
    """The same clients, with a list of their messages, and their design matrices."""

    log: list[_Answer]
    truth: list[Any]

    def rows_at(self, places: Array, *about: Any) -> Any:
        rows: Any = super().rows_at(places, *about)
        if not hasattr(rows, "wraps"):
            return rows  # releases only, which no single client has a part of to be found

        def wrap(site: Any) -> Any:
            if not self.truth:
                X, _, weights, codes = site.rows()
                X = X.toarray() if sparse.issparse(X) else np.asarray(X)
                self.truth.append((X, weights, codes))
            return _SpiedSite(site, self.log, np.arange(site.n_clients))

        rows.wraps = [wrap, *rows.wraps]
        return rows


def reconstruct(estimator: Any, federation: Federation) -> Reconstruction:
    """Fit a copy of an estimator, and compute about the rows what the server can.

    The attacks are those of a server that follows the protocol and keeps what it gets. A gradient
    of a linear model of a client with one row is a multiple of the row; so are its steps, and the
    difference of its posterior mean from the prior's. Values and gradients of a quadratic loss at
    different models are linear equations for the second moments of a client's features.

    Parameters
    ----------
    estimator : estimator
        With a linear model of one output.
    federation : InProcessFederation
        The clients; private and masked ones, too.

    Returns
    -------
    found : Reconstruction
        ``print(found)`` shows it.

    Raises
    ------
    TypeError
        If the rows are elsewhere, where nothing can be compared with them.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import IFCARegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.federation import InProcessFederation
    >>> from skcfl.testing import reconstruct
    >>> data = make_clustered_regression(n_clients=12, n_clusters=2, n_features=3, random_state=0)
    >>> federation = InProcessFederation(data.X, data.y, data.groups)
    >>> found = reconstruct(IFCARegressor(n_clusters=2, random_state=0), federation)
    >>> print(found)  # doctest: +ELLIPSIS
    rows of clients with one row: 0 of 0 found
    matrices of second moments: 12 of 12 found, the best to ...
    floats up: ... single, ... in sums
    """
    if not isinstance(federation, InProcessFederation):
        raise TypeError(
            "federation must be an InProcessFederation, as what is found is compared with the "
            f"rows, got {type(federation).__name__}."
        )
    spied: Any = copy.copy(federation)
    spied.__class__ = type("Spied", (_SpiedFederation, type(federation)), {})
    spied.log, spied.truth = [], []
    model = clone(estimator).fit_federation(spied)
    out = Reconstruction()
    ids = federation.ids
    sizes = np.bincount(federation.codes, minlength=len(ids))
    out.rows = dict.fromkeys(ids[sizes == 1].tolist(), math.inf)
    out.grams = dict.fromkeys(ids.tolist(), math.inf)
    if not spied.log:
        out.floats_summed = model.floats_up_
        return out
    for one in spied.log:
        _count(one, out)
    X, weights, codes = spied.truth[0]
    for k, name in enumerate(ids.tolist()):
        mine = codes == k
        design, part = X[mine], weights[mine]
        equations = _Equations(X.shape[1])
        for one in spied.log:
            at = np.flatnonzero(one.clients == k)
            if len(at):
                vectors = equations.add(one, int(at[0]))
                if name in out.rows:
                    errors = (_row_error(vector, design[0]) for vector in vectors)
                    out.rows[name] = min([out.rows[name], *errors])
        found = equations.second_moments()
        if found is not None:
            true = (design * part[:, None]).T @ design / part.sum()
            out.grams[name] = float(np.linalg.norm(found - true) / np.linalg.norm(true))
    return out


def _count(one: _Answer, out: Reconstruction) -> None:
    """Numbers of an answer, single ones and sums."""
    call, single = CALLS[one.call], 0
    for name in call.up:
        if name in one.answers and call.is_of_clients(name):
            single += int(np.size(one.answers[name]))
        else:
            out.floats_summed += int(np.size(one.answers.get(name, 0)))
    out.floats_single += single
    if single:
        out.calls[one.call] = out.calls.get(one.call, 0) + 1


def _row_error(vector: Array, row: Array) -> float:
    """Relative error of a row that is a multiple of a vector; its last entry is known to be 1."""
    if len(vector) != len(row) or vector[-1] == 0 or not np.isfinite(vector).all():
        return math.inf
    return float(np.linalg.norm(vector / vector[-1] * row[-1] - row) / np.linalg.norm(row))


class _Equations:
    """Linear equations for the Hessian H, the slope b and a constant of a client's loss.

    ``f(x) = x' H x / 2 - b' x + c``, ``f'(x) = H x - b``.
    """

    def __init__(self, p: int) -> None:
        self.p, self.upper = p, np.triu_indices(p)
        self.left: list[Array] = []
        self.right: list[float] = []

    def add(self, one: _Answer, at: int) -> list[Array]:
        """Take what an answer says of the client at a position; vectors along its row."""
        vectors: list[Array] = []
        call: Any = CALLS[one.call]
        for name, value in one.answers.items():
            if name not in call.up or not call.is_of_clients(name):
                continue
            words = call.words[name]
            part = np.asarray(value[at], dtype=float)
            if words == ("n", "p") and len(part) == self.p:
                vectors += self._vector(one, at, name, part)
            elif name in _VALUES:
                self._values(one, at, part)
        return vectors

    def _model(self, one: _Answer, at: int) -> Array | None:
        """Model that a client was asked about."""
        theta, w = one.arguments.get("theta"), one.arguments.get("w")
        if w is not None:
            return np.asarray(w, dtype=float)[at]
        labels = one.answers.get("choice", one.arguments.get("labels"))
        if theta is None or (labels is None and len(theta) > 1):
            return None
        return np.asarray(theta, dtype=float)[0 if labels is None else labels[at]]

    def _vector(self, one: _Answer, at: int, name: str, part: Array) -> list[Array]:
        x = self._model(one, at)
        if x is None:
            return [part]
        if name == "gradients":
            slope = part - one.decay * x
            for k in range(self.p):
                self._equation(_of_hessian(x, k, self.upper), np.eye(self.p)[k], 0.0, slope[k])
            return [slope]
        if name == "means":  # of posteriors under a common prior
            root = np.asarray(one.arguments["root"], dtype=float)
            if root.ndim == 1:
                return [(part - x) / np.where(root > 0, root**2, np.inf)]
            return [np.linalg.lstsq(root @ root.T, part - x, rcond=None)[0]]
        return [part - x]

    def _values(self, one: _Answer, at: int, part: Array) -> None:
        theta = one.arguments.get("theta")
        if part.ndim == 1 and theta is not None:  # losses under each model, without penalty
            for x, value in zip(np.asarray(theta, dtype=float), part, strict=True):
                self._value(x, float(value))
        elif part.ndim == 0 and (x := self._model(one, at)) is not None:
            self._value(x, float(part) - 0.5 * float(np.sum(one.decay * x**2)))

    def _value(self, x: Array, value: float) -> None:
        if len(x) == self.p and np.isfinite(value):
            double = np.where(self.upper[0] == self.upper[1], 0.5, 1.0)
            self._equation(double * x[self.upper[0]] * x[self.upper[1]], x, 1.0, value)

    def _equation(self, hessian: Array, slope: Array, constant: float, right: float) -> None:
        self.left.append(np.concatenate([hessian, -slope, [constant]]))
        self.right.append(right)

    def second_moments(self) -> Array | None:
        """The Hessian, the second moments of the features of squared error; None: too little."""
        if not self.left:
            return None
        A, right = np.array(self.left), np.array(self.right)
        if not A[:, -1].any():
            A = A[:, :-1]
        if len(A) < A.shape[1] or np.linalg.cond(A) > WORST_CONDITION:
            return None
        found = np.linalg.lstsq(A, right, rcond=None)[0][: len(self.upper[0])]
        H = np.zeros((self.p, self.p))
        H[self.upper] = found
        return H + np.triu(H, 1).T


def _of_hessian(x: Array, k: int, upper: Any) -> Array:
    """Coefficients of the upper triangle of H in the entry k of ``H x``."""
    i, j = upper
    return np.where(i == k, x[j], 0.0) + np.where((j == k) & (i != k), x[i], 0.0)
