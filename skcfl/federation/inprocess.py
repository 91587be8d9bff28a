"""Clients simulated in this process.

Rows never leave this module: a server holds a :class:`~skcfl.federation.ClientPool`, which asks
:class:`InProcessSite` by the calls of :mod:`skcfl.federation.messages`.
"""

from __future__ import annotations

import copy
import sys
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from joblib import effective_n_jobs
from scipy import sparse
from scipy.special import logsumexp
from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import ThreadpoolController, threadpool_limits

from ..exceptions import RowsShownError
from ..numerics.by_cluster import sum_by_cluster
from .blocks import gathered, in_order, make_blocks
from .difference_site import DifferenceKernels
from .draws import mixed, order_of_rows
from .last_answers import Forgotten, LastAnswers
from .local_clusters import local_kmeans
from .messages import CALLS
from .personal_site import PersonalKernels, PersonalState
from .pool import ClientPool, least_curvature, prior_covariance, prior_variance
from .sites import Site
from .training import descend, train

# Multiplications of one call below which threads cost more than they save.
PARALLEL_WORK = 5e7
# Values of features below which blocks are made one after the other.
PARALLEL_VALUES = 1e7
# Slopes of conjugates that are rounding next to the largest one.
ROUNDING = 1e-12
# Singular values below this part of the largest are rounding.
RANK = 1e-9
# Bytes of matrices of posteriors that are held at once for a part of a block.
POSTERIOR_BYTES = 2**26


class InProcessSite(DifferenceKernels, PersonalKernels, Site):
    """Clients of this process, their rows in blocks.

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
    block_bytes : int, default=None
        Bytes of rows that are computed on together; None is what fits a core's cache.
    places : ndarray of shape (n_clients,), default=None
        Positions of the clients in the whole federation, by which they draw; None if these are
        all.
    scaling : Scaling, default=None
        Units of the features; None if they are those of `X`.
    row_ids : ndarray of shape (n_rows,), default=None
        Numbers by which a policy knows the rows; None if there is no policy.

    Attributes
    ----------
    row_ids : ndarray or None
        Those of the rows of the site that weigh something, by client.
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
        block_bytes=None,
        places=None,
        scaling=None,
        row_ids=None,
    ):
        self.model = model
        self.n_jobs = n_jobs
        self.places = np.arange(n_clients) if places is None else np.asarray(places)
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
                row_ids = None if row_ids is None else row_ids[keep]
        self._block_size = {} if block_bytes is None else {"block_bytes": block_bytes}
        if sparse.issparse(X):
            X = sparse.csr_array(X)
        model.try_rows(X, target)

        def design(rows):
            return model.design(rows if scaling is None else scaling.transform(rows))

        order = order_of_rows(codes, X, target, weights)
        self.row_ids = None if row_ids is None else row_ids[order]
        self._store(X, target, weights, codes, n_clients, design, order)

    def _store(self, X, target, weights, codes, n_clients, design=None, order=None):
        # Copies: a view would keep all rows alive, which are in the blocks from here on.
        self._no_rows = (
            (X[:0] if design is None else design(X[:0])).copy(),
            target[:0].copy(),
            np.zeros(0),
            np.zeros(0, dtype=np.intp),
        )
        # Blocks hold the clients with rows; what others answer is what arrays begin with.
        owners = np.flatnonzero(~self.without_rows)
        place = np.cumsum(~self.without_rows) - 1
        blocks = make_blocks(
            X,
            target,
            weights,
            place[codes],
            len(owners),
            design=design,
            each=self._at_once if X.size >= PARALLEL_VALUES else in_order,
            order=order,
            **self._block_size,
        )
        self._blocks = [(block, None, owners[block.clients]) for block in blocks]
        self._forget()
        self.client_weights = np.bincount(codes, weights=weights, minlength=n_clients)
        self.client_sizes = np.bincount(codes, minlength=n_clients)

    def _forget(self):
        """Begin with no models kept; those of these clients will be at `at` of the memory."""
        self.memory, self.at = LastAnswers(self.n_clients), slice(None)
        self.state = PersonalState(self.n_clients)

    def positions(self, clients):
        """Where the memory, which pools of some clients share, has those of some clients."""
        return np.arange(len(self.memory.known))[self.at][clients]

    @property
    def n_clients(self):
        """Number of clients."""
        return len(self.places)

    def answer(self, call, arguments):
        """Let the clients compute a call of the table."""
        return getattr(self, f"_{call}")(**arguments)

    def _zeros(self, *shape, dtype=float):
        return np.zeros((self.n_clients, *shape), dtype=dtype)

    def _each(self, function, models=1):
        """Call ``function(block, slots)`` for every block; slots are the clients' places."""

        def work(some):
            # A model that diverges answers infinity or NaN: for the server to see, no warning.
            with np.errstate(over="ignore", invalid="ignore"):
                for block, index, slots in some:
                    part = block if index is None else block.take(index)
                    if own is None:
                        function(part, slots)
                    else:
                        self._with_own(function, part, slots)

        own = self.model.own
        if own is not None:
            nobody = np.zeros((0, int(own.sum())), self.model.dtype)
            self.state.keep("own", self._entries[:0], nobody)
        # To ask for the number of threads takes longer than a small call.
        per_row = self.model.n_params * models
        if len(self._blocks) == 1 or self.client_sizes.sum() * per_row < PARALLEL_WORK:
            return work(self._blocks)
        self._at_once(lambda some: work([some]), self._blocks)

    def _at_once(self, function, items):
        """List of ``function(item)`` in threads; the calls must not depend on each other."""
        n_jobs = effective_n_jobs(self.n_jobs)
        if n_jobs == 1:
            return in_order(function, items)
        # Small shares keep the threads busy to the end.
        count = min(4 * n_jobs, len(items))
        shares = [items[i::count] for i in range(count)]
        with _libraries(len(sys.modules)).limit(limits=1):
            done = Parallel(n_jobs=n_jobs, require="sharedmem")(
                delayed(in_order)(function, share) for share in shares
            )
        made = [None] * len(items)
        for i, share in enumerate(done):
            made[i::count] = share
        return made

    def _with_own(self, function, block, slots):
        """Call a function on a block whose clients have what they keep for themselves."""
        clients = self._entries[slots]
        nothing = np.zeros((len(slots), int(self.model.own.sum())), self.model.dtype)
        known = self.state.knows("own", clients)
        block = copy.copy(block)  # others may be at work on the same rows
        block.own = self.state.recall("own", clients, nothing), known
        function(block, slots)
        self.state.keep("own", clients[known], block.own[0][known])

    # --------------------------------------------------------------------- first order

    def _assign(self, labels):
        return {}

    def _present(self):
        return {}

    def _losses(self, theta):
        out = self._zeros(len(theta), dtype=theta.dtype)

        def work(block, slots):
            out[slots] = self.model.losses(block, theta)

        self._each(work, len(theta))
        return {"losses": out}

    def _best_response(self, theta, fixed):
        K, p = theta.shape
        losses = self._zeros(K, dtype=theta.dtype)
        choice = self._zeros(dtype=np.intp)
        if fixed is not None:
            choice = np.maximum(fixed, choice)
        gradients = self._zeros(p, dtype=theta.dtype)

        def work(block, slots):
            held = None if fixed is None else fixed[slots]
            losses[slots], choice[slots], gradients[slots] = self.model.best_response(
                block, theta, held
            )

        self._each(work, K)
        if fixed is not None and (fixed >= 0).any():
            # These were not sent the other models.
            held = np.flatnonzero(fixed >= 0)
            own = losses[held, fixed[held]]
            losses[held] = np.inf
            losses[held, fixed[held]] = own
        return {"losses": losses, "choice": choice, "gradients": gradients}

    def _start(self, sent, own, dtype=None):
        """Models that clients go on from: those sent, or what they have answered last."""
        if own is None:
            return sent
        models, known = self.memory.of(self.at)
        lacking = own & ~known & ~self.without_rows
        if lacking.any():
            raise Forgotten(
                f"{lacking.sum()} clients were told to go on from their last answers, and have "
                "given none."
            )
        if sent is not None and models is not None:
            models = np.where(own[:, None], models, sent)
        elif models is None:
            models = sent
        return models if dtype is None else models.astype(dtype, copy=False)

    def _objectives(self, w, own):
        w = self._start(w, own, self.model.dtype)
        values = self._zeros(dtype=w.dtype)

        def work(block, slots):
            values[slots] = self.model.value(block, w[slots])

        self._each(work)
        return {"values": values}

    def _objectives_gradients(self, w, own, dtype):
        w = self._start(w, own, dtype)
        values = self._zeros(dtype=dtype)
        gradients = self._zeros(w.shape[1], dtype=dtype)

        def work(block, slots):
            values[slots], gradients[slots] = self.model.value_gradient(
                block.astype(dtype), w[slots]
            )

        self._each(work)
        return {"values": values, "gradients": gradients}

    def _local_update(
        self, w, own, center, steps, rates, rho, optimizer, batch_size, draw, monotone, keep
    ):
        w = self._start(w, own, self.model.dtype)
        out = np.empty(w.shape, dtype=w.dtype)
        out[self.without_rows] = w[self.without_rows]
        if center is not None:
            idle = self.without_rows & (rho > 0)
            out[idle] = center[idle]
        seeds = None if draw is None else mixed(*draw, self.places)

        def work(block, slots):
            mine = w[slots]  # a copy, as slots are numbers
            job = steps[slots], rates[slots], None if center is None else center[slots], rho[slots]
            if monotone:
                out[slots] = descend(self.model, block, mine, *job)
            else:
                my_seeds = None if seeds is None else seeds[slots]
                out[slots] = train(self.model, block, mine, *job, optimizer, batch_size, my_seeds)

        self._each(work, int(steps.max(initial=0)))
        if keep:
            self.memory.keep(self.at, out)
        return {"w": out}

    # -------------------------------------------------------------------- second order

    def _alone(self, labels, members):
        """Clients whose rows a matrix of their cluster would show: nobody's are added to it."""
        few = (self.client_sizes > 0) & (self.client_sizes < self.model.n_params)
        return self.model.hessian_shows_rows & few & (members[labels] == 1)

    def _hessians(self, theta, labels, weights, damping, members):
        alone = self._alone(labels, members) & (weights != 0.0)
        if alone.any():
            raise RowsShownError(
                f"The Hessian of one client with fewer rows than the {self.model.n_params} "
                f"parameters of a model would show its rows; asked for are those of {alone.sum()} "
                "clients. Let them solve: solve(), prox(), hessian_solves()."
            )
        parts = {}

        def work(block, slots):
            mine = labels[slots]
            H = self.model.hessian(block.astype(np.float64), theta[mine], damping[mine])
            some, place = np.unique(mine, return_inverse=True)
            flat = sum_by_cluster(H.reshape(len(H), -1), place, len(some), weights[slots])
            parts[int(slots[0])] = some, flat.reshape(len(some), *H.shape[1:])

        p = theta.shape[1]
        self._each(work, p)
        return {"H": _joined(parts, np.zeros((len(theta), p, p)))}

    def _hessian_products(self, theta, u, labels, damping):
        out = self._zeros(theta.shape[1])

        def work(block, slots):
            mine = labels[slots]
            out[slots] = self.model.hessian_product(
                block.astype(np.float64), theta[mine], u[mine], damping[mine]
            )

        self._each(work, 2)
        return {"products": out}

    def _hessian_solves(self, theta, u, labels, shift, damping):
        out = u[labels] / shift[labels, None]  # of clients without rows

        def work(block, slots):
            mine = labels[slots]
            H = self.model.hessian(block.astype(np.float64), theta[mine], damping[mine])
            np.einsum("ijj->ij", H)[:] += shift[mine, None]
            out[slots] = np.linalg.solve(H, u[mine][:, :, None])[:, :, 0]

        self._each(work, theta.shape[1])
        return {"solutions": out}

    def _solve(self):
        out = self._zeros(self.model.n_params)
        converged = np.ones(self.n_clients, dtype=bool)

        def work(block, slots):
            out[slots], converged[slots] = self.model.solve(block)

        self._each(work, self.model.n_params)
        self.memory.keep(self.at, out)
        return {"w": out, "converged": converged}

    def _prox(self, v, rho, x0, own, max_iter):
        x0 = self._start(x0, own)
        out = np.array(v)  # where clients without rows stay

        def work(block, slots):
            start = None if x0 is None else x0[slots]
            out[slots], _ = self.model.prox(block, v[slots], rho[slots], start, max_iter)

        self._each(work, self.model.n_params)
        self.memory.keep(self.at, out)
        return {"x": out}

    def _conjugate(self, s, x0, own, largest, allowed):
        x0 = self._start(x0, own)
        bounds = self._zeros()
        # Slopes are sums of flows: what rounding leaves where they cancel is zero, or the bound
        # of a client without rows would never be finite.  Of free parameters only: a penalty
        # makes small slopes cheap, and their share of the bound is not given away.
        free = self.model.decay == 0.0
        tiny = np.abs(s[:, free]).max(axis=1, initial=0.0) <= ROUNDING * largest
        lost = tiny[:, None] & free
        slopes = np.where(lost, 0.0, s)
        level = np.abs(slopes).max(axis=1, initial=0.0) <= ROUNDING * largest
        bounds[self.without_rows & ~level] = np.inf

        def work(block, slots):
            start = None if x0 is None else x0[slots]
            bounds[slots], x = self.model.conjugate(block, slopes[slots], start, allowed)
            way = np.abs(x) if start is None else np.maximum(np.abs(x), np.abs(start))
            missing = np.where(lost[slots], np.abs(s[slots]), 0.0)
            bounds[slots] += 2.0 * np.einsum("np,np->n", missing, way)

        self._each(work, self.model.n_params)
        return {"bounds": bounds}

    def _rounding(self, w):
        out = self._zeros()

        def work(block, slots):
            out[slots] = self.model.rounding(block, w[slots])

        self._each(work)
        return {"rounding": out}

    def _enclosure(self, theta, box, labels, dense, members):
        K, p = theta.shape
        alone = self._alone(labels, members)
        rounding, drift = self._zeros(p), self._zeros()
        parts = {}

        def work(block, slots):
            mine = labels[slots]
            rounding[slots], drift[slots], floor = self.model.enclosure(
                block, theta[mine], box[mine], dense
            )
            hidden = dense & alone[slots]
            if hidden.any():
                own = mine[hidden]
                numbers = self.model.enclosure(block.take(hidden), theta[own], box[own], False)[2]
                floor[hidden] = least_curvature(*numbers.T)[:, None, None] * np.eye(p)
            some, place = np.unique(mine, return_inverse=True)
            share = np.zeros((len(some), *floor.shape[1:]))
            np.add.at(share, place, floor)
            parts[int(slots[0])] = some, share

        self._each(work, p)
        floor = _joined(parts, np.zeros((K, p, p) if dense else (K, 3)))
        return {"rounding": rounding, "drift": drift, "floor": floor}

    def _fingerprints(self, key, targets):
        def digest(X, y, weights):
            X = X.toarray() if sparse.issparse(X) else X
            total = weights.sum()
            share = weights / total if total > 0 else weights
            columns = [X, y, share] if targets else [X, share]
            rows = np.column_stack(columns).astype(float) + 0.0  # no negative zeros
            rows = np.ascontiguousarray(rows[np.lexsort(rows.T)])
            code = blake2b(rows.tobytes(), digest_size=16, key=key.to_bytes(8, "little"))
            return np.frombuffer(code.digest(), dtype="<u8") >> np.uint64(11)

        design, target, weights, _ = self._rows()
        first = np.concatenate([[0], np.cumsum(self.client_sizes)])
        digests = self._zeros(2)
        for i, (start, stop) in enumerate(zip(first[:-1], first[1:], strict=True)):
            rows = slice(start, stop)
            X = design[rows][:, : self.model.n_features]
            digests[i] = digest(X, target[rows], weights[rows])
        return {"digests": digests}

    def _mixture(self, theta, shares, dispersion, share_steps, each=None):
        """Responsibilities; ``each(block, slots, q, mass)`` is called with those of a block."""
        values, scatter = self._zeros(), self._zeros()
        out = np.array(shares)

        def work(block, slots):
            V = self.model.losses_of_rows(block, theta).astype(float)
            V[np.isnan(V)] = np.inf
            own, weights = shares[slots], block.exact[1]
            if share_steps > 1:
                own = _likely_shares(own, -V / dispersion, weights, share_steps - 1)
            with np.errstate(divide="ignore"):
                joint = np.log(own)[:, :, None] - V / dispersion
            top = _finite_maximum(joint)
            q = np.exp(joint - top[:, None])
            total = q.sum(axis=1)
            q *= (weights / np.where(total > 0, total, 1.0))[:, None]
            with np.errstate(divide="ignore"):
                total = np.where(weights > 0, top + np.log(total), 0.0)
            out[slots] = q.sum(axis=2)
            values[slots] = -np.einsum("cn,cn->c", total, weights)
            scatter[slots] = np.einsum("ckn,ckn->c", q, np.where(q > 0, V, 0.0))
            if each is not None:
                each(block, slots, q, out[slots])

        self._each(work, len(theta))
        return {"shares": out, "values": values, "scatter": scatter}

    def _mixture_sums(self, theta, shares, dispersion, share_steps):
        (K, p), parts = theta.shape, {}

        def each(block, slots, q, mass):
            gradients, hessians = np.zeros((K, p)), np.zeros((K, p, p))
            # Of sums over clients it is no matter whose rows are whose.
            rows = block.astype(np.float64).together()
            q *= self.client_weights[slots][:, None, None]
            for k in range(K):
                share, w = q[:, k].reshape(1, -1), theta[k : k + 1].astype(float)
                derivatives = self.model.loss_derivatives(rows.reweighted(share), w, np.ones(1))
                if not all(np.isfinite(values).all() for values in derivatives):
                    # Rows of other models may overflow under this one.
                    part = rows.batch(np.flatnonzero(share > 0)[None], share[share > 0][None])
                    derivatives = self.model.loss_derivatives(part, w, np.ones(1))
                gradients[k], hessians[k] = (values[0] for values in derivatives)
            parts[int(slots[0])] = gradients, hessians

        answers = self._mixture(theta, shares, dispersion, share_steps, each)
        sums = [np.zeros((K, p)), np.zeros((K, p, p))]
        for key in sorted(parts):
            sums = [a + b for a, b in zip(sums, parts[key], strict=True)]
        return answers | {"gradients": sums[0], "hessians": sums[1]}

    def _mixture_update(
        self, theta, shares, dispersion, share_steps, steps, rate, optimizer, batch_size, draw
    ):
        (K, p), parts = theta.shape, {}
        seeds = None if draw is None else mixed(*draw, self.places)

        def each(block, slots, q, mass):
            moves, masses = np.zeros((K, p)), self.client_weights[slots] @ mass
            many, rates = np.full(len(slots), steps), np.full(len(slots), rate, dtype=theta.dtype)
            own_seeds = None if seeds is None else seeds[slots]
            for k in range(K):
                # Steps are as long whatever the share of a model: rows weigh 1 together.
                unit = np.where(mass[:, k] > 0, mass[:, k], 1.0)[:, None]
                part = block.reweighted((q[:, k] / unit).astype(block.weights.dtype))
                w = np.tile(theta[k], (len(slots), 1))
                rho = np.zeros(len(slots), dtype=theta.dtype)
                job = many, rates, None, rho, optimizer, batch_size, own_seeds
                away = train(self.model, part, w, *job) - theta[k]
                moves[k] = (self.client_weights[slots] * mass[:, k]) @ away.astype(float)
            parts[int(slots[0])] = moves, masses

        answers = self._mixture(theta, shares, dispersion, share_steps, each)
        sums = [np.zeros((K, p)), np.zeros(K)]
        for key in sorted(parts):
            sums = [a + b for a, b in zip(sums, parts[key], strict=True)]
        return answers | {"moves": sums[0], "masses": sums[1]}

    def _local_centres(self, n_centres, draw):
        design, _, weights, _ = self._rows()
        first = np.concatenate([[0], np.cumsum(self.client_sizes)])
        centres = self._zeros(n_centres, self.model.n_features)
        counts = self._zeros(n_centres)
        seeds = mixed(*draw, self.places) % np.uint64(2**31)

        def work(i):
            rows = design[first[i] : first[i + 1]][:, : self.model.n_features]
            rows = rows.toarray() if sparse.issparse(rows) else rows
            own = rows.astype(float), n_centres, int(seeds[i]), weights[first[i] : first[i + 1]]
            with openmp.limit(limits=1):  # of this thread
                found, size = local_kmeans(*own)
            # Weights are stored as shares: ties are not to be broken by their rounding.
            size = np.round(size, min(12 - int(np.ceil(np.log10(size.sum()))), 300))
            centres[i, : len(found)], counts[i, : len(found)] = found, size

        # One thread per client: k-means on few rows does not gain by more.
        openmp = ThreadpoolController().select(user_api="openmp")
        with threadpool_limits(1):
            Parallel(n_jobs=self.n_jobs, require="sharedmem")(
                delayed(work)(i) for i in np.flatnonzero(self.client_sizes)
            )
        return {"centres": centres, "counts": counts}

    def _subspaces(self, n_vectors, n_columns, by_class):
        design, target, weights, _ = self._rows()
        first = np.concatenate([[0], np.cumsum(self.client_sizes)])
        bases = self._zeros(self.model.n_features, n_columns)
        # One decomposition per client and class: their matrices have unlike shapes.
        for i, (start, stop) in enumerate(zip(first[:-1], first[1:], strict=True)):
            X = design[start:stop][:, : self.model.n_features]
            X = X.toarray() if sparse.issparse(X) else X
            X = X * np.sqrt(weights[start:stop])[:, None]
            codes = np.zeros(len(X), dtype=np.intp)
            if by_class and self.model.estimator_type == "classifier" and len(X):
                codes = np.unique(target[start:stop], axis=0, return_inverse=True)[1].ravel()
            place = 0
            for code in np.unique(codes):
                _, size, vectors = np.linalg.svd(X[codes == code], full_matrices=False)
                real = size > RANK * size.max(initial=0.0)
                vectors = vectors[real][:n_vectors].T
                bases[i, :, place : place + vectors.shape[1]] = vectors
                place += vectors.shape[1]
        return {"bases": bases}

    def _spectrum(self):
        out = self._zeros(3)

        def work(block, slots):
            out[slots] = np.transpose(self.model.spectrum(block))

        self._each(work, self.model.n_params)
        return {"spectrum": out}

    # ----------------------------------------------------------------- partial pooling

    def _posteriors_of(self, block, slots, theta, root, weights, dispersion, df, dense=False):
        """Pieces of a block: its clients, their posteriors, responsibilities and evidence."""
        (K, p), n = theta.shape, block.shape[1] * self.model.n_outputs
        by_rows = not dense and self.model.has_few_rows(block, root)
        floats = (2 * K + 2) * n * n + (6 * K + 8) * p if by_rows else (2 * K + 4) * p * p
        size = max(int(POSTERIOR_BYTES // (8 * floats)), 1)
        with np.errstate(divide="ignore"):
            prior = np.log(weights)[:, None]
        for some, part in _pieces(block, size, by_rows):
            n = self.client_weights[slots[some]]
            start = part.cache.get("modes")
            if start is not None and start.shape != (len(theta), len(n), p):
                start = None
            found = self.model.posteriors(part, n, theta, root, dispersion, start, by_rows, df)
            part.cache["modes"] = found.modes
            joint = found.evidence + prior
            evidence = logsumexp(joint, axis=0)
            yield slots[some], found, np.exp(joint - evidence), evidence

    def _posterior_sums(self, theta, root, weights, dispersion, df, dense):
        (K, p), parts, about = theta.shape, {}, (theta, root, weights, dispersion, df)
        square = (p, p) if dense else (p,)
        shapes = (K,), (K,), (K, p), (1, *root.shape), (K, p), (K, *square), (p,), square
        shapes += (), (), (), ()
        sums_of = _sums_of if dense else _lean_sums_of

        def work(block, slots):
            total, kept = [np.zeros(shape) for shape in shapes], []
            for own, found, r, evidence in self._posteriors_of(block, slots, *about, dense):
                n = self.client_weights[own]
                sums = sums_of(found, r, root, dispersion)
                tails = 0.0 if found.scales is None else (r * found.scales.tails).sum()
                sums += tails, evidence.sum(), n.sum()
                total = [a + b for a, b in zip(total, sums, strict=True)]
                if not dense:
                    kept.append(_information(found, r))
            parts[int(slots[0])] = total
            if not dense:
                block.cache["information"] = about, kept

        self._each(work, K * p)
        sums = [np.zeros(shape) for shape in shapes]
        for key in sorted(parts):
            sums = [a + b for a, b in zip(sums, parts[key], strict=True)]
        return dict(zip(CALLS["posterior_sums"].up, sums, strict=True))

    def _posterior_products(self, theta, root, weights, dispersion, df, vectors):
        about, parts = (theta, root, weights, dispersion, df), {}

        def work(block, slots):
            asked, kept = block.cache.get("information", ((), ()))
            if len(asked) != len(about) or not all(map(np.array_equal, asked, about)):
                found = self._posteriors_of(block, slots, *about)
                kept = [_information(posteriors, r) for _, posteriors, r, _ in found]
                block.cache["information"] = about, kept
            parts[int(slots[0])] = sum(
                np.array([times(v) for times, v in zip(piece, vectors, strict=True)])
                for piece in kept
            )

        self._each(work, vectors.shape[0] * vectors.shape[1])
        products = np.zeros(vectors.shape)
        for key in sorted(parts):
            products += parts[key]
        return {"products": products}

    def _left_out_sums(self, theta, root, dispersion, errors, shares):
        about, parts, (K, p) = (theta, root, dispersion, errors), {}, theta.shape
        every = [None] * K if errors is None else errors
        roots = [_diagonal_or_whole(own) for own in root]

        def predictions(block, slots):
            asked, kept = block.cache.get("left out", ((), ()))
            if len(asked) == 4 and all(map(_same, asked, about)):
                return kept
            kept = np.empty((K, len(slots), self.model.n_outputs, block.shape[1]))
            for k, own in enumerate(roots):
                rows = block.shape[1] * self.model.n_outputs
                by_rows = errors is None and self.model.has_few_rows(block, own)
                size = rows * (3 * rows + p) if by_rows else 6 * p * p + rows * p
                size = max(int(POSTERIOR_BYTES // (8 * size)), 1)
                for some, part in _pieces(block, size, False):
                    n = self.client_weights[slots[some]]
                    kept[k, some] = self.model.left_out_predictions(
                        part, n, theta[k], own, dispersion[k], every[k], by_rows
                    )
            if not self.model.quadratic:  # of which one call tells all
                block.cache["left out"] = about, kept
            return kept

        def work(block, slots):
            n = self.client_weights[slots]
            parts[int(slots[0])] = self.model.mixed_losses(
                block, n, predictions(block, slots), shares
            )

        self._each(work, K * p)
        sums = [0.0, np.zeros(K), np.zeros((K, K))]
        for key in sorted(parts):
            sums = [a + b for a, b in zip(sums, parts[key], strict=True)]
        return dict(zip(CALLS["left_out_sums"].up, sums, strict=True))

    def _posteriors(self, theta, root, weights, dispersion, df, errors, dense):
        p = theta.shape[1]
        responsibilities = np.tile(weights, (self.n_clients, 1))
        means = self._zeros(p) + weights @ theta
        covariances = self._zeros(*((p, p) if dense else (p,)))
        covariances[:] = prior_covariance(theta, root, weights, errors, dense, df)
        noise = np.full(self.n_clients, dispersion * prior_variance(df))
        every = [None] * len(theta) if errors is None else errors

        def work(block, slots):
            for own, found, r, _ in self._posteriors_of(
                block, slots, theta, root, weights, dispersion, df, errors is not None
            ):
                responsibilities[own] = r.T
                x, scales = theta[:, None] + found.deviations, np.ones(r.shape)
                if found.scales is not None:
                    scales = found.scales.variances
                scaled = zip(found.curvatures, every, scales[:, :, None, None], strict=True)
                V = [
                    each.covariances(*how) if dense else each.variances(*how)
                    for each, *how in scaled
                ]
                means[own], covariances[own] = _of_mixture(r, x, V)
                noise[own] = dispersion * (r * scales).sum(axis=0)

        self._each(work, len(theta) * p)
        return {
            "responsibilities": responsibilities,
            "means": means,
            "covariances": covariances,
            "noise": noise,
        }

    # -------------------------------------------------------------------- other sites

    def subset(self, clients):
        """Site of some of the clients, in the given order."""
        place = np.full(self.n_clients, -1)
        place[clients] = np.arange(len(clients))
        site = copy.copy(self)
        site._blocks = []
        for block, index, slots in self._blocks:
            here = np.flatnonzero(place[slots] >= 0)
            if len(here) == len(slots):
                site._blocks.append((block, index, place[slots]))
            elif len(here):
                of_block = here if index is None else index[here]
                site._blocks.append((block, of_block, place[slots[here]]))
        site._blocks = gathered(site._blocks)
        site.places, site.at = self.places[clients], self.positions(clients)
        if self.row_ids is not None:
            starts, sizes = np.cumsum(self.client_sizes) - self.client_sizes, self.client_sizes
            before = np.cumsum(sizes[clients]) - sizes[clients]
            at = np.repeat(starts[clients] - before, sizes[clients])
            site.row_ids = self.row_ids[at + np.arange(len(at))]
        site.client_weights = self.client_weights[clients]
        site.client_sizes = self.client_sizes[clients]
        site.without_rows = self.without_rows[clients]
        return site

    def penalised(self, alpha):
        """Site of the same rows under another local penalty."""
        site = copy.copy(self)
        site.model = self.model.penalised(alpha)
        # What blocks remember of their rows holds under one penalty.
        site._blocks = [(copy.copy(block), *where) for block, *where in self._blocks]
        for block, *_ in site._blocks:
            block.cache = {}
        site._forget()
        return site

    def held_out(self, fraction, seed):
        """Two parts of each client's rows: to train on, held out."""
        rows = self._rows()
        codes, size = rows[3], self.client_sizes
        n_held = np.clip(np.round(fraction * size).astype(int), np.minimum(size, 1), None)
        n_held = np.where(size > 1, np.minimum(n_held, size - 1), n_held)
        held = self._shuffle(codes, seed) < n_held[codes]
        train = ~held | (size == 1)[codes]
        return self._parts(rows, train, held)

    def folds(self, n_folds, seed):
        """Every row held out once, but for the only row of a client."""
        rows = self._rows()
        codes, classes = rows[3], None
        if self.model.estimator_type == "classifier":
            classes = np.unique(rows[1], axis=0, return_inverse=True)[1].ravel()
        # Clients of few rows begin at different folds.
        first = (mixed(seed, self.places) % np.uint64(n_folds)).astype(np.intp)
        fold = (self._shuffle(codes, seed, classes) + first[codes]) % n_folds
        fold[(self.client_sizes == 1)[codes]] = -1
        return [self._parts(rows, fold != k, fold == k) for k in range(n_folds)]

    def _shuffle(self, codes, seed, classes=None):
        """Place of each row, sorted by client, in a random order, by class if given."""
        start = np.concatenate([[0], np.cumsum(self.client_sizes)])[codes]
        key = mixed(seed, self.places[codes], np.arange(len(codes)) - start)
        rank = np.empty(len(codes), dtype=np.intp)
        order = np.lexsort((key, codes) if classes is None else (key, classes, codes))
        rank[order] = np.arange(len(codes)) - start
        return rank

    def _parts(self, rows, train, held):
        """Sites of rows to train on and of others, whose clients are the same."""
        parts = self._part(rows, train), self._part(rows, held)
        if self.model.own is not None:
            parts[1].state = parts[0].state
        return parts

    def _part(self, rows, mask):
        """Site of some of the rows that :meth:`_rows` returned."""
        site = copy.copy(self)
        site._store(*(part[np.flatnonzero(mask)] for part in rows), self.n_clients)
        site.row_ids = None if self.row_ids is None else self.row_ids[mask]
        return site

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


def open_rows(
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
    """Pool of clients of this process; arguments as of InProcessSite and ClientPool."""
    site = InProcessSite(model, X, y, codes, n_clients, sample_weight, n_jobs, block_bytes)
    return ClientPool(site, model, random_state, scaling)


@lru_cache(maxsize=1)
def _libraries(n_modules):
    """Libraries with threads of their own, looked for again where others may have come."""
    return ThreadpoolController()


def _pieces(block, size, kept):
    """Places of at most `size` clients of a block, and their rows, which may be kept for later."""
    c = len(block.clients)
    if c <= size:
        return [(slice(0, c), block)]
    if ("pieces", size) not in block.cache:
        places = [slice(first, first + size) for first in range(0, c, size)]
        pieces = ((some, block.take(some)) for some in places)
        if not kept:
            return pieces
        block.cache["pieces", size] = list(pieces)
    return block.cache["pieces", size]


def _sums_of(found, r, root, dispersion):
    """Sums over clients of posteriors with responsibilities r (K, c)."""
    K, p = len(r), found.modes.shape[2]
    one = all(curvature is found.curvatures[0] for curvature in found.curvatures)
    precise, told = _precise(found, r)
    squares, coupling, curvature = np.zeros(root.shape), np.zeros((p, p)), np.empty((K, p, p))
    pull, scatter = np.zeros(p), 2.0 * (precise * found.losses).sum()
    for some in [slice(0, K)] if one else [slice(k, k + 1) for k in range(K)]:
        A, H = found.curvatures[some.start].inner, found.curvatures[some.start].hessian
        c, own = len(H), r[some].sum(axis=0)
        if not root.any():  # clusters without variance: nothing is posterior but the choice
            squares += own.sum() * (np.ones(p) if root.ndim == 1 else np.eye(p))
            curvature[some] = (told[some] @ H.reshape(c, -1)).reshape(-1, p, p)
            continue
        u = found.modes[some].transpose(1, 0, 2)
        weighted = precise[some].T[:, :, None] * u
        half = H * root if root.ndim == 1 else np.matmul(H, root)
        inner = half * root[:, None] if root.ndim == 1 else np.matmul(root.T, half)
        # Curvature of the marginal likelihood in the prior's mean.
        P = H - np.matmul(half, np.matmul(A, half.transpose(0, 2, 1)))
        curvature[some] = (told[some] @ P.reshape(c, -1)).reshape(-1, p, p)
        outer = np.matmul(weighted.transpose(0, 2, 1), u)
        if root.ndim == 1:
            squares += own @ np.einsum("cii->ci", A) + np.einsum("cii->i", outer)
        else:
            squares += (own @ A.reshape(c, -1)).reshape(p, p) + outer.sum(axis=0)
        # At a mode the rows pull with as much as the prior does.
        pull += (weighted * (np.matmul(u, inner) + u)).sum(axis=(0, 1))
        coupling += (own @ (inner * A).reshape(c, -1)).reshape(p, p)
        coupling += np.einsum("cpq,cpq->pq", outer, inner)
        known = p - np.einsum("cii->c", A)  # the trace of A times inner
        scatter += dispersion * (own @ known)
    return (*_sums_of_modes(found, r, squares, curvature), pull, coupling, scatter)


def _lean_sums_of(found, r, root, dispersion):
    """The same without matrices: diagonals, and of the coupling the sums of its rows."""
    squares, pull, coupling, scatter, curvature = 0.0, 0.0, 0.0, 0.0, []
    about = zip(*_precise(found, r), strict=True)
    for k, (own, (precise, told)) in enumerate(zip(r, about, strict=True)):
        u, own_curvature = found.modes[k], found.curvatures[k]
        if k == 0 or own_curvature is not found.curvatures[k - 1]:
            information = own_curvature.information_diagonal()
            known = root**2 * information
        weighted = precise[:, None] * u
        rows = root * own_curvature.hessian_times(root * u)
        squares += own @ (1.0 - known) + (weighted * u).sum(axis=0)
        pull += (weighted * (rows + u)).sum(axis=0)
        coupling += own @ known + (weighted * rows).sum(axis=0)
        scatter += 2.0 * (precise @ found.losses[k]) + dispersion * (own @ known.sum(axis=1))
        curvature.append(told @ information)
    return (*_sums_of_modes(found, r, squares, np.array(curvature)), pull, coupling, scatter)


def _sums_of_modes(found, r, squares, curvature):
    precise = _precise(found, r)[0]
    deviations = np.einsum("kc,kcp->kp", precise, found.deviations)
    slopes = np.einsum("kc,kcp->kp", precise, found.slopes)
    return r.sum(axis=1), precise.sum(axis=1), deviations, squares[None], -slopes, curvature


def _precise(found, r):
    """Weights (K, c) of squares about the modes, and of what rows tell of the priors' means."""
    if found.scales is None:
        return r, r
    return r * found.scales.precisions, r * found.scales.information


def _diagonal_or_whole(root):
    """The diagonal of a root that has nothing beside it."""
    if root.ndim == 2 and not (root - np.diag(np.diag(root))).any():
        return np.diag(root)
    return root


def _same(one, other):
    return one is other or (one is not None and np.array_equal(one, other))


def _information(found, r):
    """Functions v -> ``sum_i r_i P_i v`` of each component."""
    told = _precise(found, r)[1]
    return [
        own.information_products(weights)
        for own, weights in zip(found.curvatures, told, strict=True)
    ]


def _finite_maximum(logs):
    """Largest over components, zero where all are minus infinity: (c, K, n) -> (c, n)."""
    top = logs.max(axis=1)
    return np.where(np.isfinite(top), top, 0.0)


def _likely_shares(shares, logs, weights, steps):
    """Shares (c, K) after some steps of EM; `logs` (c, K, n) are log-densities."""
    likely = np.exp(logs - _finite_maximum(logs)[:, None])
    for _ in range(steps):
        total = np.einsum("ck,ckn->cn", shares, likely)
        ratio = np.divide(weights, total, out=np.zeros_like(total), where=total > 0)
        shares = shares * np.einsum("ckn,cn->ck", likely, ratio)
    return shares


def _of_mixture(r, x, V):
    """Means (c, p) and covariances of mixtures, (c, p, p) or their diagonals (c, p).

    Of components with weights r (K, c), means x (K, c, p) and K arrays V of covariances.
    """
    mean = np.einsum("kc,kcp->cp", r, x)
    total = 0.0
    for k, own in enumerate(V):
        away = x[k] - mean
        if own.ndim == 3:
            total = total + r[k][:, None, None] * (own + away[:, :, None] * away[:, None, :])
        else:
            total = total + r[k][:, None] * (own + away**2)
    return mean, total


def _joined(parts, total):
    """Sums of the blocks' parts, always in the same order."""
    for key in sorted(parts):
        some, share = parts[key]
        total[some] += share
    return total
