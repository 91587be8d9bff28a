"""Local models with a convex objective and second derivatives."""

from abc import abstractmethod

import numpy as np

from ..numerics.conjugate_gradients import conjugate_gradients
from ..numerics.newton import MAX_DENSE, newton, solve_scaled
from ._local_model import LocalModel


class ConvexModel(LocalModel):
    """Base of the local models that second-order methods can use.

    The loss of a client's rows is a convex function of a *state* that is affine in the
    parameters: the predictions of a linear model, the rows' differences to a location.  A
    subclass says what the state is and gives the loss and its derivatives there; the local
    penalty, Newton's method, prox and minimisers are written once, here.

    Attributes
    ----------
    decay : ndarray of shape (n_params,)
        L2 penalty of each parameter (of bound models).
    """

    second_order = True
    #: Rows or columns up to which `spectrum` has eigenvalues; of more of both it has estimates.
    exact_side = np.inf

    @property
    def halves_steps(self):
        """True if local steps that raise the loss are undone and halved: no length is safe."""
        return not self.bounded_curvature

    @abstractmethod
    def state(self, block, w):
        """State of every client at its parameters (c, p)."""

    @abstractmethod
    def _state_change(self, block, u):
        """Change of the state, an array that broadcasts with it, along (c, p)."""

    @abstractmethod
    def mean_loss(self, block, state):
        """Mean loss of every client, (c,)."""

    @abstractmethod
    def loss_gradient(self, block, state):
        """Its gradient in the parameters, (c, p)."""

    @abstractmethod
    def _loss_hessian(self, block, state, damping=0.0):
        """Its Hessian in the parameters, (c, p, p); `damping` as in ``newton``, (c,)."""

    @abstractmethod
    def _loss_product(self, block, state, u, damping=0.0):
        """Its (damped) Hessian times (c, p), without forming it."""

    @abstractmethod
    def _loss_diagonal(self, block):
        """Size of the diagonal of its Hessian, (c, p), to precondition systems."""

    def _preconditioner(self, block, state, diagonal, damping):
        """Maps (c, p) to products with approximate inverses of its Hessian plus `diagonal`.

        None where the diagonal is all that is known.
        """
        return None

    @abstractmethod
    def loss_size(self, block):
        """Size of the loss, (c,): the unit of the tolerance of minimisers."""

    @abstractmethod
    def _first_guess(self, block):
        """Start of Newton's method, (c, p), where none is given."""

    @abstractmethod
    def _closed_form(self, block, v, rho, s):
        """Minimiser of ``f_i + rho_i / 2 |x - v_i|^2 - <s_i, x>``, None without a formula."""

    def centre(self, w):
        """Models (m, p) with the same predictions, their free directions at zero."""
        return w

    def centre_covariances(self, V):
        """Covariances (m, p, p) of models, once these are centred."""
        if self.n_free == self.n_params:
            return V
        for _ in range(2):
            V = self.centre(V.reshape(-1, V.shape[-1])).reshape(V.shape).transpose(0, 2, 1)
        return V

    def pin(self, H):
        """Add curvature to the free directions of Hessians (m, p, p), in place."""
        return H

    def value_gradient(self, block, w, work=None):
        """``f_i(w_i)`` and its gradient: (c, p) -> (c,), (c, p)."""
        state = self.state(block, w)
        value, gradient = self.mean_loss(block, state), self.loss_gradient(block, state)
        if self.decay.any():
            pull = self.decay.astype(gradient.dtype) * w
            value += 0.5 * np.einsum("cp,cp->c", pull, w)
            gradient += pull
        return value, gradient

    def gradient(self, block, w, work=None):
        """Gradient of ``f_i`` at ``w_i``: (c, p) -> (c, p)."""
        gradient = self.loss_gradient(block, self.state(block, w))
        if self.decay.any():
            gradient += self.decay.astype(gradient.dtype) * w
        return gradient

    def loss_derivatives(self, block, w, damping=0.0):
        """Gradient (c, p) and Hessian (c, p, p) of the mean loss at ``w_i``, not the penalty."""
        state = self.state(block, w)
        return self.loss_gradient(block, state), self._loss_hessian(block, state, damping)

    def hessian(self, block, w, damping=0.0):
        """Hessian of ``f_i`` at ``w_i``: (c, p) -> (c, p, p); `damping` as in ``newton``."""
        H = self._loss_hessian(block, self.state(block, w), damping)
        np.einsum("ijj->ij", H)[:] += self.decay
        return H

    def _newton_step(self, block, state, g, diagonal, damping):
        """Solutions (c, p) of ``(H + diagonal) x = g``, H the Hessian of the loss."""
        H = self._loss_hessian(block, state, damping)
        np.einsum("ijj->ij", H)[:] += diagonal
        return solve_scaled(H, g)

    def hessian_product(self, block, w, u, damping=0.0):
        """Hessian of ``f_i`` at ``w_i`` times ``u_i``: (c, p), (c, p) -> (c, p)."""
        return self._loss_product(block, self.state(block, w), u, damping) + self.decay * u

    @abstractmethod
    def hessian_diagonal(self, block, w, damping=0.0):
        """Diagonal of the Hessian of ``f_i`` at ``w_i``: (c, p) -> (c, p)."""

    @abstractmethod
    def rounding(self, block, w):
        """Bound of the rounding of ``f_i(w_i)`` as computed in double precision: (c, p) -> (c,).

        The weights of the rows, quotients that are rounded, are a part of it, and so is its share
        of the rounding of the sum over clients.
        """

    @abstractmethod
    def enclosure(self, block, w, box, dense):
        """Bounds of ``f_i`` and its derivatives in a box about ``w_i``.

        Parameters
        ----------
        block : Block
            The clients.
        w, box : ndarray of shape (c, p)
            Its centres, and half its sides.
        dense : bool
            True if the curvature is a matrix, False if it is a number.

        Returns
        -------
        rounding : ndarray of shape (c, p)
            Rounding error of the gradient at ``w_i``, computed in double precision.
        drift : ndarray of shape (c,)
            How far the gradient moves at most, in the Euclidean norm.
        floor : ndarray of shape (c, p, p) or (c, 3)
            A matrix that no Hessian in the box is below; or of numbers: curvature m of the free
            parameters, size of the design of the others, and their penalty.
        """

    def solve(self, block, totals):
        """Minimiser of each client, (c, p), and whether it converged (c,).

        It is the first guess, the mean of the other clients' targets, if no row has a weight.
        `totals` are the clients' weights (c,).
        """
        x, converged = self._minimise(block)
        x = self._settled(block.astype(np.float64), x, totals)
        known = block.weights.any(axis=1, keepdims=True)
        return x if known.all() else np.where(known, x, self._first_guess(block)), converged

    def prox(self, block, v, rho, x0=None, max_iter=100):
        """``argmin f_i(x) + rho_i / 2 ||x - v_i||^2``: (c, p), (c,) -> (c, p), (c,).

        `rho` of shape (c, p) has a strength for each parameter.
        """
        return self._minimise(block, v if x0 is None else x0, v=v, rho=rho, max_iter=max_iter)

    def _minimise(self, block, x0=None, v=None, rho=None, s=None, max_iter=100, allowed=np.inf):
        x = None if np.ndim(rho) == 2 else self._closed_form(block, v, rho, s)
        if x is not None:
            return x, np.ones(len(x), dtype=bool)
        block = block.astype(np.float64)
        oracle = _ClientOracle(self, block, v, rho, s)
        if x0 is None:
            x = self._first_guess(block)
        else:
            x = np.asarray(x0, dtype=float) if self.bounded_curvature else oracle.better_start(x0)
        x, _, converged = newton(
            oracle, self._fix(x, rho), oracle.scale(), max_iter=max_iter, allowed=allowed
        )
        return self._fix(x, rho), converged

    def absent_classes(self, gradient):
        """Which classes clusters lack, (K, C); None if the objective has a minimum in any case.

        `gradient` has the gradients (K, p) of the clusters' mean losses at the origin.
        """

    def _settled(self, block, x, totals):
        """Minimisers (c, p) of clients of some weights (c,), absent classes having half a row."""
        return x

    def _fix(self, x, rho):
        """Directions that nothing determines at zero; a pull or a penalty determines them."""
        return x if rho is not None else np.where(self.decay == 0.0, self.centre(x), x)


class _ClientOracle:
    """``f_i(x) + rho_i / 2 |x - v_i|^2 - <s_i, x>`` of the clients of a block.

    Up to a constant: slopes count from the model's first guess, so that far-away data cost no
    digits.
    """

    def __init__(self, model, block, v, rho, s):
        self.model, self.block, self.v, self.s = model, block, v, s
        self.guess = model._first_guess(block)
        self.rho = None if rho is None else np.reshape(rho, (len(rho), -1)).astype(float)
        self.diagonal = np.tile(model.decay, (len(block.clients), 1))
        if rho is not None:
            self.diagonal += self.rho

    def scale(self):
        """Size of each function: its loss and the pull of its other terms."""
        scale = self.model.loss_size(self.block)
        if self.rho is not None:
            scale = scale + 0.5 * (self.rho * (self.v - self.guess) ** 2).sum(axis=1)
        if self.s is not None:
            scale = scale + np.linalg.norm(self.s, axis=1)
        return np.maximum(scale, 1e-30)

    def better_start(self, x):
        """Given starts, or the model's first guess where it has a lower value.

        If the curvature grows without bound (Poisson), Newton's method returns from a start on the
        wrong side in small steps only, if it is not out of range.
        """
        x = np.asarray(x, dtype=float)
        better = self.at(x)[0] <= self.at(self.guess)[0]
        return np.where(better[:, None], x, self.guess)

    def at(self, x):
        """Values and gradients."""
        model = self.model
        self.x, self.state, self.step = x.copy(), model.state(self.block, x), None
        self.pulled = None if self.rho is None else x - self.v
        self.moved = None if self.s is None else x - self.guess
        gradient = model.loss_gradient(self.block, self.state) + model.decay * x
        if self.rho is not None:
            gradient += self.rho * self.pulled
        if self.s is not None:
            gradient -= self.s
        # Slopes along free directions are rounding.
        gradient = model._fix(gradient, self.rho)
        return self._value(self.state, x, self.pulled, self.moved), gradient

    def _value(self, state, x, pulled, moved):
        value = self.model.mean_loss(self.block, state) + 0.5 * (x * x) @ self.model.decay
        if self.rho is not None:
            value += 0.5 * (self.rho * pulled**2).sum(axis=1)
        if self.s is not None:
            value -= np.einsum("cp,cp->c", self.s, moved)
        return value

    def along(self, step, t):
        """Values at ``x + t * step``; the state is affine, so only its first product costs."""
        if self.step is not step:
            self.step, self.change = step, self.model._state_change(self.block, step)
        ahead = t[:, None] * step
        pulled = None if self.rho is None else self.pulled + ahead
        moved = None if self.s is None else self.moved + ahead
        with np.errstate(invalid="ignore"):
            state = self.state + t[:, None, None] * self.change
            return self._value(state, self.x + ahead, pulled, moved)

    def direction(self, g, damping):
        """Newton directions, exact or to a falling tolerance."""
        model, block, state = self.model, self.block, self.state
        if model.n_params <= MAX_DENSE:
            return -model._newton_step(block, state, g, self.diagonal, damping)
        precondition = model._preconditioner(block, state, self.diagonal, damping)
        # With one output it is the inverse but for the intercept: what takes longer
        # is flat to rounding.
        exact = precondition is not None and model.n_outputs == 1
        return -conjugate_gradients(
            lambda u: model._loss_product(block, state, u, damping) + self.diagonal * u,
            model._loss_diagonal(block) + self.diagonal,
            g,
            20 if exact else 500,
            precondition=precondition,
        )
