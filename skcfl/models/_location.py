"""Location of a client's rows: the local model of convex clustering."""

from __future__ import annotations

from typing import Literal

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from .._checks import POSITIVE
from .._option_objects import parameters
from ..numerics.matrices import quotient
from ..numerics.newton import solve_scaled
from ._convex import ConvexModel

EPS = np.finfo(float).eps


@parameters
class Location(ConvexModel):
    r"""Location of a client's rows, an unsupervised local model.

    .. math:: f_i(x) = \frac{1}{n_i} \sum_l s_l \, \ell(\|x - a_l\|), \qquad n_i = \sum_l s_l,

    for rows :math:`a_l` with sample weights :math:`s_l`: the minimiser is the mean with
    ``"squared_error"`` and a robust centre with ``"huber"``.  With one row per client, sum of
    norms fusion of these models is convex clustering (Armacki et al., section II).

    Parameters
    ----------
    loss : {"squared_error", "huber"}, default="squared_error"
        Half the squared distance, or Huber's function of the distance, which is
        linear beyond `delta`.
    delta : float, default=1.0
        Residual at which the Huber loss becomes linear, in units of the features.

    Examples
    --------
    >>> from skcfl.models import Location
    >>> Location().bind(n_features=3).n_params
    3
    """

    _parameter_constraints = {
        "loss": [StrOptions({"squared_error", "huber"})],
        "delta": [POSITIVE],
    }

    #: The width of the rows about their location is not known.
    unknown_scale = True

    loss: Literal["squared_error", "huber"] = "squared_error"
    delta: float = 1.0

    def _bind(self):
        self.n_outputs = self.n_params = self.n_features
        self.decay = np.zeros(self.n_params)

    #: The multiple of the identity, but for far outliers; one row is the client's model itself.
    hessian_shows_rows = False

    @property
    def quadratic(self):
        """True if ``f_i`` is half the squared distance to the client's mean plus a constant."""
        return self.loss == "squared_error"

    #: Then every curvature is the identity.
    isotropic = _squared = quadratic

    def design(self, X):
        """Rows as they are."""
        return X

    def encode(self, y, n_rows):
        """No targets: an array of shape (n_rows, 0)."""
        return np.empty((n_rows, 0))

    def init_params(self, n_models, random_state):
        """Standard normal locations."""
        rng = check_random_state(random_state)
        return rng.normal(size=(n_models, self.n_params)).astype(self.dtype)

    def start(self, random_state=None):
        """Start of local training: the origin."""
        return np.zeros(self.n_params, dtype=self.dtype)

    def layer_slices(self):
        """Slices of the parameter vector by layer name."""
        return {"location": slice(0, self.n_params)}

    # ------------------------------------------------------------------ first order

    def losses(self, block, theta):
        """Mean loss of every client under every model: (K, p) -> (c, K)."""
        shape = (len(block.clients), self.n_params)
        states = (self.state(block, np.broadcast_to(w, shape)) for w in theta)
        return np.stack([self.mean_loss(block, E) for E in states], axis=1)

    def _moments(self, block):
        """Weighted means (c, d) in two parts, and mean squared distances to them (c,).

        A number near the mean, and the remainder: far-away data must not cost digits.
        """
        if "moments" not in block.cache:
            X, w = block.dense(), block.weights
            near = np.einsum("cn,cnd->cd", w, X)
            X = X - near[:, None, :]
            rest = np.einsum("cn,cnd->cd", w, X)
            spread = np.einsum("cn,cnd->c", w, (X - rest[:, None, :]) ** 2)
            block.cache["moments"] = near, rest, spread
        return block.cache["moments"]

    def state(self, block, w):
        """Differences to the rows, or only to the mean: the squared loss needs no more.

        Expanded squares would be faster, but lose the digits of far-away data and outliers.
        """
        if self._squared:
            near, rest, _ = self._moments(block)
            return (w - near - rest)[:, None, :]
        return w[:, None, :] - block.dense()

    def _state_change(self, block, u):
        return u[:, None, :]

    def _masses(self, block):
        """Weights of the differences, and what the loss has besides."""
        if self._squared:
            return block.weights.sum(axis=1)[:, None], 0.5 * self._moments(block)[2]
        return block.weights, 0.0

    def mean_loss(self, block, E):
        weights, constant = self._masses(block)
        return np.einsum("cn,cn->c", self._value(_lengths(E)), weights) + constant

    def _value(self, r):
        """Loss at a distance."""
        if self._squared:
            return 0.5 * r**2
        inner = np.minimum(r, self.delta)
        return inner * (r - 0.5 * inner)

    def _pull(self, block, E):
        """Distances, and the weights of the differences in the gradient, both (c, n)."""
        weights, r = self._masses(block)[0], _lengths(E)
        return r, weights if self._squared else weights * self._shrink(r)

    def _shrink(self, r):
        return np.minimum(1.0, self.delta / np.maximum(r, self.delta))

    def loss_gradient(self, block, E):
        return np.matmul(self._pull(block, E)[1][:, None, :], E)[:, 0]

    # ----------------------------------------------------------------- second order

    def _loss_hessian(self, block, E, damping=0.0):
        r, pull = self._pull(block, E)
        H = pull.sum(axis=1)[:, None, None] * np.eye(self.n_params)
        if self._squared:
            return H
        return H - np.matmul((E * self._flat(r, pull, damping)).transpose(0, 2, 1), E)

    def _loss_product(self, block, E, u, damping=0.0):
        r, pull = self._pull(block, E)
        product = pull.sum(axis=1)[:, None] * u
        if self._squared:
            return product
        along = np.matmul(E, u[:, :, None])
        return product - np.sum(along * self._flat(r, pull, damping) * E, axis=1)

    def hessian_diagonal(self, block, w, damping=0.0):
        E = self.state(block, w)
        r, pull = self._pull(block, E)
        total = pull.sum(axis=1)[:, None]
        if self._squared:
            return np.tile(total, self.n_params)
        return total - np.sum(E * self._flat(r, pull, damping) * E, axis=1)

    def _flat(self, r, pull, damping):
        """Subtracted from the curvature: beyond delta there is none towards the row."""
        damping = np.reshape(damping, (-1, 1))
        outside = np.where(r > self.delta, pull / np.maximum(r, self.delta) ** 2, 0.0)
        return ((1.0 - damping) * outside)[:, :, None]

    def _loss_diagonal(self, block):
        return np.tile(block.weights.sum(axis=1)[:, None], self.n_params) + 1e-300

    def loss_size(self, block):
        return self.mean_loss(block, self.state(block, self._first_guess(block))) + self.delta**2

    def _first_guess(self, block):
        near, rest, _ = self._moments(block)
        return near + rest

    def _closed_form(self, block, v, rho, s):
        if not self._squared:
            return self._closed_form_of_a_row(block, v, rho, s) if block.shape[1] == 1 else None
        block = block.astype(np.float64)
        near, rest, _ = self._moments(block)
        total = block.weights.sum(axis=1)[:, None]
        pull = np.zeros_like(total) if rho is None else np.asarray(rho, dtype=float)[:, None]
        # About the mean, as everywhere.
        right = np.zeros_like(near) if s is None else s
        if v is not None:
            right = right + pull * (v - near - rest)
        known = total + pull > 0
        return near + (rest + np.divide(right, total + pull, out=np.zeros_like(near), where=known))

    def _closed_form_of_a_row(self, block, v, rho, s):
        """The same for Huber's loss of clients with one row."""
        block = block.astype(np.float64)
        row, w = block.dense()[:, 0], block.weights
        if v is None:
            # At the slope's end of the domain the row plus the slope is one of the minimisers.
            return row if s is None else row + quotient(s, w)
        pull = np.asarray(rho, dtype=float)[:, None]
        target = v if s is None else v + s / pull
        E = target - row
        size = np.linalg.norm(E, axis=1, keepdims=True)
        inner = pull / (w + pull) * E
        outer = E - w * self.delta / pull * quotient(E, size)
        return row + np.where(pull * size <= self.delta * (w + pull), inner, outer)

    def rounding(self, block, w):
        """Bound of the rounding of ``f_i(w_i)`` in double precision: (c, p) -> (c,)."""
        block = block.astype(np.float64)
        slack, r = self._slack(block, w), _lengths(w[:, None, :] - block.dense())
        slope = r if self._squared else np.minimum(r, self.delta)
        rows = slack * (slope + slack)
        # With the sum over clients.
        rows += EPS * (2.0 * block.shape[1] + self.n_params + 64.0) * self._value(r)
        return np.einsum("cn,cn->c", rows, block.weights)

    def _slack(self, block, w):
        """Bounds of the rounding of the differences to the rows, or to their mean, (c, n or 1)."""
        if not self._squared:
            return 2.0 * EPS * _lengths(w[:, None, :] - block.dense())
        near = self._moments(block)[0]
        away = np.linalg.norm(w - near, axis=1)
        return (2.0 * EPS * away + self._mean_slack(block))[:, None]

    def _mean_slack(self, block):
        """Bounds of the rounding of the means, in two parts, (c,)."""
        # The second part is a mean of small numbers; its own rounding is theirs.
        _, rest, spread = self._moments(block)
        n = block.lengths
        small = np.linalg.norm(rest, axis=1) + np.where(n > 1, np.sqrt(spread), 0.0)
        return EPS * (2.0 * n + 8.0) * small

    def enclosure(self, block, w, box, dense):
        """Bounds of ``f_i`` and its derivatives in a box about ``w_i``."""
        block = block.astype(np.float64)
        c, n, p = block.shape
        total, radius = block.weights.sum(axis=1), np.linalg.norm(box, axis=1)
        slack = self._slack(block, w)
        E = self.state(block, w)
        r, pull = self._pull(block, E)
        rounding = np.einsum("cn,cn->c", self._masses(block)[0], np.broadcast_to(slack, r.shape))
        rounding += EPS * (2.0 * n + p + 16.0) * np.einsum("cn,cn->c", pull, r)
        rounding = np.repeat(rounding[:, None], p, axis=1)
        drift = total * radius
        if self._squared:
            floor = total[:, None, None] * np.eye(p)
        else:
            # Within delta the curvature is full; beyond it is flat along the difference, which
            # turns within the box.
            reach = radius[:, None] + slack
            inner = np.where(r + reach <= self.delta, block.weights, 0.0)
            beyond = r - reach > self.delta
            pull = np.where(beyond, block.weights * self.delta, 0.0)
            outer = pull / np.where(beyond, r + reach, 1.0)
            turn = 3.0 * reach / np.where(beyond, r - reach, np.inf)
            along = np.divide(outer, r**2, out=np.zeros_like(r), where=outer > 0)
            floor = (inner + outer * (1.0 - turn)).sum(axis=1)[:, None, None] * np.eye(p)
            floor -= np.matmul((E * along[:, :, None]).transpose(0, 2, 1), E)
        if not dense:
            least = total if self._squared else inner.sum(axis=1)
            floor = np.stack([least, np.zeros(c), np.full(c, np.inf)], axis=1)
        return rounding, drift, floor

    def conjugate(self, block, s, x0=None, allowed=np.inf):
        """Upper bound of ``f_i^*(s_i)`` and its maximiser: (c, p) -> (c,), (c, p).

        Any row vectors ``u_l`` in the domain of the conjugate loss with
        ``sum_l w_l u_l = s`` give the bound ``sum_l w_l (|u_l|^2 / 2 + <u_l, a_l>)``.
        """
        block = block.astype(np.float64)
        s = np.asarray(s, dtype=float)
        near, rest, spread = self._moments(block)
        at_mean = np.einsum("cp,cp->c", s, near) + np.einsum("cp,cp->c", s, rest)
        size = np.linalg.norm(s, axis=1)
        empty = block.weights.sum(axis=1) == 0.0
        if self._squared:
            outside = empty & (size > 0)
            x, _ = self._minimise(block, s=s)
            bound = at_mean + 0.5 * (size**2 - spread)
            places = np.linalg.norm(near, axis=1) + np.linalg.norm(rest, axis=1)
            bound += EPS * (0.5 * self.n_params + 4.0) * (size * (places + size) + spread)
            bound += size * self._mean_slack(block)
        else:
            outside = size > np.where(empty, 0.0, self.delta * (1 + 1e-9))
            x, _ = self._minimise(block, x0, s=np.where(outside[:, None], 0.0, s))
            E = x[:, None, :] - block.dense()
            for _ in range(3):
                # Newton's method for the constraint, on differences: x itself is too coarse
                # where the data are far away.
                missing = s - self.loss_gradient(block, E)
                # Rounding stays: where nothing is curved a correction would be large.
                missing[np.abs(missing) <= 1e-15 * self.delta] = 0.0
                # Damped, as where all rows are beyond delta the curvature is singular.
                H = self._loss_hessian(block, E, np.full(len(E), 1e-8))
                E = E + solve_scaled(H, missing)[:, None, :]
            missing = s - self.loss_gradient(block, E)
            allowed = 1e-9 * np.abs(s) + 1e-13 * self.delta
            outside |= ~(np.abs(missing) <= allowed).all(axis=1)
            U = E * self._shrink(_lengths(E))[:, :, None]
            A = block.dense() - near[:, None, :] - rest[:, None, :]
            rows = np.einsum("cnd,cnd->cn", U, A) + 0.5 * _lengths(U) ** 2
            bound = at_mean + np.einsum("cn,cn->c", rows, block.weights)
            # Cost of the remainder: the distance that it would move the result.
            length = _lengths(U)
            count = EPS * (2.0 * block.shape[1] + self.n_params + 16.0)
            missing = np.linalg.norm(missing, axis=1)
            missing += count * np.einsum("cn,cn->c", length, block.weights)
            away = _lengths(A)
            way = np.linalg.norm(x - near - rest, axis=1)
            if x0 is not None:
                way = np.maximum(way, np.linalg.norm(x0 - near - rest, axis=1))
            bound += missing * 2.0 * way + count * np.einsum(
                "cn,cn->c", length * (away + length), block.weights
            )
            bound += EPS * (self.n_params + 8.0) * size * np.linalg.norm(near + rest, axis=1)
        bound[empty] = 0.0
        bound[outside] = np.inf
        return bound, x

    def spectrum(self, block):
        """Curvature of ``f_i``: upper and lower bounds and the geometric mean, each (c,)."""
        total = block.astype(np.float64).weights.sum(axis=1)
        strong = total if self._squared else np.zeros_like(total)
        return total, strong, total

    def decision(self, X, params, index):
        """Location of the model of every row, (n_rows, d)."""
        return params[index]

    def output(self, raw):
        """Locations as they are."""
        return raw

    def row_losses(self, X, y, params, index):
        """Loss of every row."""
        X = X.toarray() if hasattr(X, "toarray") else X
        return self._value(np.linalg.norm(X - params[index], axis=1))


def _lengths(E):
    """Euclidean lengths of differences (c, n, d) -> (c, n)."""
    return np.sqrt(np.einsum("cnd,cnd->cn", E, E))
