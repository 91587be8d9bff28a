"""Tests of differences between clients: their scores, and scores that are drawn.

The score of a client at a model that clients have in common is the gradient of its loss there. If
the model is right for all of them, the gradients of single rows have mean zero, whoever owns the
row: sums of squares of normal draws with the covariances that the clients' rows show tell the size
of these sums by chance (a wild bootstrap with normal multipliers: Wu 1986, Liu 1988). No
distribution of the noise is assumed, and the rows of some clients may be noisier than others. A
row of weight three is three rows; one with a weight of 2.5 is one. Rows say little of their noise
if clients have few: with squared error scores are then drawn as those of normal noise of one size,
and the sum of squares of the noise about the models with them, so that the size does not matter.

Draws say no more of a client's rows than sums of products, and of fourth powers, do: a server
knows the normal numbers, and has only their products with the root of such a sum.

If intercepts may differ (`within`) each client first fits its intercept, and scores are of the
slopes only, with the intercept projected out.
"""

from __future__ import annotations

import numpy as np

from ..clients.blocks import copies_of
from ..clients.draws import mixed
from ..numerics.by_cluster import sum_by_cluster
from ..numerics.matrices import quotient
from .answer_bounds import NOT_NEGATIVE
from .call import Call

# Newton steps to the intercept of a client.
INTERCEPT_STEPS = 20
# Longest of these steps, on the scale of a logarithm.
LONGEST = 2.0
# Least part of a residual that is left where a row determines its own prediction.
LEAST_LEFT = 0.1
# What a curvature over a sum with it may be beyond 0 and 1: unlike weights take up to 1e-3.
ROOM = 0.01
# Singular values below this part of the largest are rounding.
SINGULAR = 1e-10
# Sizes of sums of products up to which they have lost their digits.
SMALLEST = 1e-290
# Parts of a variance: what is added to it, and what other parameters leave of it at least.
RIDGE, LEAST_USED = 1e-10, 1e-8
# Digits of sizes that parameters are ordered by.
DIGITS = 9
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
    """Sums over clients of their scores, and of scores that are drawn.

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
        If True, scores are drawn as of normal noise of one size, of squared error.
    n_draws : int, default=255
        Number of draws.
    draw : int, default=0
        Seed of the draws.

    Returns
    -------
    sums : ndarray of shape (K, n_params, n_draws + 1)
        Scores by cluster: the observed ones, then drawn ones.
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
        return sizes["p"]

    def kernel(
        cls, clients, block, slots, theta, labels, counted, within, frame, inverse, moves, **how
    ):
        (K, p), n = theta.shape, clients.client_weights[slots] * counted
        # The same draws are asked for without moves, and then with them.
        arrays = theta, labels, n, inverse, np.zeros(0) if frame is None else frame
        key = [*(value.tobytes() for value in arrays), within, how]
        known, drawn = block.cache.pop("scores", (None, None))
        if known != key:
            scores = Scores(clients.model, block, theta[labels], within, frame)
            checked = clients.row_ids is not None  # under a policy
            drawn = scores.drawn(n, inverse[labels], clients.places[slots], checked, **how)
        own, curvature, rows, scatter, odd, spare = drawn
        squares, meat = np.zeros(own.shape[1:]), np.zeros((K, p, p))
        if moves is None and len(clients.places) * own[0].nbytes <= KEPT_BYTES:
            block.cache["scores"] = key, drawn
        elif moves is not None:
            A = n[:, None, None] * curvature
            for k in np.unique(labels):
                some = labels == k
                own[some] -= np.matmul(A[some], moves[k])
            squares = np.einsum("cpm,cpm->pm", own, own) - spare
            outer = own[:, :, 0, None] * own[:, None, :, 0]
            meat = sum_by_cluster(outer.reshape(-1, p * p), labels, K).reshape(K, p, p)
        sums = sum_by_cluster(own.reshape(len(own), -1), labels, K).reshape(K, p, -1)
        rows = sum_by_cluster(rows.reshape(-1, p * p), labels, K).reshape(K, p, p)
        return sums, squares, meat, rows, scatter, odd


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
        # Curvatures of coupled outputs are up to twice their diagonals: longer steps swing.
        length, most = (0.5, 3) if self.kernel.coupled else (1.0, 1)
        for _ in range(1 if self.kernel.quadratic else most * INTERCEPT_STEPS):
            g = (weights * self.kernel.gradient(state, self.block.y)).sum(axis=2)
            h = (weights * self.kernel.own_curvature(state, self.block.y, 1.0)).sum(axis=2)
            step = np.divide(g, h, out=np.zeros_like(g), where=h > 0)
            state = state - length * np.clip(step, -longest, longest)[:, :, None]
        return state

    def losses(self):
        """Mean loss of each client, (c,)."""
        return self.model.mean_loss(self.block, self.state)

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

    def drawn(self, n, inverse, places, checked, normal, n_draws, draw):
        """Scores and drawn ones (c, p, 1 + m), curvatures, squares of rows (c, p, p), scatter.

        The scatter (1 + m,) is that of the residuals and of the noise that is drawn in their
        place.  Residuals are enlarged by what the row itself has taken of them (HC2: MacKinnon
        and White 1985).  Last are the number of rows with odd weights, and what the sums of
        squares of drawn scores (p, 1 + m) have too much.  If `checked`, inverses of models with
        one output are no larger than those of the clients' own curvatures: others would weigh
        rows one by one.
        """
        c, length, D = self.block.shape
        C, weights = self.model.n_outputs, n[:, None] * self.block.weights
        copies = copies_of(weights) if self.block.copies is None else self.block.copies
        odd, copies = (copies == 0).sum(), np.maximum(copies, 1.0)
        if checked and C == 1 and not self._may_be_inverse(n, inverse):
            raise ValueError("score_draws takes inverses of sums of the clients' curvatures.")
        leverages = self._leverages(n, inverse) / copies
        larger = 1.0 / np.sqrt(np.maximum(1.0 - leverages, LEAST_LEFT))
        pull = (weights * larger / np.sqrt(copies))[:, None, :] * self.gradients
        X = self.block.dense()
        V = (pull.transpose(0, 2, 1)[:, :, :, None] * X[:, :, None, :]).reshape(c, length, C * D)
        V = self._reduce(V.transpose(0, 2, 1))
        rows = spread = np.matmul(V, V.transpose(0, 2, 1))
        if normal:
            V = self._reduce((np.sqrt(weights)[:, :, None] * X).transpose(0, 2, 1))
            spread = np.matmul(V, V.transpose(0, 2, 1))
        root, used, order = _roots(spread)
        free = (copies * (weights > 0)).sum(axis=1) - used.sum(axis=1) - (self.within & (n > 0))
        size = np.einsum("cpp->cp", rows)
        # The square of a sum of rows varies by products of two rows; a drawn one by squares, too.
        share = quotient((V**4 / copies[:, None]).sum(axis=2), size**2)
        excess = 1.0 - np.sqrt(np.maximum(1.0 - share, 0.0))
        out, scatter = np.empty((c, C * D, 1 + n_draws)), np.zeros(1 + n_draws)
        out[:, :, 0] = n[:, None] * self.reduced(n)[1]
        scatter[0] = (weights[:, None, :] * self.gradients**2).sum()
        spare = np.zeros((C * D, 1 + n_draws))
        for i, generator in enumerate(_generators(draw, places)):
            numbers = generator.standard_normal((C * D, n_draws))
            scores = out[i, :, 1:]
            scores[order[i]] = root[i] @ numbers
            if normal:
                scatter[1:] += (numbers[used[i]] ** 2).sum(axis=0)
                scatter[1:] += 2.0 * generator.standard_gamma(max(free[i], 0.0) / 2.0, n_draws)
            else:
                spare[:, 1:] += excess[i, :, None] * (scores**2 - size[i, :, None])
        return out, self.curvature, rows, scatter, float(odd), spare

    def _may_be_inverse(self, n, inverse):
        """Whether matrices may be inverses of sums with the clients' curvatures in them."""
        values, vectors = np.linalg.eigh(n[:, None, None] * self.curvature)
        root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        inner = np.matmul(root.transpose(0, 2, 1), np.matmul(inverse, root))
        if not np.isfinite(inner).all():
            return False
        shares = np.linalg.eigvalsh(0.5 * (inner + inner.transpose(0, 2, 1)))
        return np.abs(shares - 0.5).max() <= 0.5 + ROOM

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


def _roots(squares):
    """Triangular roots of matrices (c, p, p), which of their columns are not zero, and an order.

    Parameters are in the order of their sizes, so that draws do not depend on which column of the
    rows a feature is.
    """
    sizes = np.einsum("cpp->cp", squares)
    # Rounding decides no tie.
    sizes = np.round(quotient(sizes, sizes.max(axis=1, keepdims=True)), DIGITS)
    order = sizes.argsort(axis=1, kind="stable")
    squares = np.take_along_axis(squares, order[:, :, None], axis=1)
    squares = np.take_along_axis(squares, order[:, None, :], axis=2)
    sizes = np.einsum("cpp->cp", squares)
    used = sizes > SMALLEST
    scale = np.sqrt(np.where(used, sizes, np.inf))
    units = squares / scale[:, :, None] / scale[:, None, :]
    np.einsum("cpp->cp", units)[:] += np.where(used, RIDGE, 1.0)
    root = np.linalg.cholesky(units)
    used = used & (np.einsum("cpp->cp", root) ** 2 > LEAST_USED)
    return np.where(used[:, None, :], root * np.sqrt(sizes)[:, :, None], 0.0), used, order


def _generators(draw, places):
    """A generator for each client, so that its numbers do not depend on others."""
    bits = np.random.Philox(key=0)
    generator, state = np.random.Generator(bits), bits.state
    for seed in mixed(draw, places):
        state["state"]["key"][0] = seed
        bits.state = state
        yield generator
