"""Linear local models."""

from numbers import Real

import numpy as np
from scipy import sparse
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from .._newton import conjugate_gradients, newton, solve_scaled
from ._base import LocalModel
from ._losses import CLASSIFICATION_LOSSES, LOSSES, make_loss

# Above this number of parameters Newton directions come from conjugate gradients.
MAX_DENSE = 256
# Rows of a prediction are computed in chunks of about this many bytes.
CHUNK_BYTES = 2**21


class LinearModel(LocalModel):
    r"""Linear local model: regression or classification, L2 penalty.

    Client i's objective is

    .. math:: f_i(w, b) = \frac{1}{n_i} \sum_l s_l \, \ell(x_l'w + b, y_l)
              + \frac{\alpha}{2} \|w\|^2, \qquad n_i = \sum_l s_l,

    with sample weights :math:`s_l`.  scikit-learn's ``Ridge(alpha=n * alpha)`` and
    ``LogisticRegression(C=1 / (n * alpha))`` minimise the same on `n` rows.

    Parameters
    ----------
    loss : {"squared_error", "huber", "poisson", "log_loss", "squared_hinge"}, \
            default="squared_error"
        The loss.  ``"squared_error"`` is half the squared error, ``"huber"`` is linear
        beyond `delta`, ``"poisson"`` has a log link; ``"log_loss"`` is logistic with two
        classes and softmax with more, ``"squared_hinge"`` takes one class against the
        rest.  The first three are regressors, the others classifiers.
    alpha : float, default=1e-4
        L2 penalty of the coefficients, as in scikit-learn's SGD and MLP; the intercept is
        free.  Positive by default, so that a client with fewer rows than features
        has one minimiser.
    fit_intercept : bool, default=True
        Whether to fit an intercept.
    delta : float, default=1.35
        Where the Huber loss becomes linear, in units of the target.

    Examples
    --------
    >>> from skcfl.models import LinearModel
    >>> model = LinearModel(loss="log_loss").bind(n_features=4, n_classes=3)
    >>> model.estimator_type, model.n_outputs, model.n_params
    ('classifier', 3, 15)
    """

    second_order = True

    _parameter_constraints = {
        "loss": [StrOptions(set(LOSSES))],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "fit_intercept": ["boolean"],
        "delta": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(self, loss="squared_error", alpha=1e-4, fit_intercept=True, delta=1.35):
        self.loss = loss
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.delta = delta

    @property
    def estimator_type(self):
        """Kind of estimator that the loss makes."""
        return "classifier" if self.loss in CLASSIFICATION_LOSSES else "regressor"

    @property
    def has_proba(self):
        """Whether the model predicts probabilities."""
        return self.loss == "log_loss"

    def check_target(self, y):
        """Raise a ValueError if the targets do not suit the loss."""
        make_loss(self.loss, delta=self.delta).check_target(y)

    def _bind(self):
        self._validate_params()
        self.kernel = make_loss(self.loss, n_classes=self.n_classes, delta=self.delta)
        self.n_outputs = self.kernel.n_outputs(self.n_classes)
        self.n_columns = self.n_features + bool(self.fit_intercept)
        self.n_params = self.n_outputs * self.n_columns
        decay = np.full((self.n_outputs, self.n_columns), float(self.alpha))
        if self.fit_intercept:
            decay[:, -1] = 0.0
        #: Penalty of each parameter.
        self.decay = decay.ravel()

    # ------------------------------------------------------------- data and parameters

    def design(self, X):
        """Design matrix: the features and a column of ones for the intercept."""
        if not self.fit_intercept:
            return sparse.csr_array(X) if sparse.issparse(X) else X
        ones = np.ones((X.shape[0], 1), dtype=X.dtype)
        if sparse.issparse(X):
            return sparse.csr_array(sparse.hstack([X, sparse.csr_array(ones)], format="csr"))
        return np.hstack([X, ones])

    def encode(self, y, n_rows):
        """Targets as an array (n_rows, q) that the blocks store."""
        return self.kernel.encode(y, self.n_classes, self.dtype)

    def init_params(self, n_models, random_state):
        """Gaussian starts whose predictions have the size of a feature."""
        rng = check_random_state(random_state)
        scale = 1.0 / np.sqrt(self.n_columns)
        return rng.normal(scale=scale, size=(n_models, self.n_params)).astype(self.dtype)

    def start(self):
        """Start of local training: zero."""
        return np.zeros(self.n_params, dtype=self.dtype)

    def centre(self, w):
        """Models (m, p) with the same predictions and the free direction of softmax at 0.

        Adding a vector to the parameters of all classes changes no probability.
        """
        if self.n_outputs == 1 or self.loss != "log_loss":
            return w
        W = w.reshape(len(w), self.n_outputs, self.n_columns)
        return (W - W.mean(axis=1, keepdims=True)).reshape(len(w), self.n_params)

    def coefficients(self, params):
        """Coefficients and intercepts of models (m, p), as scikit-learn shapes them."""
        W = params.reshape(len(params), self.n_outputs, self.n_columns)
        coef = W[:, :, : self.n_features]
        intercept = W[:, :, -1] if self.fit_intercept else np.zeros_like(W[:, :, 0])
        if self.n_outputs == 1:
            coef, intercept = coef[:, 0], intercept[:, 0]
        return {"coef": coef.copy(), "intercept": intercept.copy()}

    def layer_slices(self):
        """Slices of the parameter vector by layer name."""
        return {"linear": slice(0, self.n_params)}

    # ------------------------------------------------------------------ first order

    def _weights(self, block, w):
        return w.reshape(len(w), self.n_outputs, self.n_columns)

    def _all_predictions(self, block, theta):
        K = len(theta)
        c, n, _ = block.shape
        Z = block.forward_all(theta.reshape(K * self.n_outputs, self.n_columns))
        return Z.reshape(c, K, self.n_outputs, n)

    def losses(self, block, theta):
        """Mean loss of every client under every model, no penalty: (K, p) -> (c, K)."""
        Z = self._all_predictions(block, theta)
        V = self.kernel.value(Z, block.y[:, None])
        return np.matmul(V, block.weights[:, :, None])[..., 0]

    def best_response(self, block, theta, fixed=None):
        """Losses (c, K), choices (c,), gradients of ``f_i`` at the choice (c, p).

        One pass over the rows: the predictions that choose the model give its gradient.
        """
        Z = self._all_predictions(block, theta)
        V = self.kernel.value(Z, block.y[:, None])
        losses = np.matmul(V, block.weights[:, :, None])[..., 0]
        choice = choose(losses, fixed)
        r = self.kernel.gradient(Z[np.arange(len(Z)), choice], block.y)
        r *= block.weights[:, None, :]
        gradient = block.backward(r).reshape(len(Z), self.n_params)
        if self.alpha:
            gradient += self.decay.astype(gradient.dtype) * theta[choice]
        return losses, choice, gradient

    def value_gradient(self, block, w):
        """``f_i(w_i)`` and its gradient: (c, p) -> (c,), (c, p)."""
        Z = block.forward(self._weights(block, w))
        V = self.kernel.value(Z, block.y)
        value = np.einsum("cn,cn->c", V, block.weights)
        r = self.kernel.gradient(Z, block.y)
        r *= block.weights[:, None, :]
        gradient = block.backward(r).reshape(w.shape)
        if self.alpha:
            decay = self.decay.astype(gradient.dtype)
            value += 0.5 * np.einsum("cp,cp,p->c", w, w, decay)
            gradient += decay * w
        return value, gradient

    def gradient(self, block, w):
        """Gradient of ``f_i`` at ``w_i``: (c, p) -> (c, p)."""
        Z = block.forward(self._weights(block, w))
        r = self.kernel.gradient(Z, block.y)
        r *= block.weights[:, None, :]
        gradient = block.backward(r).reshape(w.shape)
        if self.alpha:
            gradient += self.decay.astype(gradient.dtype) * w
        return gradient

    # ----------------------------------------------------------------- second order

    def hessian(self, block, w):
        """Hessian of ``f_i`` at ``w_i``: (c, p) -> (c, p, p)."""
        Z = block.forward(self._weights(block, w))
        H = self._loss_hessian(block, Z)
        np.einsum("ijj->ij", H)[:] += self.decay
        return H

    def _loss_hessian(self, block, Z):
        c, C, _ = Z.shape
        D = self.n_columns
        H = np.zeros((c, C, D, C, D))
        if self.n_outputs > 1 and self.loss == "log_loss":
            P = self.kernel.gradient(Z, block.y)
            # gradient = p - onehot(y): recover p without a second softmax
            codes = np.broadcast_to(block.y, (c, 1, Z.shape[-1]))
            np.put_along_axis(P, codes, np.take_along_axis(P, codes, axis=1) + 1.0, axis=1)
            for a in range(C):
                for b in range(a + 1):
                    h = -P[:, a] * P[:, b]
                    if a == b:
                        h += P[:, a]
                    H[:, a, :, b, :] = block.gram(h * block.weights)
                    if a != b:
                        H[:, b, :, a, :] = H[:, a, :, b, :].transpose(0, 2, 1)
        else:
            h = self.kernel.curvature(Z, block.y) * block.weights[:, None, :]
            for a in range(C):
                H[:, a, :, a, :] = block.gram(h[:, a])
        return H.reshape(c, C * D, C * D)

    def hessian_product(self, block, w, u):
        """Hessian of ``f_i`` at ``w_i`` times ``u_i``: (c, p), (c, p) -> (c, p)."""
        Z = block.forward(self._weights(block, w))
        return self._product(block, Z, u) + self.decay * u

    def _product(self, block, Z, u):
        v = block.forward(self._weights(block, u))
        r = self.kernel.curvature_product(Z, block.y, v) * block.weights[:, None, :]
        return block.backward(r).reshape(u.shape)

    def pin(self, H):
        """Add curvature to the free directions of softmax (in place), (m, p, p).

        Gradients have no component there, so that solutions do not change.
        """
        if self.n_outputs > 1 and self.loss == "log_loss":
            C, D = self.n_outputs, self.n_columns
            size = np.einsum("ijj->i", H) / H.shape[1]
            H5 = H.reshape(len(H), C, D, C, D)
            free = np.flatnonzero(self.decay[:D] == 0.0)
            for j in free:
                H5[:, :, j, :, j] += (size / C)[:, None, None]
        return H

    def solve(self, block, x0=None):
        """Each client's own minimiser, (c, p), and whether it converged (c,)."""
        return self._minimise(block, x0)

    def prox(self, block, v, rho, x0=None):
        """``argmin f_i(x) + rho_i / 2 ||x - v_i||^2``: (c, p), (c,) -> (c, p), (c,)."""
        return self._minimise(block, v if x0 is None else x0, v=v, rho=rho)

    def _minimise(self, block, x0, v=None, rho=None, s=None):
        if self.kernel.quadratic and not (self._large and block.shape[1] >= self.n_params):
            return self._minimise_quadratic(block, v, rho, s), np.ones(len(block.clients), bool)
        block = block.astype(np.float64)
        c = len(block.clients)
        x = np.zeros((c, self.n_params)) if x0 is None else np.asarray(x0, dtype=float)
        if rho is None:
            x = self.centre(x)
        oracle = _ClientOracle(self, block, v, rho, s)
        x, _, converged = newton(oracle, x, oracle.scale())
        return x, converged

    @property
    def _large(self):
        return self.n_params > MAX_DENSE

    def _minimise_quadratic(self, block, v, rho, s):
        """Closed form: ``(H_i + rho_i I) x = b_i + rho_i v_i + s_i``."""
        block64 = block.astype(np.float64)
        c = len(block.clients)
        if "moment" not in block.cache:
            block.cache["moment"] = block64.backward(block64.y * block64.weights[:, None, :])[:, 0]
        rhs = block.cache["moment"].copy()
        if s is not None:
            rhs += s
        rho = np.zeros(c) if rho is None else rho
        if v is not None:
            rhs += rho[:, None] * v
        if self._large:
            return self._woodbury(block64, rhs, rho)
        if "eigen" not in block.cache:
            H = block64.gram(block64.weights)
            np.einsum("ijj->ij", H)[:] += self.decay
            block.cache["eigen"] = np.linalg.eigh(H)
        values, vectors = block.cache["eigen"]
        # Directions in which f_i is flat: the solution of least norm, unless rho decides.
        floor = 1e-13 * np.maximum(values[:, -1:], 0.0)
        flat = values <= floor
        shifted = np.where(flat, 0.0, values) + rho[:, None]
        coordinates = np.matmul(rhs[:, None, :], vectors)[:, 0]
        coordinates = np.divide(
            coordinates, shifted, out=np.zeros_like(coordinates), where=shifted > 0
        )
        return np.matmul(vectors, coordinates[:, :, None])[:, :, 0]

    def _woodbury(self, block, rhs, rho):
        """Closed form through the (n, n) systems of clients with fewer rows than columns."""
        X, w = block.dense(), block.weights
        diagonal = self.decay + rho[:, None]
        free = diagonal == 0.0
        if free.any():
            # An unpenalised direction: what it adds to the system is a large prior, then
            # one step of refinement on the true system removes its trace.
            diagonal = np.where(free, 1e-9 * np.maximum(diagonal.max(), 1e-3), diagonal)
        U = X * np.sqrt(w)[:, :, None]
        scaled = U / diagonal[:, None, :]
        small = np.matmul(scaled, U.transpose(0, 2, 1))
        np.einsum("ijj->ij", small)[:] += 1.0

        def inverse(b):
            first = b / diagonal
            inner = np.linalg.solve(small, np.matmul(U, first[:, :, None]))
            return first - np.matmul(scaled.transpose(0, 2, 1), inner)[:, :, 0]

        x = inverse(rhs)
        true = self.decay + rho[:, None]
        for _ in range(3):
            Ux = np.matmul(U, x[:, :, None])
            residual = rhs - true * x - np.matmul(U.transpose(0, 2, 1), Ux)[:, :, 0]
            x += inverse(residual)
        return x

    def conjugate(self, block, s, x0=None):
        """Upper bound of ``f_i^*(s_i)`` and its maximiser: (c, p) -> (c,), (c, p).

        From the maximiser x of ``<s, x> - f_i(x)`` the bound evaluates Fenchel's dual,
        ``f_i^*(s) = min_a sum_l w_l l^*(a_l) + |s_P - X_P'(w a)|^2 / (2 alpha)`` over
        ``X_U'(w a) = s_U``, at the row derivatives ``a = l'(z)`` after one Newton correction
        of the constraint (P penalised, U free parameters): any feasible `a` gives a bound, so
        that it holds however inexact x is.  Infinite where no feasible `a` was found.
        """
        block = block.astype(np.float64)
        s = np.asarray(s, dtype=float)
        x, _ = self._minimise(block, x0, s=s)
        c, C, D = len(s), self.n_outputs, self.n_columns
        Z = block.forward(x.reshape(c, C, D))
        a = self.kernel.gradient(Z, block.y)
        w = block.weights[:, None, :]
        free = self.decay == 0.0
        rest = s - block.backward(a * w).reshape(c, C * D)
        if free.any():
            for _ in range(3):
                H = self._loss_hessian(block, Z)[:, free][:, :, free]
                u = np.zeros_like(s)
                pinv = np.linalg.pinv(H, rcond=1e-12, hermitian=True)
                u[:, free] = np.matmul(pinv, rest[:, free][:, :, None])[:, :, 0]
                forward = block.forward(u.reshape(c, C, D))
                a += self.kernel.curvature_product(Z, block.y, forward)
                rest = s - block.backward(a * w).reshape(c, C * D)
        rows = self.kernel.conjugate(a, block.y)
        with np.errstate(invalid="ignore"):
            terms = np.where(block.weights > 0, rows * block.weights, 0.0)
        bound = terms.sum(axis=1)
        size = np.abs(s).max(axis=1, initial=0.0) + np.abs(a).max(axis=(1, 2), initial=0.0)
        if free.any():
            infeasible = np.abs(rest[:, free]).max(axis=1) > 1e-9 * size
            bound[infeasible] = np.inf
        if not free.all():
            penalised = rest[:, ~free]
            bound += np.einsum("cp,cp->c", penalised, penalised) / (2 * self.alpha)
        return bound, x

    def spectrum(self, block):
        """Curvature of ``f_i``: upper and lower bounds and the geometric mean, each (c,).

        The upper bound is a power-iteration estimate where clients have many rows and
        columns.  A loss without a curvature bound (Poisson) gives its curvature where
        the prediction is the mean of the targets.
        """
        c, n, D = block.shape
        block = block.astype(np.float64)
        w = block.weights
        if np.isfinite(self.kernel.max_curvature):
            top = np.full(c, self.kernel.max_curvature)
        else:
            # Poisson: the curvature is the predicted mean, whose size is that of y.
            top = np.maximum(1.0, np.einsum("cn,cn->c", np.abs(block.y[:, 0]), w))
        small = min(n, D)
        if small > SMALL_SIDE:
            largest = _power(lambda u: _gram_product(block, u), c, D)
            lowest = np.zeros(c)
            trace = np.einsum("cn,cn->c", np.matmul(block.dense() ** 2, np.ones(D)), w)
            mean = trace / D
        else:
            if D <= n:
                values = np.linalg.eigvalsh(block.gram(w))
            else:
                X = block.dense() * np.sqrt(w)[:, :, None]
                values = np.linalg.eigvalsh(np.matmul(X, X.transpose(0, 2, 1)))
            values = np.maximum(values, 0.0)
            largest = values[:, -1]
            lowest = values[:, 0] if D <= n else np.zeros(c)
            positive = np.maximum(values, 1e-6 * largest[:, None] + 1e-300)
            mean = np.exp(np.log(positive).mean(axis=1))
        alpha = float(self.alpha)
        strong = lowest * top + alpha if self.kernel.quadratic else np.full(c, alpha)
        if self.fit_intercept and not self.kernel.quadratic:
            strong = np.zeros(c)
        elif self.fit_intercept:
            strong = np.where(lowest > 0, lowest, 0.0)
        return largest * top + alpha, strong, mean * top + alpha

    # ------------------------------------------------------------------- prediction

    def decision(self, X, params, index):
        """Raw predictions (n_rows, n_outputs); row r uses the model ``params[index[r]]``."""
        W = params.reshape(len(params), self.n_outputs, self.n_columns)
        coef = W[:, :, : self.n_features]
        n_rows = X.shape[0]
        if sparse.issparse(X):
            X = sparse.csr_array(X)
            owner = np.repeat(np.asarray(index, dtype=np.int64), np.diff(X.indptr))
            wide = sparse.csr_array(
                (X.data, X.indices + owner * self.n_features, X.indptr),
                shape=(n_rows, len(params) * self.n_features),
            )
            raw = wide @ coef.transpose(0, 2, 1).reshape(-1, self.n_outputs)
        else:
            raw = np.empty((n_rows, self.n_outputs), dtype=np.result_type(X, params))
            chunk = max(CHUNK_BYTES // (8 * max(self.n_params, 1)), 1)
            for start in range(0, n_rows, chunk):
                rows = slice(start, start + chunk)
                raw[rows] = np.einsum("rd,rkd->rk", X[rows], coef[index[rows]])
        if self.fit_intercept:
            raw = raw + W[index, :, -1]
        return raw

    def output(self, raw):
        """Predicted targets, or class codes, of raw predictions."""
        return self.kernel.output(raw)

    def proba(self, raw):
        """Class probabilities of raw predictions."""
        return self.kernel.proba(raw)

    def scores(self, raw):
        """Confidence scores of raw predictions: (n_rows,) with two classes."""
        return raw[:, 0] if self.n_outputs == 1 else raw

    def row_losses(self, X, y, params, index):
        """Loss of every row, no penalty."""
        z = self.decision(X, params, index).T
        return self.kernel.value(z, self.encode(y, X.shape[0]).T)


SMALL_SIDE = 128


def choose(losses, fixed=None):
    """Model of least loss of every client, (c,); a loss that is no number is not chosen.

    Clients whose entry of `fixed` is not negative keep that model.
    """
    choice = losses.argmin(axis=1)
    if not np.isfinite(losses[np.arange(len(losses)), choice]).all():
        choice = np.where(np.isfinite(losses), losses, np.inf).argmin(axis=1)
    if fixed is not None:
        choice = np.where(fixed >= 0, fixed, choice)
    return choice


def _gram_product(block, u):
    z = block.forward(u[:, None, :])
    return block.backward(z * block.weights[:, None, :])[:, 0]


def _power(product, c, D, n_iter=30):
    """Largest eigenvalues by power iteration from a fixed start, 5 % to spare."""
    u = np.ones((c, D)) + np.arange(D) % 7
    value = np.zeros(c)
    for _ in range(n_iter):
        u /= np.maximum(np.linalg.norm(u, axis=1), 1e-300)[:, None]
        u = product(u)
        value = np.linalg.norm(u, axis=1)
    return 1.05 * value


class _ClientOracle:
    """``f_i(x) + rho_i/2 |x - v_i|^2 - <s_i, x>`` of the clients of a block."""

    def __init__(self, model, block, v, rho, s):
        self.model, self.block, self.v, self.s = model, block, v, s
        self.rho = None if rho is None else np.asarray(rho, dtype=float)[:, None]
        self.c = len(block.clients)
        self.diagonal = np.broadcast_to(model.decay, (self.c, model.n_params)).copy()
        if rho is not None:
            self.diagonal += self.rho

    def scale(self):
        """Size of each function: its loss at 0 and the pull of its other terms."""
        model, block = self.model, self.block
        zero = np.zeros((self.c, model.n_outputs, model.n_columns))
        V = model.kernel.value(block.forward(zero), block.y)
        scale = np.abs(np.einsum("cn,cn->c", V, block.weights))
        if self.rho is not None:
            scale += 0.5 * (self.rho * self.v**2).sum(axis=1)
        if self.s is not None:
            scale += np.linalg.norm(self.s, axis=1)
        return np.maximum(scale, 1e-30)

    def _rest(self, x):
        """Value of everything but the loss."""
        value = 0.5 * np.einsum("cp,cp,p->c", x, x, self.model.decay)
        if self.rho is not None:
            value += 0.5 * (self.rho * (x - self.v) ** 2).sum(axis=1)
        if self.s is not None:
            value -= np.einsum("cp,cp->c", self.s, x)
        return value

    def at(self, x):
        """Values and gradients."""
        model, block = self.model, self.block
        self.x = x.copy()
        self.Z = block.forward(x.reshape(self.c, model.n_outputs, model.n_columns))
        V = model.kernel.value(self.Z, block.y)
        value = np.einsum("cn,cn->c", V, block.weights) + self._rest(x)
        r = model.kernel.gradient(self.Z, block.y) * block.weights[:, None, :]
        g = block.backward(r).reshape(x.shape) + model.decay * x
        if self.rho is not None:
            g += self.rho * (x - self.v)
        if self.s is not None:
            g -= self.s
        self.step = None
        return value, g

    def direction(self, g):
        """Newton directions, exact or to a falling tolerance."""
        model, block = self.model, self.block
        if not model._large:
            H = model._loss_hessian(block, self.Z)
            np.einsum("ijj->ij", H)[:] += self.diagonal
            if self.rho is None:
                model.pin(H)
            return -solve_scaled(H, g)
        h = model.kernel.max_curvature
        h = 1.0 if not np.isfinite(h) else h
        squares = np.matmul(block.weights[:, None, :], block.dense() ** 2)[:, 0]
        diagonal = self.diagonal + h * np.tile(squares, model.n_outputs)
        diagonal += 1e-12 * diagonal.max(axis=1, keepdims=True) + 1e-300
        # A relative residual that falls with the gradient: superlinear convergence.
        size = np.linalg.norm(g, axis=1)
        tol = np.minimum(0.1, size / (1.0 + size)) * 1e-2
        return -conjugate_gradients(
            lambda u: model._product(block, self.Z, u) + self.diagonal * u, diagonal, g, tol, 500
        )

    def along(self, step, t):
        """Values at ``x + t * step``; predictions are linear, so no product is needed."""
        model, block = self.model, self.block
        if self.step is not step:
            shape = (self.c, model.n_outputs, model.n_columns)
            self.Zstep = block.forward(step.reshape(shape))
            self.step = step
        V = model.kernel.value(self.Z + t[:, None, None] * self.Zstep, block.y)
        with np.errstate(invalid="ignore"):
            return np.einsum("cn,cn->c", V, block.weights) + self._rest(
                self.x + t[:, None] * step
            )
