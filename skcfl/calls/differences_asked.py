"""Tests of differences between clients: their scores, and scores of drawn signs.

The score of a client at a model that clients have in common is the gradient of its loss there. If
the model is right for all of them, the gradients of single rows have mean zero, whoever owns the
row, and a change of their signs changes nothing: sums of squares of the clients' scores under
drawn signs (a wild bootstrap: Liu 1988) show the size of these sums by chance.  A row of weight
three is three rows, and draws three signs; a row with a weight of 2.5 draws one.  No
distribution of the noise is assumed, and the rows of some clients may be noisier than others.
Signs say little if clients have few rows: with squared error clients then draw normal noise of one
size instead, and also send its sum of squares about the models, so that the size does not matter.

If intercepts may differ (`within`) each client first fits its intercept, and scores are of the
slopes only, with the intercept projected out.
"""

from __future__ import annotations

import numpy as np

from ..clients.blocks import copies_of
from ..clients.draws import mixed
from ..numerics.by_cluster import sum_by_cluster
from .answer_bounds import NOT_NEGATIVE
from .call import Call

# Number of random signs that one 64-bit hash gives.
SIGNS = 64
# Rows of a client above which signs are drawn for sums of rows, not for each row.
MOST_SIGNED = 64
# Newton steps to the intercept of a client.
INTERCEPT_STEPS = 20
# Longest of these steps, on the scale of a logarithm.
LONGEST = 2.0
# Least part of a residual that is left where a row determines its own prediction.
LEAST_LEFT = 0.1
# Singular values below this part of the largest are rounding.
SINGULAR = 1e-10
# Bytes of drawn scores of all clients up to which they are kept for the next call.
KEPT_BYTES = 2**26


class ScoreSums(Call):
    """Losses of models that clients have in common, and their derivatives, by cluster.

    Parameters
    ----------
    theta : ndarray of shape (K, n_params)
        Models.
    labels : ndarray of shape (n_clients,)
        Which of them is each client's.
    counted : ndarray of shape (n_clients,) of bool, default=True
        Clients that are in the sums.
    within : bool, default=False
        If True, each client replaces the intercept by its own of least loss.
    frame : ndarray of shape (n_columns, n_columns), default=None
        What the design matrix is multiplied by before derivatives are taken, so that they are of
        parameters ``frame^-1 theta`` in better units.  `theta` stays in the units of the rows.

    Returns
    -------
    values : ndarray of shape (K,)
        Sums of the rows' losses, without the local penalty.
    gradients : ndarray of shape (K, n_params)
    curvature : ndarray of shape (K, n_params, n_params)
        With `within` derivatives of the remainder after each client's intercept has followed, zero
        in the intercepts.
    """

    down = {"theta": "K p", "labels": "n", "counted": "n", "within": "", "frame": "d d"}
    defaults = {"counted": True, "within": False, "frame": None}
    up = {"values": "K", "gradients": "K p", "curvature": "K p p"}
    whole = False
    minimised = exact = True
    proof = True
    effort = "p"

    def count(cls, sizes, arguments):
        """Floats of a model down; a value, a gradient and a curvature up."""
        n, p, d = sizes["n"], sizes["p"], sizes["d"]
        return n * (p + d * d), n * (1 + p + p * (p + 1) // 2)

    def kernel(cls, clients, block, slots, theta, labels, counted, within, frame):
        (K, p), n = theta.shape, clients.client_weights[slots] * counted
        scores = Scores(clients.model, block, theta[labels], within, frame)
        g = scores.reduced(n)[1]
        flat = np.concatenate(
            [scores.losses()[:, None], g, scores.curvature.reshape(len(g), p * p)], axis=1
        )
        total = sum_by_cluster(flat, labels, K, n)
        return total[:, 0], total[:, 1 : p + 1], total[:, p + 1 :].reshape(K, p, p)


class ScoreDraws(Call):
    """Sums over clients of their scores, and of what the scores are under drawn signs.

    Parameters
    ----------
    theta, labels, counted, within, frame
        As of :class:`ScoreSums`.
    inverse : ndarray of shape (K, n_params, n_params)
        Inverses of the curvatures.
    moves : ndarray of shape (K, n_params, n_draws + 1), default=None
        Moves of the models under the observed and the drawn scores.  None asks for the sums that
        give them, and leaves "squares" and "meat" at zero.
    normal : bool, default=False
        If True, clients draw normal noise and not signs, of squared error.
    n_draws : int, default=255
        Number of draws.
    draw : int, default=0
        Seed of the signs.

    Returns
    -------
    sums : ndarray of shape (K, n_params, n_draws + 1)
        Scores by cluster: the observed ones, then those of drawn signs.
    squares : ndarray of shape (n_params, n_draws + 1)
        Sums over all clients of the squares of their scores at the moved models.
    meat, row_meat : ndarray of shape (K, n_params, n_params)
        Sums of outer products of the observed scores of clients and of rows.
    scatter : ndarray of shape (n_draws + 1,)
        Sums of squares of the residuals, and with `normal` of the drawn noise.
    odd : float
        Number of rows with weights that are no whole numbers.
    """

    down = {
        **{"theta": "K p", "labels": "n", "inverse": "K p p", "moves": "K p m", "counted": "n"},
        **{"within": "", "frame": "d d", "normal": "", "n_draws": "", "draw": ""},
    }
    defaults = {
        **{"moves": None, "counted": True, "within": False, "frame": None, "normal": False},
        **{"n_draws": 255, "draw": 0},
    }
    computed = frozenset()
    most = {"n_draws": 10_000}
    up = {
        **{"sums": "K p m", "squares": "p m", "meat": "K p p", "row_meat": "K p p"},
        **{"scatter": "m", "odd": ""},
    }
    whole = False
    minimised = exact = True
    proof = True
    bounds = {"odd": NOT_NEGATIVE}

    def count(cls, sizes, arguments):
        """Floats of a model, a curvature and moves; sums of scores, or of their squares, up."""
        n, p, m, d = (sizes[letter] for letter in "npmd")
        triangle = p * (p + 1) // 2
        down = p + d * d + triangle + (0 if arguments["moves"] is None else p * m)
        return n * down, n * (p * m + triangle + m + 1)

    def passes(cls, sizes, arguments):
        return sizes["p"] * SIGNS

    def kernel(
        cls, clients, block, slots, theta, labels, counted, within, frame, inverse, moves, **how
    ):
        (K, p), n = theta.shape, clients.client_weights[slots] * counted
        # The same draws are asked for without moves, and then with them.
        arrays = theta, labels, n, inverse, np.zeros(0) if frame is None else frame
        key = [*(value.tobytes() for value in arrays), within, how]
        known, drawn = block.cache.pop("scores", (None, None))
        if known != key:
            kind = NormalNoise if how["normal"] else Signs
            noise = kind(clients.places[slots], how["n_draws"], how["draw"])
            scores = Scores(clients.model, block, theta[labels], within, frame)
            drawn = scores.drawn(n, inverse[labels], noise)
        own, curvature, rows, scatter, odd = drawn
        squares, meat = np.zeros(own.shape[1:]), np.zeros((K, p, p))
        if moves is None and len(clients.places) * own[0].nbytes <= KEPT_BYTES:
            block.cache["scores"] = key, drawn
        elif moves is not None:
            A = n[:, None, None] * curvature
            for k in np.unique(labels):
                some = labels == k
                own[some] -= np.matmul(A[some], moves[k])
            squares = np.einsum("cpm,cpm->pm", own, own)
            outer = own[:, :, 0, None] * own[:, None, :, 0]
            meat = sum_by_cluster(outer.reshape(-1, p * p), labels, K).reshape(K, p, p)
        sums = sum_by_cluster(own.reshape(len(own), -1), labels, K).reshape(K, p, -1)
        rows = sum_by_cluster(rows.reshape(-1, p * p), labels, K).reshape(K, p, p)
        return sums, squares, meat, rows, scatter, odd


class Signs:
    """Random signs of the rows of some clients, the same wherever the clients are."""

    #: Rows of a client up to which each row has a separate number.
    most_rows: float = MOST_SIGNED

    def __init__(self, places, n_draws, draw):
        self.places, self.n_draws, self.draw = places, n_draws, draw

    def __iter__(self):
        """Yield the draws of a hash each, slices."""
        for first in range(0, self.n_draws, SIGNS):
            yield slice(first, min(first + SIGNS, self.n_draws))

    def of(self, some, n_rows):
        """Signs (c, n_rows, m) of the draws of a slice."""
        keys = self.places[:, None], np.arange(n_rows)[None, :]
        hashes = np.ascontiguousarray(mixed(self.draw, *keys, some.start))
        bits = np.unpackbits(hashes.view(np.uint8).reshape(*hashes.shape, 8), axis=2)
        return 2.0 * bits[:, :, : some.stop - some.start] - 1.0

    def fixed(self, n_rows):
        """Signs (c, 1, n_rows) that are the same in all draws."""
        return self.of(slice(-1, 0), n_rows)[:, None, :, 0]

    def means(self, some, copies):
        """Means (c, n_rows, m) of as many signs as there are copies of rows that have several."""
        m = some.stop - some.start
        out = np.zeros((*copies.shape, m))
        for means, each, generator in zip(out, copies, self._generators(some, 1), strict=True):
            n = each[each > 1, None]
            heads = generator.binomial(n.astype(np.int64), 0.5, (len(n), m))
            means[each > 1] = heads * 2.0 / n - 1
        return out

    def _generators(self, some, *about):
        """A generator for each client, so that its numbers do not depend on the rows of others."""
        bits = np.random.Philox(key=0)
        generator, state = np.random.Generator(bits), bits.state
        for seed in mixed(self.draw, self.places, some.start, *about):
            state["state"]["key"][0] = seed
            bits.state = state
            yield generator


class NormalNoise(Signs):
    """Standard normal numbers in the place of signs."""

    most_rows = np.inf

    def of(self, some, n_rows):
        """Numbers (c, n_rows, m) of the draws of a slice."""
        out = np.empty((len(self.places), n_rows, some.stop - some.start))
        for numbers, generator in zip(out, self._generators(some), strict=True):
            # Row by row: padding comes last.
            generator.standard_normal(out=numbers)
        return out

    def scatter(self, some, copies):
        """Squares (c, m) of the noise of copies about their row's: of n copies n - 1 squares."""
        out, more = np.zeros((len(copies), some.stop - some.start)), (copies - 1.0).sum(axis=1)
        for squares, n, generator in zip(out, more, self._generators(some, 1), strict=True):
            if n > 0:
                squares[:] = generator.chisquare(n, len(squares))
        return out


class Scores:
    """Gradients of a block's rows at their clients' models (c, p)."""

    def __init__(self, model, block, w, within, frame=None):
        self.model, self.within = model, within
        block = block.astype(np.float64)
        self.kernel, self.state = model.kernel, model.state(block, w)
        self.block = block = block if frame is None else block.transformed(frame)
        #: Places of the intercepts among the parameters.
        self.free = np.zeros((model.n_outputs, model.n_columns), dtype=bool)
        if within:
            self.free[:, -1] = True
            self.state = self._with_own_intercepts()
        self.free = self.free.ravel()
        self.gradients = self.kernel.gradient(self.state, block.y)
        H = model.curvature(block, self.state)
        self.back = None
        if within:
            inverse = np.linalg.pinv(H[:, self.free][:, :, self.free], SINGULAR, hermitian=True)
            self.back = np.zeros_like(H[:, :, self.free])
            self.back[:, ~self.free] = np.matmul(H[:, ~self.free][:, :, self.free], inverse)
            H = H - np.matmul(self.back, H[:, self.free])
            H[:, self.free] = H[:, :, self.free] = 0.0
        #: Curvature of the mean loss, without the intercepts if these differ by client.
        self.curvature = H

    def _with_own_intercepts(self):
        """Predictions with the intercepts of least loss of each client."""
        weights, state = self.block.weights[:, None, :], self.state
        longest = np.inf if self.kernel.quadratic else LONGEST
        for _ in range(1 if self.kernel.quadratic else INTERCEPT_STEPS):
            g = (weights * self.kernel.gradient(state, self.block.y)).sum(axis=2)
            h = (weights * self.kernel.own_curvature(state, self.block.y, 1.0)).sum(axis=2)
            step = np.divide(g, h, out=np.zeros_like(g), where=h > 0)
            state = state - np.clip(step, -longest, longest)[:, :, None]
        return state

    def losses(self):
        """Mean loss of each client, (c,)."""
        return self.model.row_sums(self.block, self.state)

    def reduced(self, n):
        """Gradients of the mean losses, (c, p), as they are and without the intercepts."""
        g = self.block.backward(self.block.weights[:, None, :] * self.gradients)
        g = g.reshape(len(n), -1)
        return g, self._reduce(g[:, :, None])[:, :, 0]

    def _reduce(self, e):
        """Sums of rows' gradients (c, p, m) with the intercepts projected out."""
        if self.back is None:
            return e
        e = e - np.matmul(self.back, e[:, self.free])
        e[:, self.free] = 0.0
        return e

    def drawn(self, n, inverse, noise):
        """Scores and drawn ones (c, p, 1 + m), curvatures, squares of rows (c, p, p), scatter.

        The scatter (1 + m,) is that of the residuals and of the noise that is drawn in their
        place.  Residuals are enlarged by what the row itself has taken of them (HC2: MacKinnon
        and White 1985).  Last is the number of rows with odd weights.
        """
        c, length, D = self.block.shape
        C, weights = self.model.n_outputs, n[:, None] * self.block.weights
        copies = copies_of(weights) if self.block.copies is None else self.block.copies
        odd, copies = (copies == 0).sum(), np.maximum(copies, 1.0)
        leverages = self._leverages(n, inverse) / copies
        larger = 1.0 / np.sqrt(np.maximum(1.0 - leverages, LEAST_LEFT))
        pull = (weights * larger)[:, None, :] * self.gradients
        X = self.block.dense()
        V = (pull.transpose(0, 2, 1)[:, :, :, None] * X[:, :, None, :]).reshape(c, length, C * D)
        V = self._reduce(V.transpose(0, 2, 1))
        half = V / np.sqrt(copies)[:, None]
        rows = np.matmul(half, half.transpose(0, 2, 1))
        size, normal = np.sqrt(weights), isinstance(noise, NormalNoise)
        several = (copies > 1).any(axis=0) & (not normal)
        if normal:
            V = self._reduce((size[:, :, None] * X).transpose(0, 2, 1))
        elif several.any():
            heavy = np.where((copies > 1)[:, None], V, 0.0)
            V, heavy = V - heavy, heavy[:, :, several]
        if length > noise.most_rows:
            wide = -(-length // noise.most_rows) * noise.most_rows
            # Rows are in the order of their content: those of a sum may be alike.
            V = np.pad(V * noise.fixed(length), ((0, 0), (0, 0), (0, wide - length)))
            V = V.reshape(c, C * D, -1, noise.most_rows).sum(axis=2)
        out, scatter = np.empty((c, C * D, 1 + noise.n_draws)), np.zeros(1 + noise.n_draws)
        out[:, :, 0] = n[:, None] * self.reduced(n)[1]
        scatter[0] = (weights[:, None, :] * self.gradients**2).sum()
        for some in noise:
            drawn = noise.of(some, V.shape[2])
            out[:, :, 1:][:, :, some] = np.matmul(V, drawn)
            if several.any():
                means = noise.means(some, copies[:, several])
                out[:, :, 1:][:, :, some] += np.matmul(heavy, means)
            if normal:
                drawn *= (weights > 0)[:, :, None]
                scatter[1:][some] = (drawn**2).sum(axis=(0, 1))
                scatter[1:][some] += noise.scatter(some, copies).sum(axis=0)
                if self.within:
                    own = (size[:, :, None] * drawn).sum(axis=1) ** 2
                    total = np.where(n > 0, n, 1.0)[:, None]
                    scatter[1:][some] -= (own / total).sum(axis=0)
        return out, self.curvature, rows, scatter, float(odd)

    def _leverages(self, n, inverse):
        """Leverage of each row on its prediction, (c, length): outputs' mean."""
        X, block = self.block.dense(), self.block
        c, length, D = X.shape
        C, total = self.model.n_outputs, np.zeros((c, length))
        inverse = inverse.reshape(c, C, D, C, D)
        curved = self.kernel.own_curvature(self.state, block.y) * block.weights[:, None, :]
        for a in range(C):
            about, h = X, curved[:, a]
            if self.within:
                size = h.sum(axis=1)[:, None]
                share = np.divide(h, size, out=np.zeros_like(h), where=size > 0)
                about = X - np.matmul(share[:, None, :], X)
                total += share
            own = np.matmul(about, inverse[:, a, :, a])
            total += n[:, None] * h * np.einsum("cnd,cnd->cn", own, about)
        return total / C
