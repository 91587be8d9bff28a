"""Linear local models."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import sparse
from sklearn.utils import check_random_state

from .._option_objects import parameters
from .._typing import ClassWeight
from ..numerics.matrices import product, quotient, slices
from ..numerics.newton import invert_scaled, solve_scaled
from ._absent_classes import AbsentClassesMixin
from ._contrasts import along_contrasts, contrast_blocks
from ._convex import MAX_DENSE, ConvexModel
from ._least_squares import Narrow, Sparse, Wide
from ._level_grams import LevelsMixin
from ._level_modes import LevelModesMixin
from ._local_model import choose
from ._plain import plain_linear
from ._posteriors import PosteriorMixin
from ._row_space import RowSpace
from ._spectra import estimated_spectrum, exact_spectrum
from ._supervised import LOSS_CONSTRAINTS, SupervisedMixin

if TYPE_CHECKING:
    from .losses import Loss

EPS = np.finfo(float).eps
# Rows of a prediction are computed in chunks of about this many bytes.
CHUNK_BYTES = 2**21
MANY_CHUNKS = 16  # of models: above it their predictions are not kept for a gradient
# Clients with at most this many rows or columns have their eigenvalues computed in full.
SMALL_SIDE = 128
# Numbers of the inverses up to which conjugate gradients are preconditioned by them.
MAX_INVERSES = 2**23
# Rows of a client up to which wide Hessians are inverted in the space of the rows, and what stands
# there for a penalty where a parameter has none, over its curvature.
MAX_ROWS, FREE = 512, 1e-6


@parameters
class LinearModel(  # type: ignore[override]
    PosteriorMixin, LevelsMixin, LevelModesMixin, AbsentClassesMixin, SupervisedMixin, ConvexModel
):
    r"""Linear local model: regression or classification, L2 penalty.

    Client i's objective is

    .. math:: f_i(w, b) = \frac{1}{n_i} \sum_l s_l \, \ell(x_l'w + b, y_l)
              + \frac{\alpha}{2} \|w\|^2, \qquad n_i = \sum_l s_l,

    with sample weights :math:`s_l`.  scikit-learn's ``Ridge(alpha=n * alpha)`` and
    ``LogisticRegression(C=1 / (n * alpha))`` minimise the same on `n` rows.

    Parameters
    ----------
    loss : str or Loss, default="squared_error"
        The loss of a regressor: ``"squared_error"`` is half the squared error, ``"huber"`` is
        linear in large residuals, ``"quantile"`` is the smoothed pinball loss of the median;
        ``"poisson"``, ``"gamma"`` and ``"tweedie"`` are half the deviance of these distributions,
        with a log link.  Of a classifier: ``"log_loss"`` is logistic with two classes and softmax
        with more, ``"squared_hinge"`` takes one class against the rest.  An object has other
        values of its parameters, or is a loss of your own: see :mod:`skcfl.models.losses`.
    alpha : "auto" or float, default="auto"
        L2 penalty of the coefficients; the intercept is free.  "auto" leaves it to the
        estimator, which sets a standard normal prior once per model, or a narrower one with
        more than twelve features (see :meth:`skcfl.federation.ClientPool.penalised`); a model
        that is bound outside of an estimator has none until then.
    fit_intercept : bool, default=True
        If True, fit an intercept.
    standardize : bool, default=True
        True if an estimator trains on features of mean 0 and variance 1 over the rows of all
        clients.  They send the number and the sums of their rows, and then the sums of squared
        differences from the means.  The penalty and the distances of models then do not depend on
        the units of the features; fitted coefficients are in the user's units all the same.
        Sparse features, and those of models without an intercept, are scaled and not centred.
        Training of a regressor with an intercept starts from the mean of the targets, found
        likewise, so that a constant added to y changes no cluster.  False reproduces the papers.
    class_weight : {"balanced"}, dict or None, default=None
        Factor of the weights of each class's rows, for classifiers.  "balanced" gives all
        classes the same total weight over all clients.

    Examples
    --------
    >>> from skcfl.models import LinearModel
    >>> model = LinearModel(loss="log_loss").bind(n_features=4, n_classes=3)
    >>> model.estimator_type, model.n_outputs, model.n_params
    ('classifier', 3, 15)
    """

    exact_side = SMALL_SIDE
    _parameter_constraints = {
        **LOSS_CONSTRAINTS,
        "fit_intercept": ["boolean"],
        "standardize": ["boolean"],
    }

    loss: str | Loss = "squared_error"
    alpha: Literal["auto"] | float = "auto"
    fit_intercept: bool = True
    standardize: bool = True
    class_weight: ClassWeight = None

    # Raw prediction of the start, and size of the differences of random starts from it.
    _constant, _spread = 0.0, 1.0

    @property
    def quadratic(self):
        """True if clients' objectives are quadratic functions."""
        return self.describe_loss().quadratic

    @property
    def has_units(self):
        """True if training needs the mean and the standard deviation of the targets."""
        centred = self.standardize and self.fit_intercept and self.estimator_type == "regressor"
        return centred or super().has_units

    def in_units(self, mean, scale):
        """Copy of a bound model that starts from the mean of the targets."""
        model = super().in_units(mean, scale)
        if self.fit_intercept:
            model._constant = self.kernel.raw(mean)
        if self.kernel.link == "identity":
            model._spread = scale
        return model

    @property
    def n_free(self):
        """Parameters that predictions depend on; one class of softmax is determined."""
        return self.n_params - (self.n_columns if self.kernel.coupled else 0)

    def _bind(self):
        self._bind_loss()
        self.n_columns = self.n_features + bool(self.fit_intercept)
        self.n_params = self.n_outputs * self.n_columns
        self._penalise(0.0 if self.alpha == "auto" else self.alpha)

    def _penalise(self, alpha):
        self.alpha_ = float(alpha)
        decay = np.full((self.n_outputs, self.n_columns), self.alpha_)
        if self.fit_intercept:
            decay[:, -1] = 0.0
        #: Penalty of each parameter, and the same in the type of the data.
        self.decay = decay.ravel()
        self._decay = self.decay.astype(self.dtype)

    # ------------------------------------------------------------------------- units

    def _parts(self, params):
        """Coefficients (..., C, n_features) and intercepts (..., C) of a copy of parameters."""
        W = np.array(params, dtype=float).reshape(
            *np.shape(params)[:-1], self.n_outputs, self.n_columns
        )
        return W, W[..., : self.n_features], W[..., -1]

    def to_user(self, params, scaling):
        """Parameters (..., n_params) for the user's features, of those for scaled ones."""
        W, coef, intercept = self._parts(params)
        coef /= scaling.scale
        if self.fit_intercept:
            intercept -= coef @ scaling.mean
        return W.reshape(np.shape(params))

    def user_map(self, scaling):
        """The sparse matrix of :meth:`to_user`, of shape (n_params, n_params)."""
        scales = sparse.diags_array(1.0 / scaling.scale)
        if self.fit_intercept:
            row = sparse.csr_array(-(scaling.mean / scaling.scale)[None])
            scales = sparse.block_array([[scales, None], [row, np.ones((1, 1))]])
        return sparse.csr_array(sparse.block_diag([scales] * self.n_outputs))

    def from_user(self, params, scaling):
        """Parameters (..., n_params) for scaled features, of those for the user's."""
        W, coef, intercept = self._parts(params)
        if self.fit_intercept:
            intercept += coef @ scaling.mean
        coef *= scaling.scale
        return W.reshape(np.shape(params))

    def slopes_to_user(self, slopes, scaling):
        """Gradients (..., n_params) in the user's parameters, of those in scaled ones."""
        G, coef, intercept = self._parts(slopes)
        coef *= scaling.scale
        if self.fit_intercept:
            coef += intercept[..., None] * scaling.mean
        return G.reshape(np.shape(slopes))

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
        return self.kernel.encode(y, self.n_classes, np.float64)

    def init_params(self, n_models, random_state):
        """Gaussian starts about :meth:`start`; their predictions vary as the target does."""
        rng = check_random_state(random_state)
        scale = self._spread / np.sqrt(self.n_columns)
        away = rng.normal(scale=scale, size=(n_models, self.n_params))
        return (self.origin + away).astype(self.dtype)

    @property
    def origin(self):
        """Parameters of the model that predicts the mean of the targets, else zero."""
        w = np.zeros((self.n_outputs, self.n_columns))
        if self.fit_intercept:
            w[:, -1] = self._constant
        return w.ravel()

    def start(self, random_state=None):
        """Start of local training: the mean of the targets where it is known, else zero."""
        return self.origin.astype(self.dtype)

    def centre(self, w):
        """Models (m, p) with the same predictions and the free direction of softmax at 0.

        Adding a vector to the parameters of all classes changes no probability.
        """
        if not self.kernel.coupled:
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

    def plain(self, params, classes):
        """Fitted linear model of scikit-learn with the parameters (n_params,) of one model."""
        W = params.reshape(self.n_outputs, self.n_columns)
        intercept = W[:, -1] if self.fit_intercept else np.zeros_like(W[:, 0])
        return plain_linear(
            self.kernel, W[:, : self.n_features], intercept, classes, bool(self.fit_intercept)
        )

    def layer_slices(self):
        """Slices of the parameter vector by layer name."""
        return {"linear": slice(0, self.n_params)}

    def body_mask(self):
        """The coefficients: the intercept stays with the client."""
        mask = np.zeros((self.n_outputs, self.n_columns), dtype=bool)
        mask[:, : self.n_features] = True
        return mask.ravel()

    @property
    def n_representation(self):
        """Numbers of a row's representation: its features."""
        return self.n_features

    def representation(self, block, w):
        """The features of every row, (c, n, n_features), whatever the models."""
        return block.dense()[:, :, : self.n_features]

    # ------------------------------------------------------------------ first order

    def _all_losses(self, block, theta):
        """Predictions (c, K, C, n) and mean losses (c, K) of every model."""
        K = len(theta)
        c, n, _ = block.shape
        Z = block.forward_all(theta.reshape(K * self.n_outputs, self.n_columns))
        Z = Z.reshape(c, K, self.n_outputs, n)
        V = self.kernel.value(Z, block.y[:, None])
        return Z, np.matmul(V, block.weights[:, :, None])[..., 0]

    mixes = True

    def losses_of_rows(self, block, theta):
        """Loss of every row under every model: (K, p) -> (c, K, n)."""
        c, n, _ = block.shape
        Z = block.forward_all(theta.reshape(len(theta) * self.n_outputs, self.n_columns))
        return self.kernel.value(Z.reshape(c, len(theta), self.n_outputs, n), block.y[:, None])

    def losses(self, block, theta):
        """Mean loss of every client under every model, no penalty: (K, p) -> (c, K)."""
        some = self._models_at_once(block, theta)
        return np.hstack([self._all_losses(block, part)[1] for part in some])

    def best_response(self, block, theta, fixed=None):
        """Losses (c, K), choices (c,), gradients of ``f_i`` at the choice (c, p).

        The predictions that choose the model give its gradient, in one pass over the rows.
        """
        if len(self._models_at_once(block, theta)) > MANY_CHUNKS:
            return super().best_response(block, theta, fixed)
        Z, losses = self._all_losses(block, theta)
        choice = choose(losses, fixed)
        gradient = self.loss_gradient(block, Z[np.arange(len(Z)), choice])
        if self.alpha_:
            # One model's penalty for each row of the small table, not one for each client.
            gradient += (self._decay * theta)[choice]
        return losses, choice, gradient

    def state(self, block, w):
        return block.forward(w.reshape(len(w), self.n_outputs, -1))

    _state_change = state

    def mean_loss(self, block, Z):
        return np.einsum("cn,cn->c", self.kernel.value(Z, block.y), block.weights)

    def loss_gradient(self, block, Z):
        r = self.kernel.gradient(Z, block.y)
        r *= block.weights[:, None, :]
        return block.backward(r).reshape(len(Z), -1)

    # ----------------------------------------------------------------- second order

    def _loss_hessian(self, block, Z, damping=0.0):
        damping = np.reshape(damping, (-1, 1, 1))
        return _hessian_of(block, self.kernel.curvature_blocks(Z, block.y, damping), Z.shape[1])

    def _newton_step(self, block, Z, g, diagonal, damping):
        c, C, _ = Z.shape
        if not self.kernel.coupled:
            return super()._newton_step(block, Z, g, diagonal, damping)
        blocks = self.kernel.curvature_blocks(Z, block.y, np.reshape(damping, (-1, 1, 1)))
        H = _hessian_of(block, contrast_blocks(blocks, C), C - 1)
        np.einsum("ijj->ij", H)[:] += diagonal[:, : H.shape[1]]

        def solve(inner):
            return solve_scaled(H, inner.reshape(c, -1)).reshape(inner.shape)

        g, diagonal = g.reshape(c, C, -1), diagonal.reshape(c, C, -1)[:, 0]
        return along_contrasts(solve, g, diagonal).reshape(c, -1)

    def hessian(self, block, w, damping=0.0):
        """Hessian of ``f_i`` at ``w_i``: (c, p) -> (c, p, p)."""
        if not self.kernel.quadratic:
            return super().hessian(block, w, damping)
        H = block.weighted_gram().copy()
        np.einsum("ijj->ij", H)[:] += self.decay
        return H

    def _loss_product(self, block, Z, u, damping=0.0):
        v, damping = self.state(block, u), np.reshape(damping, (-1, 1, 1))
        r = self.kernel.curvature_product(Z, block.y, v, damping) * block.weights[:, None, :]
        return block.backward(r).reshape(u.shape)

    def hessian_diagonal(self, block, w, damping=0.0):
        Z, damping = self.state(block, w), np.reshape(damping, (-1, 1, 1))
        h = self.kernel.own_curvature(Z, block.y, damping) * block.weights[:, None, :]
        squares = [block.reweighted(h[:, a]).squares() for a in range(self.n_outputs)]
        return np.concatenate(squares, axis=1) + self.decay

    def _loss_diagonal(self, block):
        squares = block.squares()
        bound = self.kernel.max_curvature if self.bounded_curvature else 1.0
        return bound * np.tile(squares, self.n_outputs) + 1e-300

    def _preconditioner(self, block, Z, diagonal, damping):
        """Each output's own block of the Hessian, inverted.

        Adding a vector to all outputs of softmax changes no loss: there `diagonal` is all.
        """
        c, C, n = Z.shape
        D = self.n_columns
        wide = n <= min(MAX_ROWS, D) and c * C * n * n <= MAX_INVERSES
        if not wide and (C == 1 or D > MAX_DENSE or c * C * D * D > MAX_INVERSES):
            return None
        h = self.kernel.own_curvature(Z, block.y, np.reshape(damping, (-1, 1, 1)))
        if wide:
            return self._row_preconditioner(block, h * block.weights[:, None, :], diagonal)
        H = block.grams(h * block.weights[:, None, :]).reshape(c * C, D, D)
        np.einsum("ijj->ij", H)[:] += diagonal.reshape(c * C, D)
        inverse = invert_scaled(H)

        def precondition(r):
            inner = self.centre(r)
            z = np.matmul(inverse, inner.reshape(c * C, D, 1)).reshape(r.shape)
            return self.centre(z) + quotient(r - inner, diagonal)

        return precondition

    def _row_preconditioner(self, block, h, diagonal):
        """The same where there are fewer rows than columns: inverses in the space of the rows."""
        c, C, n = h.shape
        diagonal = diagonal.reshape(c, C, -1)
        # Without a penalty (the intercept) a little of the curvature stands in for one.
        floor = FREE * h.sum(axis=2) + 1e-300
        inverse = 1.0 / np.maximum(diagonal, floor[:, :, None])
        root = np.sqrt(h)
        rows = self._penalised_row_gram(block)[:, None] * inverse[:, :, :1, None]
        if self.fit_intercept:
            ones = (block.weights > 0).astype(float)
            rows += ones[:, None, :, None] * ones[:, None, None, :] * inverse[:, :, -1:, None]
        rows *= root[:, :, :, None] * root[:, :, None, :]
        np.einsum("cann->can", rows)[:] += 1.0
        rows = np.linalg.inv(rows)

        def precondition(r):
            inner = self.centre(r)
            z = inverse * inner.reshape(c, C, -1)
            t = np.matmul(rows, (root * block.forward(z))[..., None])[..., 0]
            z -= inverse * block.backward(root * t)
            rest = (r - inner).reshape(c, C, -1)
            outer = quotient(rest, diagonal)
            return self.centre(z.reshape(r.shape)) + outer.reshape(r.shape)

        return precondition

    def _penalised_row_gram(self, block):
        """``X X'`` of each client without the intercept's column, (c, n, n)."""
        if "row gram" not in block.cache:
            penalised = np.ones((len(block.clients), self.n_columns))
            if self.fit_intercept:
                penalised[:, -1] = 0.0
            block.cache["row gram"] = block.row_gram(penalised)
        return block.cache["row gram"]

    def loss_size(self, block):
        start = np.full((len(block.clients), self.n_outputs, block.shape[1]), self._constant)
        return np.abs(self.mean_loss(block, start))

    def _first_guess(self, block):
        return np.tile(self.origin, (len(block.clients), 1))

    def pin(self, H):
        """Add curvature to the free directions of softmax (in place), (m, p, p).

        Gradients have no component there, so that solutions do not change.
        """
        if self.kernel.coupled:
            C, D = self.n_outputs, self.n_columns
            H5 = H.reshape(len(H), C, D, C, D)
            for j in np.flatnonzero(self.decay[:D] == 0.0):
                # Computed in the units of the column: a foreign size would drown its curvature.
                diagonal = H5[:, :, j, :, j]
                diagonal += np.einsum("icc->i", diagonal)[:, None, None] / C**2
        return H

    def _minimise(self, block, x0=None, v=None, rho=None, s=None, max_iter=100, allowed=np.inf):
        convex = self.alpha_ > 0.0 or (rho is not None and (rho > 0.0).all())
        space = self._row_space(block) if convex and np.ndim(rho) < 2 else None
        if space is None:
            return super()._minimise(block, x0, v, rho, s, max_iter, allowed)
        # Along all other directions penalty, pull and slope are all.
        c, C, width = len(block.clients), self.n_outputs, space.block.shape[2]

        def part(w):
            if w is None:
                return None
            w = np.asarray(w, dtype=float).reshape(c, C, self.n_columns)
            return space.inside(w).reshape(c, C * width)

        x, converged = self._of_width(width)._minimise(
            space.block, part(x0), part(v), rho, part(s), max_iter, allowed
        )
        out = np.zeros((c, self.n_params))
        if s is not None:
            out += s
        if v is not None:
            out += rho[:, None] * v
        if s is not None or v is not None:
            out /= self.alpha_ + (0.0 if rho is None else rho[:, None])
        space.put(out.reshape(c, C, self.n_columns), x.reshape(c, C, width))
        return out, converged

    def _row_space(self, block):
        """Columns or directions that a client's rows determine, None where they are most."""
        if sparse.issparse(block.X):
            return block.own_columns() if self.n_params > MAX_DENSE else None
        few = 0 < block.shape[1] < self.n_features
        if self.kernel.quadratic or not few or self.n_outputs * (1 + block.shape[1]) > MAX_DENSE:
            return None
        if "row space" not in block.cache:
            block.cache["row space"] = RowSpace.of(block.astype(np.float64), self.n_features)
        return block.cache["row space"]

    def _of_width(self, n_columns):
        """The same model of another number of columns, the intercept's among them."""
        model = copy.copy(self)
        model.n_columns, model.n_params = n_columns, self.n_outputs * n_columns
        model.n_features = n_columns - bool(self.fit_intercept)
        model._penalise(self.alpha_)
        return model

    def _closed_form(self, block, v, rho, s):
        """Least squares: ``(H_i + rho_i I) x = b_i + rho_i v_i + s_i``."""
        wide = self.n_params > MAX_DENSE
        if not self.kernel.quadratic or (wide and block.shape[1] >= self.n_params):
            return None
        if "factors" not in block.cache:
            block.cache["factors"] = self._factors(block.astype(np.float64), wide)
        right = np.zeros((len(block.clients), self.n_params))
        if s is not None:
            right += s
        rho = np.zeros(len(right)) if rho is None else rho
        if v is not None:
            right += rho[:, None] * v
        return block.cache["factors"].solve(right, rho)

    def _factors(self, block, wide):
        """Factorisation that solves the least squares."""
        if wide and sparse.issparse(block.X) and self.alpha_ > 0.0:
            factors = Sparse(block, self.decay)
            if factors.enough:
                return factors
        root = np.sqrt(block.weights)
        rows, targets = block.dense() * root[:, :, None], block.y[:, 0] * root
        return (Wide if wide else Narrow)(rows, targets, self.decay, block.lengths)

    # ------------------------------------------------------------------------ rounding

    def _slack(self, block, w):
        """Bounds of the rounding of the predictions, (c, C, n), of models (c, p)."""
        length = np.linalg.norm(w.reshape(len(w), self.n_outputs, -1), axis=2)
        return EPS * (self.n_columns + 2.0) * length[:, :, None] * block.row_sizes()[:, None, :]

    def rounding(self, block, w):
        """Bound of the rounding of ``f_i(w_i)`` in double precision: (c, p) -> (c,)."""
        block = block.astype(np.float64)
        Z, slack = self.state(block, w), self._slack(block, w)
        terms = self.kernel.terms(Z, block.y)
        rows = (self.kernel.slope_terms(Z, block.y) * slack).sum(axis=1)
        move = np.sqrt((slack**2).sum(axis=1))
        rows += self.kernel.ceiling(Z, block.y, move) * move**2
        # With the sum over clients.
        rows += EPS * (2.0 * block.shape[1] + 64.0) * terms
        decayed = 0.5 * (w * w) @ self.decay
        return np.einsum("cn,cn->c", rows, block.weights) + EPS * (self.n_params + 64.0) * decayed

    def enclosure(self, block, w, box, dense):
        """Bounds of ``f_i`` and its derivatives in a box about ``w_i``."""
        block = block.astype(np.float64)
        size = block.magnitudes()
        Z, slack = self.state(block, w), self._slack(block, w)
        reach = self.state(size, box) + slack
        r = np.sqrt((reach**2).sum(axis=1))
        ceiling = self.kernel.ceiling(Z, block.y, r)[:, None, :]
        terms = self.kernel.slope_terms(Z, block.y)
        slopes = ceiling * slack + EPS * (2.0 * block.shape[1] + 16.0) * terms
        weights = block.weights[:, None, :]
        rounding = size.backward(slopes * weights).reshape(len(w), -1)
        rounding += 8.0 * EPS * self.decay * np.abs(w)
        move = np.broadcast_to(r[:, None, :], reach.shape) if self.kernel.coupled else reach
        move = ceiling * move * weights
        drift = size.backward(move).reshape(len(w), -1) + self.decay * box
        share = self.kernel.steadiness(Z, block.y, r)
        if dense:
            steady = block.reweighted(block.weights * share)
            floor = self._loss_hessian(steady, Z)
            np.einsum("ijj->ij", floor)[:] += self.decay
        else:
            least = block.weights * share * self.kernel.floor(Z, block.y)
            free = self.fit_intercept or self.alpha_ == 0.0
            floor = np.empty((len(w), 3))
            floor[:, 0] = least.sum(axis=1) if free else np.inf
            floor[:, 1] = np.einsum("cn,cn->c", least, block.row_sizes() ** 2)
            floor[:, 2] = self.alpha_
        return rounding, np.linalg.norm(drift, axis=1), floor

    def conjugate(self, block, s, x0=None, allowed=np.inf):
        """Upper bound of ``f_i^*(s_i)`` and its maximiser: (c, p) -> (c,), (c, p).

        The maximiser is not looked for to the end where it is better than `x0` by more than
        `allowed`.

        From the maximiser x of ``<s, x> - f_i(x)`` the bound evaluates Fenchel's dual,
        ``f_i^*(s) = min_a sum_l w_l l^*(a_l) + |s_P - X_P'(w a)|^2 / (2 alpha)`` over
        ``X_U'(w a) = s_U``, at the row derivatives ``a = l'(z)`` after Newton corrections
        of the constraint (P penalised, U free parameters): any feasible `a` gives a bound, so
        that it holds however inexact x is.  Infinite where no feasible `a` was found.
        """
        block = block.astype(np.float64)
        s = np.asarray(s, dtype=float)
        x, _ = self._minimise(block, x0, s=s, allowed=np.inf if x0 is None else allowed)
        Z = self.state(block, x)
        a = self.kernel.gradient(Z, block.y)
        w = block.weights[:, None, :]
        free = self.decay == 0.0
        bound = np.zeros(len(s))
        if free.any():
            # The columns of the design with free parameters: the intercept's, or all.
            part = block.columns(free[: self.n_columns])
            H = block.cache.get("free inverse")
            if H is None:
                H = self._loss_hessian(part, Z)
                # The search for the maximiser ran out of range: there is none.
                bound[~np.isfinite(H).all(axis=(1, 2))] = np.inf
                H = np.linalg.pinv(np.nan_to_num(H), rcond=1e-12, hermitian=True)
                if self.kernel.quadratic and self.n_params <= MAX_DENSE:
                    block.cache["free inverse"] = H
            for _ in range(3):
                rest = s[:, free] - part.backward(a * w).reshape(len(s), -1)
                change = self.state(part, product(H, rest))
                a = self.kernel.project(
                    a + self.kernel.curvature_product(Z, block.y, change), block.y
                )
            rest = s[:, free] - part.backward(a * w).reshape(len(s), -1)
            # Rounding errors: of the slopes, and of the columns' sums over rows, with slopes of
            # the size of those at zero.
            columns = np.sqrt(part.squares())
            slopes = np.abs(a) + np.abs(self.kernel.gradient(np.zeros_like(Z), block.y))
            size = np.tile(columns, self.n_outputs) * slopes.max(axis=(1, 2))[:, None]
            size += np.abs(s).max(axis=1)[:, None]
            allowed = 1e-9 * np.abs(s[:, free]) + 1e-13 * size
            bound[~(np.abs(rest) <= allowed).all(axis=1)] = np.inf
        # Rounding of the slopes: sums over rows.
        length = np.sqrt(np.einsum("ckn,cn->ck", a * a, block.weights))
        slack = length[:, :, None] * block.column_sizes()[:, None, :]
        slack = EPS * ((block.shape[1] + 8.0) * slack.reshape(s.shape) + np.abs(s))
        if free.any():
            # The price of slopes that no penalty makes cheap is the way that they would go.
            way = np.abs(x) if x0 is None else np.maximum(np.abs(x), np.abs(x0))
            bound += 2.0 * np.einsum("cp,cp->c", np.abs(rest) + slack[:, free], way[:, free])
        if not free.all():
            rest = np.abs(s - block.backward(a * w).reshape(s.shape))[:, ~free] + slack[:, ~free]
            bound += np.einsum("cp,cp->c", rest, rest) / (2 * self.alpha_)
        bound += self._row_conjugates(block, a)
        level = ~s.any(axis=1)
        if level.any():
            # a = 0 has no slope; where the objective falls for ever it is the only such `a`.
            bound[level] = np.fmin(bound, self._row_conjugates(block, np.zeros_like(a)))[level]
        return np.where(np.isnan(bound), np.inf, bound), x

    def _row_conjugates(self, block, a):
        """Conjugates of the rows' losses, summed with their weights, no less than exact, (c,)."""
        rows = self.kernel.conjugate(a, block.y)
        rows += EPS * (2.0 * block.shape[1] + 16.0) * self.kernel.conjugate_terms(a, block.y)
        rows = np.where(block.weights > 0, rows, 0.0)
        return np.einsum("cn,cn->c", rows, block.weights)

    def spectrum(self, block):
        """Curvature of ``f_i``: upper and lower bounds and the geometric mean, each (c,).

        The geometric mean is over as many directions as a client has rows or parameters; for
        clients with many of both it is the arithmetic mean over all parameters.  A loss
        without a curvature bound (as Poisson's) counts with that of targets of this mean, at
        their prediction and where training starts.
        """
        block = block.astype(np.float64)
        few = np.minimum(block.lengths, block.shape[2]) <= self.exact_side
        largest, lowest, mean = values = np.empty((3, len(few)))
        for some, spectrum in ((few, exact_spectrum), (~few, estimated_spectrum)):
            if some.any():
                part = block if some.all() else block.take(np.flatnonzero(some))
                values[:, some] = spectrum(part)
        mean_y = np.einsum("cn,cn->c", np.abs(block.y[:, 0]), block.weights)
        top = self.kernel.typical_curvature(mean_y)
        if not self.bounded_curvature:
            start = np.full((len(mean_y), 1, 1), self._constant)
            top = np.maximum(top, self.kernel.curvature(start, mean_y[:, None, None])[:, 0, 0])
        alpha = self.alpha_
        strong = lowest if self.kernel.quadratic else np.zeros_like(lowest)
        if not self.fit_intercept:
            strong = strong + alpha
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
            for rows in slices(n_rows, chunk):
                raw[rows] = np.einsum("rd,rkd->rk", X[rows], coef[index[rows]])
        if self.fit_intercept:
            raw = raw + W[index, :, -1]
        return raw


def _hessian_of(block, blocks, n_outputs):
    """Hessian (c, p, p) of second derivatives of pairs of outputs, as of ``curvature_blocks``."""
    c, _, D = block.shape
    H = np.zeros((c, n_outputs, D, n_outputs, D))
    for a, outputs, h in blocks:
        grams = block.grams(h * block.weights[:, None, :])
        H[:, outputs, :, a] = grams
        H[:, a, :, outputs] = grams.transpose(0, 2, 1, 3)
    return H.reshape(c, n_outputs * D, n_outputs * D)
