"""The federation as the server sees it.

Rows never leave this module: solvers and server loops hold a :class:`ClientPool` and send
and receive parameters, losses and gradients through it.
"""

import copy
from hashlib import blake2b

import numpy as np
from joblib import effective_n_jobs
from scipy import sparse
from sklearn.utils import check_random_state
from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import threadpool_limits

from .blocks import make_blocks
from .ledger import Ledger
from .optimizers import Batches, make_optimizer

# Multiplications of one call below which threads cost more than they save.
PARALLEL_WORK = 2e8
# Parameters up to which the size of the noise is found by the pooled model, steps of those losses
# that are no parabolas, and the least ratio to the targets' variance, far below any real noise.
MAX_DENSE, NOISE_STEPS, LEAST_NOISE = 256, 20, 1e-6
# Automatic penalty below which it is rounding beside the curvature of standardised features.
LEAST_ALPHA = 1e-20
# Slopes of conjugates that are rounding next to the largest one.
ROUNDING = 1e-12


class ClientPool:
    """Clients simulated in this process.

    Parameters
    ----------
    model : LocalModel
        Bound local model.
    X : {ndarray, sparse matrix} of shape (n_rows, n_features)
        Features.
    y : ndarray of shape (n_rows,) or None
        Targets (class codes for classifiers).
    codes : ndarray of shape (n_rows,)
        Position of the client that owns each row.
    n_clients : int
        Number of clients.  The objective of one that owns no row is zero, without the local
        penalty, which a client whose rows all weigh nothing keeps.
    sample_weight : ndarray of shape (n_rows,), default=None
        Row weights; rows that weigh nothing are not stored.
    n_jobs : int, default=None
        Threads over blocks of clients, used where a call is big enough to pay.
    random_state : int, RandomState instance or None, default=None
        Source of the clients' random batches.
    block_bytes : int, default=None
        Bytes of rows that are computed on together; None is what fits a core's cache.
    scaling : Scaling, default=None
        How `X` was scaled: what the clients and the server told each other for that is booked.

    Attributes
    ----------
    n_clients, n_samples, n_params : int
        Clients, stored rows and parameters of a model.
    client_weights : ndarray of shape (n_clients,)
        ``n_i``, the sum of each client's sample weights.
    without_rows : ndarray of shape (n_clients,) of bool
        Which clients own no row, so that nothing is known of their models but who they are.
    ledger : Ledger
        Floats sent so far.
    """

    def __init__(
        self,
        model,
        X,
        y,
        codes,
        n_clients,
        sample_weight=None,
        n_jobs=None,
        random_state=None,
        block_bytes=None,
        scaling=None,
    ):
        self.model = model
        self.scaling = scaling
        self.n_jobs = n_jobs
        self.random_state = check_random_state(random_state)
        self.ledger = Ledger()
        codes = np.asarray(codes)
        self.without_rows = np.bincount(codes, minlength=n_clients) == 0
        target = model.encode(y, X.shape[0])
        if sample_weight is None:
            weights = np.ones(len(codes))
        else:
            weights = np.asarray(sample_weight, dtype=float)
            if (weights == 0).any():
                keep = np.flatnonzero(weights > 0)
                X, target, codes, weights = X[keep], target[keep], codes[keep], weights[keep]
        size = {} if block_bytes is None else {"block_bytes": block_bytes}
        if sparse.issparse(X):
            X = sparse.csr_array(X)
        self._store(model.design(X), target, weights, codes, n_clients, size)
        if scaling is not None:
            self.ledger.book(up=n_clients * (X.shape[1] + 1), down=n_clients * X.shape[1])
            self.ledger.book(up=n_clients * X.shape[1], down=n_clients * X.shape[1])

    def _store(self, design, target, weights, codes, n_clients, size):
        self._block_size = size
        # Copies: a view would keep all rows alive, which are in the blocks from here on.
        self._no_rows = (
            design[:0].copy(),
            target[:0].copy(),
            np.zeros(0),
            np.zeros(0, dtype=np.intp),
        )
        # Blocks hold the clients with rows; what others answer is what arrays begin with.
        owners = np.flatnonzero(~self.without_rows)
        place = np.cumsum(~self.without_rows) - 1
        blocks = make_blocks(design, target, weights, place[codes], len(owners), **size)
        self._blocks = [(block, None, owners[block.clients]) for block in blocks]
        self.client_weights = np.bincount(codes, weights=weights, minlength=n_clients)
        self.client_sizes = np.bincount(codes, minlength=n_clients)
        self._finish()

    def _finish(self):
        self.n_clients = len(self.client_weights)
        self.n_samples = int(self.client_sizes.sum())
        self.n_params = self.model.n_params
        self.dtype = np.dtype(self.model.dtype)
        self._alpha_unit = self._spectrum = None

    # ------------------------------------------------------------ penalty and units

    @property
    def automatic_alpha(self):
        """Whether the local penalty was left to the estimator."""
        return getattr(self.model, "alpha", None) == "auto"

    def penalised(self, alpha):
        """Pool of the same clients under another local penalty, of which they are told.

        Parameters
        ----------
        alpha : float
            The penalty.

        Returns
        -------
        pool : ClientPool
            Shares rows, ledger and random state.
        """
        if alpha == self.model.alpha_:
            return self
        self.ledger.book(down=self.n_clients)
        return self._penalised(alpha)

    def _penalised(self, alpha):
        pool = self._copy()
        pool.model = self.model.penalised(alpha)
        # What blocks remember of their rows holds under one penalty.
        pool._blocks = [(copy.copy(block), *where) for block, *where in self._blocks]
        for block, *_ in pool._blocks:
            block.cache = {}
        if self._spectrum is not None:
            # The server knows the penalty, and what the clients have said of their losses.
            old, new = self.model.decay, pool.model.decay
            high, low = new.max() - old.max(), new.min() - old.min()
            shift = np.array([[high], [low], [high]])
            pool._spectrum = np.where(self.without_rows, self._spectrum, self._spectrum + shift)
        return pool

    @property
    def alpha_unit(self):
        """Local penalty that is a standard normal prior of one model that all clients share.

        One over the weight of all rows.  Of losses whose dispersion is unknown times the ratio of
        the dispersion to that of the targets, because coefficients then have the targets' units:
        the residual variance of the pooled model over the variance, each with its degrees of
        freedom; 1 where models are too large for it or interpolate.
        """
        if self._alpha_unit is None:
            unit = self._noise_ratio() / max(self.client_weights.sum(), 1e-300)
            self._alpha_unit = max(unit, LEAST_ALPHA)
        return self._alpha_unit

    def _noise_ratio(self):
        model, n = self.model, self.client_weights.sum()
        p = model.n_free
        if not (self.second_order and model.unknown_scale and p <= MAX_DENSE and n > p + 1):
            return 1.0
        pool = self._penalised(0.0)
        constant = np.zeros(self.n_params, dtype=bool)
        if model.fit_intercept:
            constant[-1] = True
        losses = []
        for free in (constant, ~np.zeros_like(constant)):
            theta = np.zeros((1, self.n_params))
            if free.any():
                # With all of its curvature a step never overshoots; a parabola takes one.
                for _ in range(1 if self.quadratic else NOISE_STEPS):
                    theta = theta + pool._newton_step(theta, free)
            losses.append(float(self.client_weights @ pool.objectives_gradients(theta, float)[0]))
        around, residual = losses[0] / max(n - 1.0, 1.0), losses[1] / (n - p)
        if not around > 0.0 or not np.isfinite([around, residual]).all():
            return 1.0
        return float(np.clip(residual / around, LEAST_NOISE, 1.0))

    def _newton_step(self, theta, free):
        """Damped Newton step of the pooled problem in some of its parameters, (1, n_params)."""
        together = np.zeros(self.n_clients, dtype=np.intp)
        g = self.client_weights @ self.objectives_gradients(theta, float)[1]
        H = self.hessians(theta, together, damping=1.0)[0]
        step = np.zeros_like(theta)
        step[0, free] = -np.linalg.lstsq(H[np.ix_(free, free)], g[free])[0]
        return step

    def to_user(self, params):
        """Parameters (..., n_params) in the user's units."""
        return params if self.scaling is None else self.model.to_user(params, self.scaling)

    def from_user(self, params):
        """Parameters (..., n_params) in the units of this pool, of those in the user's."""
        return params if self.scaling is None else self.model.from_user(params, self.scaling)

    def slopes_to_user(self, slopes):
        """Gradients (..., n_params) in the user's units."""
        if self.scaling is None:
            return slopes
        return self.model.slopes_to_user(slopes, self.scaling)

    # ---------------------------------------------------------------- walking the blocks

    def _each(self, function, models=1):
        """Call ``function(block, slots)`` for every block; slots are the clients' places."""

        def work(some):
            # A model that diverges answers infinity or NaN: for the server to see, no warning.
            with np.errstate(over="ignore", invalid="ignore"):
                for block, index, slots in some:
                    function(block if index is None else block.take(index), slots)

        amount = self.n_samples * self.n_params * models
        # To ask for the number of threads takes longer than a small call.
        if len(self._blocks) == 1 or amount < PARALLEL_WORK:
            return work(self._blocks)
        n_jobs = effective_n_jobs(self.n_jobs)
        if n_jobs == 1:
            return work(self._blocks)
        # Small shares keep the threads busy to the end; blocks write apart from each other.
        count = min(4 * n_jobs, len(self._blocks))
        shares = [self._blocks[i::count] for i in range(count)]
        with threadpool_limits(1):
            Parallel(n_jobs=n_jobs, require="sharedmem")(delayed(work)(s) for s in shares)

    def _own(self, w):
        """Parameters of each client, (n_clients, p), in the pool's type."""
        w = np.asarray(w, dtype=self.dtype)
        return np.broadcast_to(w, (self.n_clients, self.n_params))

    # --------------------------------------------------------------------- first order

    def losses(self, theta, shared=0):
        """Mean loss of each client under each model, without the local penalty.

        Parameters
        ----------
        theta : ndarray of shape (K, n_params)
            Models.
        shared : int, default=0
            How many parameters all models have in common and are sent once.

        Returns
        -------
        losses : ndarray of shape (n_clients, K)
        """
        theta = np.ascontiguousarray(theta, dtype=self.dtype)
        out = np.zeros((self.n_clients, len(theta)), dtype=self.dtype)

        def work(block, slots):
            out[slots] = self.model.losses(block, theta)

        self._each(work, len(theta))
        sent = theta.size - (len(theta) - 1) * shared
        self.ledger.book(down=self.n_clients * sent, up=out.size)
        return out

    def best_response(self, theta, fixed=None, shared=0):
        """Losses, best model and gradient at the best model, in one pass over the rows.

        Parameters
        ----------
        theta : ndarray of shape (K, n_params)
            Models.
        fixed : ndarray of shape (n_clients,), default=None
            Clients with a non-negative entry are sent that model only and keep it; their
            losses under the other models come back as infinity.
        shared : int, default=0
            How many parameters all models have in common and are sent once.

        Returns
        -------
        losses : ndarray of shape (n_clients, K)
            Without the local penalty.
        choice : ndarray of shape (n_clients,)
            Model of least loss.
        gradients : ndarray of shape (n_clients, n_params)
            Of each client's objective, with the local penalty, at its choice.
        """
        theta = np.ascontiguousarray(theta, dtype=self.dtype)
        K, p = theta.shape
        losses = np.zeros((self.n_clients, K), dtype=self.dtype)
        choice = np.zeros(self.n_clients, dtype=np.intp)
        if fixed is not None:
            choice = np.maximum(fixed, choice)
        gradients = np.zeros((self.n_clients, p), dtype=self.dtype)

        def work(block, slots):
            held = None if fixed is None else fixed[slots]
            losses[slots], choice[slots], gradients[slots] = self.model.best_response(
                block, theta, held
            )

        self._each(work, K)
        n_free = self.n_clients if fixed is None else int((fixed < 0).sum())
        n_held = self.n_clients - n_free
        if n_held:
            held = np.flatnonzero(fixed >= 0)
            own = losses[held, fixed[held]]
            losses[held] = np.inf
            losses[held, fixed[held]] = own
        self.ledger.book(
            down=n_free * (K * (p - shared) + shared) + n_held * p,
            up=n_free * (K + 1) + n_held + gradients.size,
        )
        return losses, choice, gradients

    def objectives(self, w):
        """Values ``f_i(w_i)`` with the local penalty: (n_clients, p) -> (n_clients,)."""
        w = self._own(w)
        value = np.zeros(self.n_clients, dtype=self.dtype)

        def work(block, slots):
            value[slots] = self.model.value(block, w[slots])

        self._each(work)
        self.ledger.book(down=w.size, up=value.size)
        return value

    def penalties(self, w):
        """Local penalty of models (m, p), known to the server: no message."""
        w = np.asarray(w)
        return 0.5 * (w * w) @ self.model.decay

    def gradients(self, w):
        """Gradients of ``f_i`` at ``w_i``: (n_clients, p) -> (n_clients, p)."""
        return self.objectives_gradients(w)[1]

    def objectives_gradients(self, w, dtype=None):
        """Values and gradients of ``f_i`` at ``w_i`` in one pass.

        Parameters
        ----------
        w : ndarray of shape (n_clients, n_params)
            One model a client.
        dtype : dtype, default=None
            Type to compute in; second-order methods ask for float64.

        Returns
        -------
        values : ndarray of shape (n_clients,)
        gradients : ndarray of shape (n_clients, n_params)
        """
        dtype = self.dtype if dtype is None else np.dtype(dtype)
        w = np.broadcast_to(np.asarray(w, dtype=dtype), (self.n_clients, self.n_params))
        value = np.zeros(self.n_clients, dtype=dtype)
        gradient = np.zeros((self.n_clients, self.n_params), dtype=dtype)

        def work(block, slots):
            value[slots], gradient[slots] = self.model.value_gradient(
                block.astype(dtype), w[slots]
            )

        self._each(work)
        self.ledger.book(down=w.size, up=value.size + gradient.size)
        return value, gradient

    def local_update(
        self,
        w,
        steps,
        step_size,
        optimizer="sgd",
        batch_size=None,
        center=None,
        rho=0.0,
        monotone=False,
        kept=False,
    ):
        """Let every client train its model for some steps on its own rows.

        Parameters
        ----------
        w : ndarray of shape (n_clients, n_params)
            Starts.
        steps : int or ndarray of shape (n_clients,)
            Optimiser updates; clients may differ.
        step_size : float or ndarray of shape (n_clients,)
            Step of each client.
        optimizer : {"sgd", "momentum", "adam"}, default="sgd"
            The optimiser, its state fresh in every call.
        batch_size : int or None, default=None
            Rows of a batch; None takes all rows, which makes "sgd" gradient descent.
        center : ndarray of shape (n_clients, n_params), default=None
            Centre of a proximal pull.
        rho : float or ndarray of shape (n_clients,), default=0.0
            Its strength: ``rho / 2 ||w - center||^2`` is added to the objective.
        monotone : bool, default=False
            Undo a step that raised a client's objective and halve the client's step from
            then on: the safeguard of automatic steps.  Only of "sgd" on all rows: other steps
            raise the objective by nature.
        kept : bool, default=False
            Whether clients start from the model that they sent last, which need not be sent
            back.

        Returns
        -------
        w : ndarray of shape (n_clients, n_params)
            Trained models. A client without rows has nothing to train on: it answers with the
            centre where it is pulled, else with its start.
        """
        if monotone and (optimizer != "sgd" or batch_size is not None):
            raise ValueError(
                "monotone=True is a safeguard of optimizer='sgd' on all rows, got "
                f"optimizer={optimizer!r} and batch_size={batch_size!r}."
            )
        start = self._own(w)
        out = np.empty(start.shape, dtype=self.dtype)
        out[self.without_rows] = start[self.without_rows]
        steps = np.broadcast_to(np.asarray(steps), (self.n_clients,))
        with np.errstate(over="ignore"):  # a step too long for the type diverges, as it should
            rates = np.broadcast_to(np.asarray(step_size, dtype=self.dtype), (self.n_clients,))
            rhos = np.broadcast_to(np.asarray(rho, dtype=self.dtype), (self.n_clients,))
        pull = None if center is None else self._own(center)
        if pull is not None:
            idle = self.without_rows & (rhos > 0)
            out[idle] = pull[idle]
        # Drawn for all clients before any block is touched: blocks and threads change nothing.
        seeds = None
        if batch_size is not None:
            high = np.iinfo(np.int64).max
            seeds = self.random_state.randint(0, high, self.n_clients, dtype=np.int64)
            seeds = seeds.astype(np.uint64)

        def work(block, slots):
            own = start[slots]  # a copy, as slots are numbers
            job = steps[slots], rates[slots], None if pull is None else pull[slots], rhos[slots]
            if monotone:
                out[slots] = _descend(self.model, block, own, *job)
            else:
                own_seeds = None if seeds is None else seeds[slots]
                out[slots] = _train(self.model, block, own, *job, optimizer, batch_size, own_seeds)

        self._each(work, int(steps.max(initial=0)))
        sent = (not kept) + (pull is not None)
        self.ledger.book(down=sent * start.size, up=out.size)
        return out

    # -------------------------------------------------------------------- second order

    def hessians(self, theta, labels, weights=None, damping=0.0):
        """Hessians of the clusters' objectives, summed by cluster on the client side.

        Parameters
        ----------
        theta : ndarray of shape (K, n_params)
            Model of each cluster.
        labels : ndarray of shape (n_clients,)
            Cluster of each client.
        weights : ndarray of shape (n_clients,), default=None
            Weights ``u_i`` of the clients; ``n_i`` by default.
        damping : float or ndarray of shape (K,), default=0.0
            Between 0 and 1: how far to move to a curvature with which Newton steps never
            overshoot, where the second derivative vanishes (Huber).

        Returns
        -------
        H : ndarray of shape (K, n_params, n_params)
            ``sum_{i in C_k} u_i`` times the Hessian of ``f_i`` at ``theta_k``.
        """
        self._need_second_order("hessians")
        theta = np.asarray(theta, dtype=float)
        weights = self.client_weights if weights is None else weights
        damping = np.broadcast_to(damping, (len(theta),))
        parts = {}

        def work(block, slots):
            mine = labels[slots]
            H = self.model.hessian(block.astype(np.float64), theta[mine], damping[mine])
            some, place = np.unique(mine, return_inverse=True)
            flat = sum_by_cluster(H.reshape(len(H), -1), place, len(some), weights[slots])
            parts[int(slots[0])] = some, flat.reshape(len(some), *H.shape[1:])

        self._each(work, self.n_params)
        total = np.zeros((len(theta), self.n_params, self.n_params))
        for key in sorted(parts):
            some, H = parts[key]
            total[some] += H
        triangle = self.n_params * (self.n_params + 1) // 2
        self.ledger.book(down=self.n_clients * self.n_params, up=self.n_clients * triangle)
        return total

    def hessian_products(self, theta, u, labels, weights=None, damping=0.0):
        """Products of the clusters' Hessians with vectors, for models of many parameters.

        Parameters
        ----------
        theta, u : ndarray of shape (K, n_params)
            Model of each cluster, and the vector to multiply.
        labels : ndarray of shape (n_clients,)
            Cluster of each client.
        weights : ndarray of shape (n_clients,), default=None
            Weights ``u_i`` of the clients; ``n_i`` by default.
        damping : float or ndarray of shape (K,), default=0.0
            As for :meth:`hessians`.

        Returns
        -------
        products : ndarray of shape (K, n_params)
            ``sum_{i in C_k} u_i`` times the Hessian of ``f_i`` at ``theta_k`` times ``u_k``.
        """
        self._need_second_order("hessian_products")
        theta, u = np.asarray(theta, dtype=float), np.asarray(u, dtype=float)
        weights = self.client_weights if weights is None else weights
        damping = np.broadcast_to(damping, (len(theta),))
        out = np.zeros((self.n_clients, self.n_params))

        def work(block, slots):
            mine = labels[slots]
            out[slots] = self.model.hessian_product(
                block.astype(np.float64), theta[mine], u[mine], damping[mine]
            )

        self._each(work, 2)
        self.ledger.book(down=2 * out.size, up=out.size)
        return sum_by_cluster(out, labels, len(theta), weights)

    def solve(self, w0=None):
        """Each client's own minimiser.

        Parameters
        ----------
        w0 : ndarray of shape (n_clients, n_params), default=None
            Starts.

        Returns
        -------
        w : ndarray of shape (n_clients, n_params)
            Minimisers; where none exists (one class and a free intercept) a finite point
            whose objective is at its infimum to within rounding. Of clients without rows, which
            have no wish, the start or zero.
        converged : ndarray of shape (n_clients,) of bool
        """
        self._need_second_order("solve")
        out = np.zeros((self.n_clients, self.n_params))
        if w0 is not None:
            out[self.without_rows] = w0[self.without_rows]
        converged = np.ones(self.n_clients, dtype=bool)

        def work(block, slots):
            start = None if w0 is None else w0[slots]
            out[slots], converged[slots] = self.model.solve(block, start)

        self._each(work, self.n_params)
        self.ledger.book(up=out.size)
        return out, converged

    def _need_second_order(self, call):
        """Refuse what clients cannot compute, rather than do something like it."""
        if not self.second_order:
            raise ValueError(
                f"{call} needs a local model with second derivatives and exact proximal points, "
                f"got {self.model_name}. Such models are trained: local_update() takes steps, "
                "with center= and rho= towards a proximal point."
            )

    def prox(self, v, rho, x0=None, max_iter=100):
        """Proximal points ``argmin f_i(x) + rho_i / 2 ||x - v_i||^2``.

        Parameters
        ----------
        v : ndarray of shape (n_clients, n_params)
            Centres.
        rho : float or ndarray of shape (n_clients,)
            Positive strengths.
        x0 : ndarray of shape (n_clients, n_params), default=None
            Starts (clients keep their last answer: not booked).
        max_iter : int, default=100
            Most Newton steps where there is no closed form.  A solver that asks again from the
            last answer needs no more than one or two.

        Returns
        -------
        x : ndarray of shape (n_clients, n_params)

        Raises
        ------
        ValueError
            If the model has no second derivatives.  What its clients can do is train under the
            pull: :meth:`local_update` with `center` and `rho`, as long as the caller says.
        """
        self._need_second_order("prox")
        v = np.broadcast_to(np.asarray(v, dtype=float), (self.n_clients, self.n_params))
        rho = np.broadcast_to(np.asarray(rho, dtype=float), (self.n_clients,))
        out = np.array(v)  # where clients without rows stay

        def work(block, slots):
            start = None if x0 is None else x0[slots]
            out[slots], _ = self.model.prox(block, v[slots], rho[slots], start, max_iter)

        self._each(work, self.n_params)
        self.ledger.book(down=out.size, up=out.size)
        return out

    def conjugate(self, s, x0=None):
        """Upper bounds of the conjugates ``f_i^*(s_i)`` and their maximisers.

        Parameters
        ----------
        s : ndarray of shape (n_clients, n_params)
            Slopes.
        x0 : ndarray of shape (n_clients, n_params), default=None
            Starts.

        Returns
        -------
        bounds : ndarray of shape (n_clients,)
            At least ``f_i^*(s_i)`` whatever the accuracy reached; infinite outside of
            the domain, which is zero alone for clients without rows.
        x : ndarray of shape (n_clients, n_params)
        """
        self._need_second_order("conjugate")
        s = np.broadcast_to(np.asarray(s, dtype=float), (self.n_clients, self.n_params))
        # Slopes are sums of flows: what rounding leaves where they cancel is zero, or the bound
        # of a client without rows would never be finite.  Of free parameters only: a penalty
        # makes small slopes cheap, and their share of the bound is not given away.
        free = self.model.decay == 0.0
        size = np.abs(s[:, free]).max(axis=1, initial=0.0)
        tiny = size <= ROUNDING * np.abs(s).max(initial=0.0)
        given, lost = s, tiny[:, None] & free | self.without_rows[:, None]
        s = np.where(tiny[:, None] & free, 0.0, s)
        largest = np.abs(s).max(axis=1, initial=0.0)
        level = largest <= ROUNDING * largest.max(initial=0.0)
        bound = np.where(self.without_rows & ~level, np.inf, 0.0)
        out = np.zeros((self.n_clients, self.n_params)) if x0 is None else np.array(x0)

        def work(block, slots):
            start = None if x0 is None else x0[slots]
            bound[slots], out[slots] = self.model.conjugate(block, s[slots], start)

        self._each(work, self.n_params)
        way = np.abs(out) if x0 is None else np.maximum(np.abs(out), np.abs(x0))
        bound += 2.0 * np.einsum("np,np->n", np.where(lost, np.abs(given), 0.0), way)
        self.ledger.book(down=s.size, up=bound.size)
        return bound, out

    def rounding(self, w):
        """Bounds of the rounding of the clients' objectives, in double precision.

        Parameters
        ----------
        w : ndarray of shape (n_clients, n_params)
            Models.

        Returns
        -------
        rounding : ndarray of shape (n_clients,)
            How far ``objectives_gradients(w, dtype=np.float64)[0]`` may be from exact.
        """
        w = np.broadcast_to(np.asarray(w, dtype=float), (self.n_clients, self.n_params))
        out = np.zeros(self.n_clients)

        def work(block, slots):
            out[slots] = self.model.rounding(block, w[slots])

        self._each(work)
        self.ledger.book(up=out.size)  # of models that the clients have
        return out

    def enclosure(self, theta, labels, box, dense):
        """What is certain of the objectives of clusters in boxes about their models.

        Parameters
        ----------
        theta, box : ndarray of shape (K, n_params)
            Model of each cluster, and half the sides of its box.
        labels : ndarray of shape (n_clients,)
            Cluster of each client.
        dense : bool
            Whether clients send matrices, or numbers.

        Returns
        -------
        rounding : ndarray of shape (n_clients, n_params)
            Of the clients' gradients at the models, in double precision.
        drift : ndarray of shape (n_clients,)
            How far they move at most in the box, in the Euclidean norm.
        floor : ndarray of shape (K, n_params, n_params) or (K,)
            Matrices, or least eigenvalues, that the Hessians of the clusters' sums are not below
            in the box.
        """
        K, p = theta.shape
        rounding, drift = np.zeros((self.n_clients, p)), np.zeros(self.n_clients)
        total = np.zeros((K, p, p) if dense else (K, 3))
        parts = {}

        def work(block, slots):
            mine = labels[slots]
            rounding[slots], drift[slots], floor = self.model.enclosure(
                block, theta[mine], box[mine], dense
            )
            some, place = np.unique(mine, return_inverse=True)
            share = np.zeros((len(some), *floor.shape[1:]))
            np.add.at(share, place, floor)
            parts[int(slots[0])] = some, share

        self._each(work, p)
        for key in sorted(parts):
            some, share = parts[key]
            total[some] += share
        size = p * (p + 1) // 2 if dense else 3
        self.ledger.book(down=2 * self.n_clients * p, up=self.n_clients * (p + 1 + size))
        return rounding, drift, total if dense else _least_curvature(*total.T)

    def fingerprints(self, key):
        """Digests of the clients' rows that do not depend on their order.

        Two clients have the same digest only if they have the same rows, targets and weights, but
        for one chance in ``2 ** 106``: their objectives are then one function.

        Parameters
        ----------
        key : int
            Key of the digests, so that those of different fits cannot be compared.

        Returns
        -------
        digests : ndarray of shape (n_clients, 2)
        """

        def digest(X, y, weights):
            X = X.toarray() if sparse.issparse(X) else X
            total = weights.sum()
            share = weights / total if total > 0 else weights
            rows = np.column_stack([X, y, share]).astype(float) + 0.0  # no negative zeros
            rows = np.ascontiguousarray(rows[np.lexsort(rows.T)])
            code = blake2b(rows.tobytes(), digest_size=16, key=int(key).to_bytes(8, "little"))
            return np.frombuffer(code.digest(), dtype="<u8") >> np.uint64(11)

        return np.array(self.map(digest), dtype=float).reshape(self.n_clients, 2)

    def spectrum(self):
        """Curvature of the clients' objectives, for automatic steps.

        Returns
        -------
        lipschitz : ndarray of shape (n_clients,)
            Upper bounds ``L_i`` of the curvature.
        strong : ndarray of shape (n_clients,)
            Lower bounds ``mu_i``.
        mean : ndarray of shape (n_clients,)
            Geometric means of the curvature over the directions.

        Notes
        -----
        Clients are asked once; later calls, and pools of some of them, know the answers.
        """
        self._need_second_order("spectrum")
        if self._spectrum is None:
            out = np.zeros((3, self.n_clients))

            def work(block, slots):
                out[:, slots] = self.model.spectrum(block)

            self._each(work, self.n_params)
            self.ledger.book(up=out.size)
            self._spectrum = out
        return tuple(self._spectrum.copy())

    # -------------------------------------------------------------------- other pools

    def subset(self, clients):
        """Pool of some of the clients, in the given order; shares ledger and random state.

        Parameters
        ----------
        clients : array-like
            Positions, each at most once, or a mask.

        Returns
        -------
        pool : ClientPool
        """
        clients = np.arange(self.n_clients)[clients]
        if len(np.unique(clients)) < len(clients):
            raise ValueError(f"Each client can be in a subset once, got {clients!r}.")
        place = np.full(self.n_clients, -1)
        place[clients] = np.arange(len(clients))
        pool = self._copy()
        pool._blocks = []
        for block, index, slots in self._blocks:
            here = np.flatnonzero(place[slots] >= 0)
            if len(here) == len(slots):
                pool._blocks.append((block, index, place[slots]))
            elif len(here):
                of_block = here if index is None else index[here]
                pool._blocks.append((block, of_block, place[slots[here]]))
        pool.client_weights = self.client_weights[clients]
        pool.client_sizes = self.client_sizes[clients]
        pool.without_rows = self.without_rows[clients]
        pool._finish()
        if self._spectrum is not None:
            pool._spectrum = self._spectrum[:, clients]
        return pool

    def _copy(self):
        pool = object.__new__(type(self))
        pool.__dict__.update(self.__dict__)
        return pool

    def hold_out(self, fraction, random_state=None):
        """Split each client's rows in two.

        Parameters
        ----------
        fraction : float
            Share of each client's rows that is held out, at least one row; a client of
            one row is in both pools.
        random_state : int, RandomState instance or None, default=None
            Source of the split.

        Returns
        -------
        train, held : ClientPool
            They share this pool's ledger and random state.
        """
        rows = self._rows()
        rank = self._shuffle(rows[3], random_state)
        size, codes = self.client_sizes, rows[3]
        n_held = np.clip(np.round(fraction * size).astype(int), np.minimum(size, 1), None)
        n_held = np.where(size > 1, np.minimum(n_held, size - 1), n_held)
        held = rank < n_held[codes]
        train = ~held | (size == 1)[codes]
        return self._part(rows, train), self._part(rows, held)

    def deal_folds(self, n_folds, random_state=None):
        """Deal each client's rows to folds, to judge on each what was fitted to the others.

        Each class of a classifier is dealt evenly, as by :class:`ClientKFold`: otherwise a class
        that is frequent in a client's held-out rows is rare in those its model was fitted to.

        Parameters
        ----------
        n_folds : int
            Number of folds, at least 2.  A client of fewer rows has none in some of them.
        random_state : int, RandomState instance or None, default=None
            Source of the deal.

        Returns
        -------
        folds : list of tuple of ClientPool
            ``(train, held)`` of each fold; every row is held out once, but for the only row of a
            client, which is in all the training pools.  They share this pool's ledger and random
            state.
        """
        rng = check_random_state(random_state)
        rows = self._rows()
        codes = rows[3]
        # Clients of few rows begin at different folds.
        first = rng.randint(n_folds, size=self.n_clients)
        classes = None
        if self.model.estimator_type == "classifier":
            classes = np.unique(rows[1], axis=0, return_inverse=True)[1].ravel()
        fold = (self._shuffle(codes, rng, classes) + first[codes]) % n_folds
        fold[(self.client_sizes == 1)[codes]] = -1
        return [(self._part(rows, fold != k), self._part(rows, fold == k)) for k in range(n_folds)]

    def _shuffle(self, codes, random_state, classes=None):
        """Place of each row in a random order of its client's rows, by class if given."""
        key = check_random_state(random_state).uniform(size=len(codes))
        order = np.lexsort((key, codes) if classes is None else (key, classes, codes))
        first = np.concatenate([[0], np.cumsum(self.client_sizes)])
        rank = np.empty(len(codes), dtype=np.intp)
        rank[order] = np.arange(len(codes)) - first[codes[order]]
        return rank

    def _part(self, rows, mask):
        """Pool of some of the rows that :meth:`_rows` returned."""
        pool = self._copy()
        some = (part[np.flatnonzero(mask)] for part in rows)
        pool._store(*some, self.n_clients, self._block_size)
        return pool

    def _rows(self):
        """All rows by client: design matrix, targets, weights, owners."""
        parts = [self._no_rows]
        for block, index, slots in self._blocks:
            block = block if index is None else block.take(index)
            c, n, d = block.shape
            real = (np.arange(n) < block.lengths[:, None]).ravel()
            X = block.X if sparse.issparse(block.X) else block.X.reshape(c * n, d)
            y, w = block.exact
            y = y.transpose(0, 2, 1).reshape(c * n, -1)
            w = w * self.client_weights[slots][:, None]
            place = np.flatnonzero(real)
            parts.append((X[place], y[place], w.ravel()[place], np.repeat(slots, n)[place]))
        X, y, w, codes = zip(*parts, strict=True)
        codes = np.concatenate(codes)
        order = np.argsort(codes, kind="stable")
        X = sparse.csr_array(sparse.vstack(X)) if sparse.issparse(X[0]) else np.concatenate(X)
        return X[order], np.concatenate(y)[order], np.concatenate(w)[order], codes[order]

    def map(self, function):
        """One-off computation of each client on its own rows.

        Parameters
        ----------
        function : callable
            Called as ``function(X, y, weights)`` with one client's features
            (n_rows, n_features), encoded targets (n_rows, q) and weights (n_rows,); returns
            the client's message, an array or a number.

        Returns
        -------
        messages : list of length n_clients
        """
        design, target, weights, codes = self._rows()
        first = np.concatenate([[0], np.cumsum(self.client_sizes)])
        messages = []
        for start, stop in zip(first[:-1], first[1:], strict=True):
            rows = slice(start, stop)
            X = design[rows][:, : self.model.n_features]
            messages.append(function(X, target[rows], weights[rows]))
        self.ledger.book(up=sum(np.size(m) for m in messages))
        return messages

    def init_params(self, n_models, random_state=None):
        """Random starts of the local model, (n_models, n_params)."""
        return self.model.init_params(n_models, random_state)

    def start(self):
        """The common start of local training, (n_params,); a network's is drawn."""
        return self.model.start(self.random_state)

    def centre(self, theta):
        """Models with the same predictions, their free directions at zero."""
        return self.model.centre(theta)

    def pin(self, H):
        """Add curvature to the free directions of Hessians (m, p, p), in place."""
        return self.model.pin(H)

    @property
    def typical_size(self):
        """Median number of rows of the clients that have any."""
        return float(np.median(self.client_sizes[~self.without_rows]))

    @property
    def second_order(self):
        """Whether clients can send second derivatives and exact proximal points."""
        return self.model.second_order

    @property
    def quadratic(self):
        """Whether clients' objectives are quadratic functions."""
        return self.model.quadratic

    @property
    def model_name(self):
        """Name of the local model's class, for messages."""
        return type(self.model).__name__

    @property
    def layer_slices(self):
        """Slices of the parameter vector by layer name."""
        return self.model.layer_slices()


def sum_by_cluster(messages, labels, n_clusters, weights=None):
    """Weighted sums of clients' messages by cluster: (n, p) -> (n_clusters, p)."""
    share = np.zeros((n_clusters, len(labels)), dtype=messages.dtype)
    share[labels, np.arange(len(labels))] = 1.0 if weights is None else weights
    with np.errstate(over="ignore", invalid="ignore"):
        total = share @ messages
        if not np.isfinite(total).all():
            # Zero times infinity: a client that diverged is the matter of its cluster only.
            for k in range(n_clusters):
                mine = np.flatnonzero(share[k])
                total[k] = share[k, mine] @ messages[mine]
    return total


def _least_curvature(free, size, penalty):
    """Least eigenvalues of sums of curvatures of linear models, (K,).

    With x the penalised parameters, of which rows of a size a and the penalty b know, and t the
    free ones of curvature m: ``(u + t)^2 >= t^2 c / (1 + c) - c u^2`` with ``c = b / (2 a)``
    leaves ``b / 2`` for x and ``m c / (1 + c)`` for t.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        c = np.where(penalty > 0, penalty / (2.0 * size), 0.0)
        both = np.minimum(0.5 * penalty, np.where(np.isinf(c), free, free * c / (1.0 + c)))
    return np.where(np.isinf(free), penalty, np.where(np.isinf(penalty), free, both))


def _train(model, block, w, steps, rates, center, rho, optimizer, batch_size, seeds):
    """Steps of an optimiser on the models (c, p) of a block, in place."""
    size, work = model.clients_at_once(block), None
    for first in range(0, len(w), size):
        some = slice(first, min(first + size, len(w)))
        part = block if size >= len(w) else block.take(some)
        batches = None if seeds is None else Batches(part, batch_size, seeds[some])
        if work is None or some.stop - first < size:
            work = model.workspace(part, None if batches is None else batches.n_rows)
        _train_together(
            model,
            part,
            w[some],
            steps[some],
            rates[some],
            None if center is None else center[some],
            rho[some],
            make_optimizer(optimizer, w[some].shape, w.dtype),
            batches,
            work,
        )
    return w


def _train_together(model, block, w, steps, rates, center, rho, optimizer, batches, work):
    """Train some clients at the same time, their models `w` in place."""
    most = int(steps.max(initial=0))
    even = (steps == most).all()
    rates, rho = rates[:, None], rho[:, None]
    for t in range(most):
        batch = block if batches is None else batches.next()
        g = model.gradient(batch, w, work)
        if center is not None:
            g += rho * (w - center)
        optimizer.step(w, g, rates if even else np.where((t < steps)[:, None], rates, 0))


def _descend(model, block, w, steps, rates, center, rho):
    """Gradient descent that never raises an objective: a bad step is undone and halved."""
    rates = rates.copy()
    best, value, slope = w, None, None
    for t in range(int(steps.max(initial=0)) + 1):
        with np.errstate(over="ignore", invalid="ignore"):
            new, g = model.value_gradient(block, w)
        if center is not None:
            new = new + 0.5 * rho * ((w - center) ** 2).sum(axis=1)
            g = g + rho[:, None] * (w - center)
        if value is None:
            value, slope = new, g
        else:
            rounding = 8 * np.finfo(w.dtype).eps * np.abs(value)
            good = new <= value + rounding
            rates = np.where(good, rates, rates * 0.5)
            best = np.where(good[:, None], w, best)
            value = np.where(good, new, value)
            slope = np.where(good[:, None], g, slope)
        rate = np.where(t < steps, rates, 0)[:, None]
        w = best - rate * slope
    return best
