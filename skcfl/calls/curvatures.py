"""Calls about curvature, minima and proximal points."""

import numpy as np

from ..exceptions import RowsShownError
from ..numerics.by_cluster import sum_by_cluster
from ..numerics.matrices import quotient
from ..numerics.newton import solve_scaled
from .answer_bounds import FLAGS, NOT_NEGATIVE
from .call import Call

# Part of a curvature that rows in it leave at least: less is rounding.
LEAST_LEFT = 1e-10
# Trace of a matrix from which rounding of its null space counts beside an identity, and
# eigenvalues, over its size and those of a unit diagonal, that are rounding.
LARGE, ROUNDING = 1e9, 1e-15


def rows_to_hide(clients, labels, members, slots=slice(None)):
    """Single-client clusters with few rows, which a matrix of the cluster would reveal."""
    sizes = clients.client_sizes[slots]
    few = (sizes > 0) & (sizes < clients.model.n_params)
    return clients.model.hessian_shows_rows & few & (members[labels] == 1)


def _two_vectors(sizes):
    """Floats of a model and a vector down to every client, and one vector up."""
    return 2 * sizes["n"] * sizes["p"], sizes["n"] * sizes["p"]


def shows_rows(pool, labels, n_clusters, counted=True):
    """Single-client clusters with few rows: their Hessians would show the rows.

    The Hessian of fewer rows than parameters is spanned by them, but for the penalty.  Such a
    client minimises its own objective (:class:`Solve`, :class:`Prox`), or solves with its
    Hessian (:class:`HessianSolves`).

    Parameters
    ----------
    pool : ClientPool
        The clients.
    labels : ndarray of shape (n_clients,)
        Cluster of each client.
    n_clusters : int
        Number of clusters, K.
    counted : ndarray of shape (n_clients,) of bool, default=True
        Clients with Hessians in the sum; all by default.

    Returns
    -------
    shown : ndarray of shape (K,) of bool
    """
    few = np.bincount(labels, counted * pool.client_sizes, n_clusters) < pool.n_params
    single = np.bincount(labels, counted & (pool.client_sizes > 0), n_clusters) == 1
    return pool.model.hessian_shows_rows & few & single


class Hessians(Call):
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

    Raises
    ------
    RowsShownError
        If a sum is that of one client with fewer rows than parameters, see :func:`shows_rows`.  A
        client of weight zero is in no sum.
    """

    down = {"theta": "K p", "labels": "n", "weights": "n", "damping": "K", "members": "K"}
    defaults = {"weights": None, "damping": 0.0}
    up = {"H": "K p p"}
    minimised = exact = True
    effort = "p"

    def count(cls, sizes, arguments):
        n, p = sizes["n"], sizes["p"]
        return n * p, n * (p * (p + 1) // 2)

    def begin(cls, clients, answers, arguments):
        shown = rows_to_hide(clients, arguments["labels"], arguments["members"])
        shown &= arguments["weights"] != 0.0
        if shown.any():
            raise RowsShownError(
                f"The Hessian of one client with fewer rows than the {clients.model.n_params} "
                f"parameters of a model would show its rows; {shown.sum()} such Hessians were "
                "asked for. Let these clients solve: Solve, Prox, HessianSolves."
            )

    def kernel(cls, clients, block, slots, theta, labels, weights, damping, members):
        H = clients.model.hessian(block.astype(np.float64), theta[labels], damping[labels])
        flat = sum_by_cluster(H.reshape(len(H), -1), labels, len(theta), weights)
        return (flat.reshape(len(theta), *H.shape[1:]),)


class HessianProducts(Call):
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
        As of :class:`Hessians`.

    Returns
    -------
    products : ndarray of shape (K, n_params)
        ``sum_{i in C_k} u_i`` times the Hessian of ``f_i`` at ``theta_k`` times ``u_k``.
    """

    down = {"theta": "K p", "u": "K p", "labels": "n", "weights": "n", "damping": "K"}
    defaults = {"weights": None, "damping": 0.0}
    up = {"products": "K p"}
    minimised = exact = True

    def count(cls, sizes, arguments):
        return _two_vectors(sizes)

    def passes(cls, sizes, arguments):
        return 2

    def kernel(cls, clients, block, slots, theta, u, labels, weights, damping):
        vectors = theta[labels], u[labels], damping[labels]
        products = clients.model.hessian_product(block.astype(np.float64), *vectors)
        return (sum_by_cluster(products, labels, len(theta), weights),)


class HessianDiagonals(Call):
    """Diagonals of the clusters' Hessians, to precondition systems with.

    Parameters
    ----------
    theta, labels, weights, damping
        As of :class:`Hessians`.

    Returns
    -------
    diagonals : ndarray of shape (K, n_params)
        Those of ``sum_{i in C_k} u_i`` times the Hessian of ``f_i`` at ``theta_k``.
    """

    down = {"theta": "K p", "labels": "n", "weights": "n", "damping": "K"}
    defaults = {"weights": None, "damping": 0.0}
    up = {"diagonals": "K p"}
    minimised = exact = True

    def count(cls, sizes, arguments):
        return sizes["n"] * sizes["p"], sizes["n"] * sizes["p"]

    def passes(cls, sizes, arguments):
        return 2

    def kernel(cls, clients, block, slots, theta, labels, weights, damping):
        block = block.astype(np.float64)
        diagonals = clients.model.hessian_diagonal(block, theta[labels], damping[labels])
        return (sum_by_cluster(diagonals, labels, len(theta), weights),)


class ErrorsOfModels(Call):
    """What the errors of some models change in the likelihood of each client's rows.

    The models have normal errors, over which the likelihood is integrated (Laplace's method).  A
    model knows the rows that it was fitted to too well: a client takes its own out first.

    Parameters
    ----------
    theta : ndarray of shape (K, n_params)
        Models.
    errors : ndarray of shape (K, n_params, n_params)
        Roots ``L L'`` of the covariances of their errors, for a dispersion of 1.
    shares : ndarray of shape (n_clients, K)
        Shares with which the client's rows were in each fit; zero if they were not.
    root : ndarray of shape (n_params,) or (n_params, n_params), default=None
        Root, or its diagonal, of the covariance of clients' parameters about the models, for a
        dispersion of 1; None is zero.

    Returns
    -------
    excess : ndarray of shape (n_clients, K)
        Change of the sum of the rows' losses; NaN for silent clients.
    widths : ndarray of shape (n_clients, K)
        Half logarithms of the ratios of the determinants of the errors' covariances without the
        client's rows and with all of them.
    """

    down = {"theta": "K p", "errors": "K p p", "shares": "n K", "root": "R"}
    defaults = {"root": None}
    up = {"excess": "n K", "widths": "n K"}
    whole = False
    minimised = exact = True
    proof = True
    bounds = {"widths": NOT_NEGATIVE}
    effort = "K p"

    def kernel(cls, clients, block, slots, theta, errors, shares, root):
        n, block = clients.client_weights[slots], block.astype(np.float64)
        excess, widths = np.zeros((2, len(n), len(theta)))
        for k, L in enumerate(errors):
            g, H = clients.model.loss_derivatives(block, np.tile(theta[k], (len(n), 1)))
            g, H = n[:, None] * g, n[:, None, None] * H
            finite = _are_finite(g, H)
            if root is not None:
                g[~finite], H[~finite] = 0.0, 0.0
                g, H = _about_models(g, H, root if root.ndim == 2 else np.diag(root))
            g, H = g @ L, L.T @ H @ L
            finite &= _are_finite(g, H)
            out, fitted = (
                np.flatnonzero(finite & who) for who in (shares[:, k] == 0.0, shares[:, k] != 0.0)
            )
            excess[fitted, k], widths[fitted, k] = _taken_out(
                g[fitted], H[fitted], shares[fitted, k]
            )
            if root is None and not clients.model.quadratic and len(out):
                # Far from the rows no parabola is near: others' models move to the mode.
                found = _at_modes(clients.model, block.take(out), n[out], theta[k], L)
            else:
                found = _as_it_is(g[out], H[out])
            excess[out, k], widths[out, k] = found
        return excess, widths

    def fill(cls, pool, answers, lost, arguments, start, whole):
        for answer in answers.values():
            answer[lost] = np.nan


def _are_finite(g, H):
    return np.isfinite(g).all(axis=1) & np.isfinite(H).all(axis=(1, 2))


def _taken_out(g, H, shares):
    """Changes and widths of clients that take their rows out of the fit of a model.

    Gradients (c, p) and Hessians (c, p, p) are along the roots of the errors.
    """
    values, vectors = np.linalg.eigh(H)
    u, m = np.matmul(g[:, None], vectors)[:, 0], np.maximum(values, 0.0)
    r = shares[:, None]
    without = np.maximum(1.0 - r * m, LEAST_LEFT)
    ratio = (1.0 + (1.0 - r) * m) / without
    move = r / without
    change = move + 0.5 * m * move**2 - 0.5 / (without**2 * (1.0 + (1.0 - r) * m))
    return (change * u**2).sum(axis=1), 0.5 * np.log(np.maximum(ratio, 1.0)).sum(axis=1)


def _as_it_is(g, H):
    """The same of clients that have no part in the fit, without their eigenvectors."""
    large = np.trace(H, axis1=1, axis2=2) > LARGE
    roots = np.linalg.svd(_roots(H[large])[0], compute_uv=False)
    H = H + np.eye(H.shape[1])
    widths = np.maximum(0.5 * np.linalg.slogdet(H)[1], 0.0)
    widths[large] = 0.5 * np.log1p(roots**2).sum(axis=1)
    return -0.5 * (g * solve_scaled(H, g)).sum(axis=1), widths


def _roots(H):
    """Matrices ``R`` and ``Q``: ``R R' = H``, and ``R Q' g = g`` where g is in the range of H.

    Eigenvalues that are rounding, at any scales, are zero.
    """
    diagonal = np.einsum("ijj->ij", H)
    scales = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))[:, :, None]
    values, vectors = np.linalg.eigh(H / scales / scales.transpose(0, 2, 1))
    roots = np.sqrt(np.where(values > ROUNDING * (10 + H.shape[1]), values, 0.0))[:, None]
    return scales * vectors * roots, vectors / scales * quotient(1.0, roots)


def _at_modes(model, block, n, theta, L):
    """Changes of the losses, and widths, of clients that have no part in the fit of a model."""
    found = model.posteriors(block, n, theta[None], L, 1.0)
    losses = (
        found.losses[0] + model.least_losses(block, n) + 0.5 * (found.modes[0] ** 2).sum(axis=1)
    )
    return losses - n * model.losses(block, theta[None])[:, 0], 0.5 * found.curvatures[0].log_det


def _about_models(g, H, root):
    """Gradients and Hessians after clients' deviations ``root u``, u normal, are integrated."""
    # Differences from H would lose the digits of what is left of it.
    R, inverse = _roots(H)
    w, spread = inverse.transpose(0, 2, 1) @ g[:, :, None], R.transpose(0, 2, 1) @ root
    noise = np.eye(H.shape[1]) + spread @ spread.transpose(0, 2, 1)
    found = R @ np.linalg.solve(noise, np.append(w, R.transpose(0, 2, 1), axis=2))
    return found[:, :, 0], found[:, :, 1:]


class HessianSolves(Call):
    """Solutions ``x_i`` of each client's ``(H_i + shift I) x_i = u``, H at a model.

    Parameters
    ----------
    theta, u : ndarray of shape (K, n_params)
        Models, and right-hand sides.
    labels : ndarray of shape (n_clients,)
        Which of them is each client's.
    shift : float or ndarray of shape (K,)
        Positive.
    damping : float or ndarray of shape (K,), default=0.0
        As of :class:`Hessians`.

    Returns
    -------
    solutions : ndarray of shape (n_clients, n_params)
    """

    down = {"theta": "K p", "u": "K p", "labels": "n", "shift": "K", "damping": "K"}
    defaults = {"damping": 0.0}
    up = {"solutions": "n p"}
    minimised = exact = True
    effort = "p"

    def count(cls, sizes, arguments):
        return _two_vectors(sizes)

    def begin(cls, clients, answers, arguments):
        labels = arguments["labels"]
        answers["solutions"][:] = arguments["u"][labels] / arguments["shift"][labels, None]

    def kernel(cls, clients, block, slots, theta, u, labels, shift, damping):
        H = clients.model.hessian(block.astype(np.float64), theta[labels], damping[labels])
        np.einsum("ijj->ij", H)[:] += shift[labels, None]
        return (solve_scaled(H, u[labels]),)


class Solve(Call):
    """Each client's own minimiser.

    Returns
    -------
    w : ndarray of shape (n_clients, n_params)
        Minimisers; where none exists (a free intercept of a class without rows), of the objective
        with half a row of that class. Zero for clients without rows.
    converged : ndarray of shape (n_clients,) of bool
    """

    up = {"w": "n p", "converged": "n"}
    free = frozenset({"converged"})
    keep = "w"
    minimised = True
    bounds = {"converged": FLAGS}
    effort = "p"

    def begin(cls, clients, answers, arguments):
        answers["converged"][:] = True

    def kernel(cls, clients, block, slots):
        return clients.model.solve(block, clients.client_weights[slots])

    def fill(cls, pool, answers, lost, arguments, start, whole):
        answers["converged"][lost] = True


class Prox(Call):
    """Proximal points ``argmin f_i(x) + rho_i / 2 ||x - v_i||^2``.

    Parameters
    ----------
    v : ndarray of shape (n_clients, n_params)
        Centres.
    rho : float or ndarray of shape (n_clients,)
        Positive strengths.
    x0 : ndarray of shape (n_clients, n_params), default=None
        Starts; None are the centres. What a client has answered last, to this or to another
        call, it is not sent again. The answers that count for silent clients.
    max_iter : int, default=100
        Most Newton steps where there is no closed form.  A solver that asks again from the
        last answer needs no more than one or two.
    metric : ndarray of shape (n_clients, n_params), default=None
        Factors of the strength, one for each parameter; None is 1.

    Returns
    -------
    x : ndarray of shape (n_clients, n_params)
        A model without second derivatives has none.  Its clients train under the pull instead:
        :class:`LocalUpdate` with `center` and `rho`, as long as the caller says.
    """

    down = {"v": "n p", "rho": "n", "x0": "n p", "max_iter": "", "metric": "n p", "own": "n"}
    defaults = {"x0": None, "max_iter": 100, "metric": None}
    up = {"x": "n p"}
    free = frozenset({"rho", "own", "max_iter"})
    most = {"max_iter": 1000}
    known = "v"
    start = "x0"
    always_last = True
    keep = "x"
    whole = False
    minimised = exact = True
    effort = "p"

    def begin(cls, clients, answers, arguments):
        answers["x"][:] = arguments["v"]

    def kernel(cls, clients, block, slots, v, rho, x0, max_iter, metric):
        rho = rho if metric is None else rho[:, None] * metric
        return (clients.model.prox(block, v, rho, x0, max_iter)[0],)

    def fill(cls, pool, answers, lost, arguments, start, whole):
        if start is not None:
            answers["x"][lost] = start[lost]
            # A client that never answered counts as a client without rows.
            lost = lost[~pool.heard(lost)]
        answers["x"][lost] = arguments["v"][lost]


class Spectrum(Call):
    """Curvature of the clients' objectives, for automatic steps.

    Returns
    -------
    spectrum : ndarray of shape (n_clients, 3)
        Upper and lower bounds of the curvature, and its geometric mean over the directions.
    """

    up = {"spectrum": "n 3"}
    minimised = True
    bounds = {"spectrum": NOT_NEGATIVE}
    effort = "p"

    def kernel(cls, clients, block, slots):
        return (np.transpose(clients.model.spectrum(block)),)
