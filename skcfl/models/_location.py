"""Location of a client's rows: the local model of convex clustering."""

from numbers import Real

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from .._newton import newton, solve_scaled
from ._base import LocalModel
from ._linear import choose


class Location(LocalModel):
    r"""Location of a client's rows, an unsupervised local model.

    .. math:: f_i(x) = \frac{1}{n_i} \sum_l s_l \, \ell(\|x - a_l\|), \qquad n_i = \sum_l s_l,

    for rows :math:`a_l` with sample weights :math:`s_l`: the minimiser is the mean with
    ``"squared_error"`` and a robust centre with ``"huber"``.  With one row a client, sum of norms
    fusion of these models is convex clustering (Armacki et al., section II).

    Parameters
    ----------
    loss : {"squared_error", "huber"}, default="squared_error"
        Half the squared distance, or Huber's function of the distance, which is
        linear beyond `delta`.
    delta : float, default=1.0
        Where the Huber loss becomes linear, in units of the features.

    Examples
    --------
    >>> from skcfl.models import Location
    >>> Location().bind(n_features=3).n_params
    3
    """

    second_order = True

    _parameter_constraints = {
        "loss": [StrOptions({"squared_error", "huber"})],
        "delta": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(self, loss="squared_error", delta=1.0):
        self.loss = loss
        self.delta = delta

    def _bind(self):
        self._validate_params()
        self.n_outputs = self.n_params = self.n_features
        self.decay = np.zeros(self.n_params)

    @property
    def _squared(self):
        return self.loss == "squared_error"

    def design(self, X):
        """Rows as they are."""
        return X

    def encode(self, y, n_rows):
        """No targets: an array of shape (n_rows, 0)."""
        return np.empty((n_rows, 0), dtype=self.dtype)

    def init_params(self, n_models, random_state):
        """Standard normal locations."""
        rng = check_random_state(random_state)
        return rng.normal(size=(n_models, self.n_params)).astype(self.dtype)

    def start(self):
        """Start of local training: the origin."""
        return np.zeros(self.n_params, dtype=self.dtype)

    def centre(self, w):
        """Models unchanged: there is no free direction."""
        return w

    def coefficients(self, params):
        """A location has no coefficients."""
        return {}

    def layer_slices(self):
        """Slices of the parameter vector by layer name."""
        return {"location": slice(0, self.n_params)}

    def _moments(self, block):
        """Weighted means (c, d), and mean squared distances to them (c,)."""
        if "moments" not in block.cache:
            mean = block.backward(block.weights[:, None, :])[:, 0]
            distance2 = self._distances2(block, mean, mean[:, None, :])[:, 0]
            spread = np.einsum("cn,cn->c", distance2, block.weights)
            block.cache["moments"] = mean, spread
        return block.cache["moments"]

    def _distances2(self, block, mean, points):
        """Squared distances of rows to points (c, K, d) -> (c, K, n).

        Taken about each client's mean, so that far-away data cost no digits.
        """
        X = block.dense() - mean[:, None, :]
        P = points - mean[:, None, :]
        squares = np.einsum("cnd,cnd->cn", X, X)[:, None, :]
        squares = squares + np.einsum("ckd,ckd->ck", P, P)[:, :, None]
        return np.maximum(squares - 2.0 * np.matmul(P, X.transpose(0, 2, 1)), 0.0)

    def _losses_at(self, block, points):
        """Losses of the clients at points (c, K, d) -> (c, K)."""
        mean, spread = self._moments(block)
        if self._squared:
            P = points - mean[:, None, :]
            total = block.weights.sum(axis=1)
            return 0.5 * (
                total[:, None] * np.einsum("ckd,ckd->ck", P, P) + spread[:, None]
            ).astype(points.dtype)
        r = np.sqrt(self._distances2(block, mean, points))
        inner = np.minimum(r, self.delta)
        V = inner * (r - 0.5 * inner)
        return np.matmul(V, block.weights[:, :, None])[..., 0]

    def losses(self, block, theta):
        """Mean loss of every client under every model: (K, p) -> (c, K)."""
        shape = (len(block.clients),) + theta.shape
        return self._losses_at(block, np.broadcast_to(theta, shape))

    def best_response(self, block, theta, fixed=None):
        """Losses (c, K), choices (c,), gradients of ``f_i`` at the choice (c, p)."""
        losses = self.losses(block, theta)
        choice = choose(losses, fixed)
        return losses, choice, self.gradient(block, theta[choice])

    def value_gradient(self, block, w):
        """``f_i(w_i)`` and its gradient: (c, p) -> (c,), (c, p)."""
        return self._losses_at(block, w[:, None, :])[:, 0], self.gradient(block, w)

    def _pull(self, block, w):
        """Row weights of the gradient, ``w_l min(1, delta / |w - a_l|)``."""
        if self._squared:
            return block.weights
        mean, _ = self._moments(block)
        r = np.sqrt(self._distances2(block, mean, w[:, None, :])[:, 0])
        return block.weights * np.minimum(1.0, self.delta / np.maximum(r, self.delta))

    def gradient(self, block, w):
        """Gradient of ``f_i`` at ``w_i``: (c, p) -> (c, p)."""
        mean, _ = self._moments(block)
        pull = self._pull(block, w)
        total = pull.sum(axis=1)[:, None]
        if self._squared:
            return total * (w - mean)
        centred = block.backward(pull[:, None, :])[:, 0] - total * mean
        return total * (w - mean) - centred

    def hessian(self, block, w):
        """Hessian of ``f_i`` at ``w_i``: (c, p) -> (c, p, p)."""
        identity = np.eye(self.n_params)
        if self._squared:
            return block.weights.sum(axis=1)[:, None, None] * identity
        mean, _ = self._moments(block)
        r = np.sqrt(self._distances2(block, mean, w[:, None, :])[:, 0])
        pull = self._pull(block, w)
        H = pull.sum(axis=1)[:, None, None] * identity
        # Beyond delta only the direction to the row has no curvature.
        outer = np.where(r > self.delta, pull / np.maximum(r, self.delta) ** 2, 0.0)
        E = block.dense() - w[:, None, :]
        return H - np.matmul((E * outer[:, :, None]).transpose(0, 2, 1), E)

    def hessian_product(self, block, w, u):
        """Hessian of ``f_i`` at ``w_i`` times ``u_i``: (c, p), (c, p) -> (c, p)."""
        return np.matmul(self.hessian(block, w), u[:, :, None])[:, :, 0]

    def pin(self, H):
        """Nothing to pin."""
        return H

    def solve(self, block, x0=None):
        """Each client's own minimiser, (c, p), and whether it converged (c,)."""
        return self._minimise(block, x0)

    def prox(self, block, v, rho, x0=None):
        """``argmin f_i(x) + rho_i / 2 ||x - v_i||^2``: (c, p), (c,) -> (c, p), (c,)."""
        return self._minimise(block, v if x0 is None else x0, v=v, rho=rho)

    def _minimise(self, block, x0, v=None, rho=None, s=None):
        block = block if block.dtype == np.float64 else block.astype(np.float64)
        mean, _ = self._moments(block)
        if self._squared:
            total = block.weights.sum(axis=1)[:, None]
            rhs = total * mean
            rhs = rhs if s is None else rhs + s
            lhs = total
            if rho is not None:
                rhs = rhs + np.asarray(rho)[:, None] * v
                lhs = lhs + np.asarray(rho)[:, None]
            x = np.divide(rhs, lhs, out=np.zeros_like(rhs), where=lhs > 0)
            return x, np.ones(len(x), dtype=bool)
        x = mean.copy() if x0 is None else np.asarray(x0, dtype=float)
        oracle = _LocationOracle(self, block, v, rho, s)
        x, _, converged = newton(oracle, x, oracle.scale())
        return x, converged

    def conjugate(self, block, s, x0=None):
        """Upper bound of ``f_i^*(s_i)`` and its maximiser: (c, p) -> (c,), (c, p).

        Any row vectors ``u_l`` in the domain of the conjugate loss with
        ``sum_l w_l u_l = s`` give the bound ``sum_l w_l (|u_l|^2 / 2 + <u_l, a_l>)``.
        """
        block = block.astype(np.float64)
        s = np.asarray(s, dtype=float)
        mean, spread = self._moments(block)
        x, _ = self._minimise(block, x0, s=s)
        empty = block.weights.sum(axis=1) == 0.0
        if self._squared:
            bound = np.einsum("cp,cp->c", s, mean) + 0.5 * np.einsum("cp,cp->c", s, s)
            bound -= 0.5 * spread
        else:
            E = x[:, None, :] - block.dense()
            r = np.linalg.norm(E, axis=2)
            U = E * np.minimum(1.0, self.delta / np.maximum(r, self.delta))[:, :, None]
            # Move all rows by the same small vector to meet the constraint, then shrink
            # nothing: rows that leave the ball make the bound infinite, never wrong.
            U = U + (s - np.einsum("cnd,cn->cd", U, block.weights))[:, None, :]
            norms = np.linalg.norm(U, axis=2)
            outside = (norms > self.delta * (1 + 1e-9)) & (block.weights > 0)
            inner = np.einsum("cnd,cnd->cn", U, block.dense()) + 0.5 * norms**2
            bound = np.einsum("cn,cn->c", inner, block.weights)
            bound[outside.any(axis=1)] = np.inf
        bound[empty] = np.where(np.abs(s[empty]).max(axis=1, initial=0.0) == 0.0, 0.0, np.inf)
        return bound, x

    def spectrum(self, block):
        """Curvature of ``f_i``: upper and lower bounds and the geometric mean, each (c,)."""
        total = block.weights.sum(axis=1)
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
        r = np.linalg.norm(X - params[index], axis=1)
        if self._squared:
            return 0.5 * r**2
        inner = np.minimum(r, self.delta)
        return inner * (r - 0.5 * inner)


class _LocationOracle:
    """``f_i(x) + rho_i/2 |x - v_i|^2 - <s_i, x>`` of the clients of a block."""

    def __init__(self, model, block, v, rho, s):
        self.model, self.block, self.v, self.s = model, block, v, s
        self.rho = None if rho is None else np.asarray(rho, dtype=float)[:, None]

    def scale(self):
        mean, spread = self.model._moments(self.block)
        scale = spread + self.model.delta**2
        if self.rho is not None:
            scale = scale + 0.5 * (self.rho * (self.v - mean) ** 2).sum(axis=1)
        return scale

    def _rest(self, x):
        value = np.zeros(len(x))
        if self.rho is not None:
            value += 0.5 * (self.rho * (x - self.v) ** 2).sum(axis=1)
        if self.s is not None:
            value -= np.einsum("cp,cp->c", self.s, x)
        return value

    def at(self, x):
        self.x = x.copy()
        value, g = self.model.value_gradient(self.block, x)
        if self.rho is not None:
            g = g + self.rho * (x - self.v)
        if self.s is not None:
            g = g - self.s
        return value + self._rest(x), g

    def direction(self, g):
        H = self.model.hessian(self.block, self.x)
        if self.rho is not None:
            np.einsum("ijj->ij", H)[:] += self.rho
        # Far from all rows the loss is a cone: no curvature but across it.
        np.einsum("ijj->ij", H)[:] += 1e-9
        return -solve_scaled(H, g)

    def along(self, step, t):
        x = self.x + t[:, None] * step
        return self.model._losses_at(self.block, x[:, None, :])[:, 0] + self._rest(x)
