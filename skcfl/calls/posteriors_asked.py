"""Calls about the clients' posteriors under priors that they share."""

from functools import partial
from math import isfinite

import numpy as np

from ..exceptions import FederationError
from ..numerics.by_cluster import least_number
from ..numerics.matrices import slices
from .answer_bounds import CLIENTS, NOT_NEGATIVE, SHARES, TOTAL
from .call import Call

# Bytes of matrices of posteriors that are held at once for a part of a block.
POSTERIOR_BYTES = 2**26

PRIOR = {"theta": "K p", "root": "R", "weights": "K", "dispersion": "", "df": ""}


def _floats(sizes, arguments):
    """Floats of priors that share a covariance."""
    K, p, root = sizes["K"], sizes["p"], arguments["root"]
    scaled = isfinite(arguments["df"])
    return K * p + (p if root.ndim == 1 else p * (p + 1) // 2) + K + 1 + scaled


class SumsRefused(FederationError):
    """Raised where no site answers sums over the clients of several clusters."""

    def __init__(self, n_clusters):
        super().__init__(
            f"no site answers sums of posteriors of {n_clusters} clusters. A SitePolicy refuses "
            "those over fewer than min_clients clients: give a lower n_clusters."
        )


class SumsOfPosteriors(Call, abstract=True):
    """Base of the calls with sums over clients that belong to several priors, in shares."""

    def least_summed(cls, site, arguments, answers, units):
        if len(arguments["theta"]) == 1:
            return np.count_nonzero(units)
        here, models = (units > 0).astype(float), np.zeros(len(units), dtype=np.intp)
        about = {name: arguments[name] for name in PRIOR}
        found = site.answer(Posteriors.name, {**about, "errors": None, "dense": False})
        shares = found["responsibilities"].T
        return min(least_number(share * here, np.ones(len(units)), models) for share in shares)


class PosteriorSums(SumsOfPosteriors):
    """Sums of the clients' posteriors under normal priors that share a covariance ``L L'``.

    Parameters
    ----------
    theta : ndarray of shape (K, n_params)
        Means of the priors.
    root : ndarray of shape (n_params,) or (n_params, n_params)
        L; one axis is its diagonal.
    weights : ndarray of shape (K,)
        Probabilities of the priors.
    dispersion : float
        phi: the density of a client's rows is ``exp(-n_i f_i / phi)`` but for a constant.
    df : float, default=numpy.inf
        Degrees of freedom, more than 2, of precisions of the clients' own, by which phi and
        ``L L'`` are divided, with a gamma distribution of mean 1; of squared error.
        Infinite: all are 1.
    dense : bool, default=True
        True if "curvature" and "coupling" are matrices; else clients send the diagonal of the one
        and the sums of the rows of the other.  False needs a diagonal root.

    Returns
    -------
    sums : dict of str to ndarray
        Over the clients that answer and have rows, with responsibilities ``r_ik``, modes
        ``m_ik``, posterior covariances ``V_ik`` and expected precisions ``t_ik``: "counts"
        (K,) of r; "precisions" (K,) of ``r t``; "deviations" (K, p) of ``r t (m - theta)``;
        "slopes" (K, p), the gradient of the log evidence in theta; "curvature" (K, p, p),
        minus its second derivative (in expectation, given t); in the coordinates u of
        ``x = theta + L u``, in sums over k too, "squares" (1, p, p), or with a diagonal root
        their diagonal (1, p), of ``r E(t u u')``, and "coupling" (p, p) and "pull" (p,), the
        quadratic and the linear term in alpha of the expected loss, times t, at
        ``x = theta + L diag(alpha) u``; "scatter", twice the expected sum of the rows'
        losses, times t; "tails" of ``r E(log t - t)``, 0 where all t are 1; "evidence", the
        marginal log-likelihood; "weight", the total weight.
    """

    down = {**PRIOR, "dense": ""}
    defaults = {"df": np.inf, "dense": True}
    up = {
        **{"counts": "K", "precisions": "K", "deviations": "K p", "squares": "1 R"},
        **{"slopes": "K p", "curvature": "K H", "pull": "p", "coupling": "H"},
        **{"scatter": "", "tails": "", "evidence": "", "weight": ""},
    }
    whole = False
    minimised = exact = True
    bounds = {"counts": CLIENTS, "precisions": NOT_NEGATIVE, "weight": TOTAL}
    effort = "K p"

    def result(cls, pool, answers, arguments, start):
        if len(arguments["theta"]) > 1 and not answers["weight"] > 0:
            raise SumsRefused(len(arguments["theta"]))
        return {name: answers[name] for name in cls.up}

    def count(cls, sizes, arguments):
        """Floats of priors down and, by component, sums of posteriors up."""
        n, K, p = sizes["n"], sizes["K"], sizes["p"]
        triangle = p * (p + 1) // 2
        square = triangle if arguments["dense"] else p
        own = p if arguments["root"].ndim == 1 else triangle
        up = K * (1 + 2 * p + square) + own + p + square + 3
        if isfinite(arguments["df"]):  # or they are as many as there are clients, and nothing
            up += K + 1
        return n * _floats(sizes, arguments), n * up

    def kernel(cls, clients, block, slots, theta, root, weights, dispersion, df, dense):
        about, kept, total = (theta, root, weights, dispersion, df), [], None
        sums_of = _sums_of if dense else _lean_sums_of
        for own, found, r, evidence in _posteriors_of(clients, block, slots, *about, dense):
            n = clients.client_weights[own]
            sums = sums_of(found, r, root, dispersion)
            tails = 0.0 if found.scales is None else (r * found.scales.tails).sum()
            sums += tails, evidence.sum(), n.sum()
            total = sums if total is None else [a + b for a, b in zip(total, sums, strict=True)]
            if not dense:
                kept.append(_information(found, r))
        if not dense:
            block.cache["information"] = about, kept
        return total


class PosteriorProducts(SumsOfPosteriors):
    """Products of "curvature" of :class:`PosteriorSums` with vectors, for wide models.

    Parameters
    ----------
    theta, root, weights, dispersion, df
        As of :class:`PosteriorSums`; the root is a diagonal.
    vectors : ndarray of shape (K, m, n_params)
        m vectors for each component.

    Returns
    -------
    products : ndarray of shape (K, m, n_params)
    """

    down = {**PRIOR, "vectors": "K m p"}
    up = {"products": "K m p"}
    minimised = exact = True
    effort = "K m"

    def count(cls, sizes, arguments):
        n, K, m, p = (sizes[letter] for letter in "nKmp")
        return n * (_floats(sizes, arguments) + K * m * p), n * K * m * p

    def kernel(cls, clients, block, slots, theta, root, weights, dispersion, df, vectors):
        about = theta, root, weights, dispersion, df

        def made():
            found = _posteriors_of(clients, block, slots, *about)
            return [_information(posteriors, r) for _, posteriors, r, _ in found]

        kept = kept_for(block.cache, "information", about, made)
        return (
            sum(
                np.array([times(v) for times, v in zip(piece, vectors, strict=True)])
                for piece in kept
            ),
        )


class LeftOutSums(Call):
    """Losses of the rows, each predicted without it by a mean of several posteriors.

    Clients predict each of their rows by their posterior given their other rows, under each
    of some priors, and mix the predictions.

    Parameters
    ----------
    theta : ndarray of shape (K, n_params)
        Means of the priors.
    root : ndarray of shape (K, n_params) or (K, n_params, n_params)
        Roots of their covariances ``L L'``, or diagonals of these.
    dispersion : ndarray of shape (K,)
        As of :class:`PosteriorSums`, under each prior.
    shares : ndarray of shape (K,)
        Shares of the priors in the mixed predictions, which sum to one.
    errors : ndarray of shape (K, n_params, n_params), default=None
        Covariances of the errors of theta, on which each row has had its part; None is none.
    df : ndarray of shape (K,), default=None
        As of :class:`PosteriorSums`, under each prior; None is infinity for all.

    Returns
    -------
    value : float
        Sum of the losses, with weights, over the clients that answer.
    slopes : ndarray of shape (K,)
        Derivatives of the value along moves of the shares that sum to zero.
    curvature : ndarray of shape (K, K)
        Second derivatives.
    """

    down = {
        **{"theta": "K p", "root": "K R", "dispersion": "K", "shares": "K"},
        **{"errors": "K p p", "df": "K"},
    }
    defaults = {"errors": None, "df": None}
    up = {"value": "", "slopes": "K", "curvature": "K K"}
    whole = False
    minimised = exact = True
    effort = "K p"

    def count(cls, sizes, arguments):
        """Floats of priors and shares down, and a value and its derivatives in the shares up."""
        n, K, p = sizes["n"], sizes["K"], sizes["p"]
        triangle = p * (p + 1) // 2
        square = p if arguments["root"].ndim == 2 else triangle
        down = K * (p + square + 2) + (0 if arguments["errors"] is None else K * triangle)
        down += 0 if arguments["df"] is None else K
        return n * down, n * (1 + K + K * (K + 1) // 2)

    def kernel(cls, clients, block, slots, theta, root, dispersion, errors, df, shares):
        about = theta, root, dispersion, errors, df
        made = partial(cls._predictions, clients, block, slots, *about)
        if clients.model.quadratic:  # one call says all
            predictions = made()
        else:
            predictions = kept_for(block.cache, "left out", about, made)
        n = clients.client_weights[slots]
        return clients.model.mixed_losses(block, n, predictions, shares)

    def _predictions(cls, clients, block, slots, theta, root, dispersion, errors, df):
        """Predictions of a block's rows without them."""
        (K, p), model = theta.shape, clients.model
        kept = np.empty((K, len(slots), model.n_outputs, block.shape[1]))
        unknown = np.ones((len(slots), block.shape[1]), dtype=bool)
        for k, own in enumerate(map(_diagonal_or_whole, root)):
            rows = block.shape[1] * model.n_outputs
            by_rows = errors is None and model.has_few_rows(block, own)
            size = rows * (3 * rows + p) if by_rows else 6 * p * p + rows * p
            for some, part in pieces(block, size, False):
                n = clients.client_weights[slots[some]]
                error = None if errors is None else errors[k]
                scaled = np.inf if df is None else df[k]
                kept[k, some], missed = model.left_out_predictions(
                    part, n, theta[k], own, dispersion[k], error, by_rows, scaled
                )
                unknown[some] &= missed
        # A row that no prior predicts without it judges none.
        return np.where(unknown[:, None], kept.mean(axis=0), kept)


class Posteriors(Call):
    """Each client's posterior.

    Parameters
    ----------
    theta, root, weights, dispersion, df
        As of :class:`PosteriorSums`.
    errors : ndarray of shape (K, n_params, n_params), default=None
        Covariances of the errors of theta, which are integrated out; None is none.
    dense : bool, default=False
        True if clients send covariances, False if only variances.

    Returns
    -------
    responsibilities : ndarray of shape (n_clients, K)
    means : ndarray of shape (n_clients, n_params)
    covariances : ndarray of shape (n_clients, n_params) or (n_clients, n_params, n_params)
        Variances, or with `dense` covariances, between components too.
    noise : ndarray of shape (n_clients,)
        phi of each client, divided by its precision; an expectation.
    """

    down = {**PRIOR, "errors": "K p p", "dense": ""}
    defaults = {"df": np.inf, "errors": None, "dense": False}
    up = {"responsibilities": "n K", "means": "n p", "covariances": "n H", "noise": "n"}
    minimised = exact = True
    bounds = {"responsibilities": SHARES, "noise": NOT_NEGATIVE}
    effort = "K p"

    def count(cls, sizes, arguments):
        """Floats of priors down, and each client's posterior up."""
        n, K, p = sizes["n"], sizes["K"], sizes["p"]
        triangle = p * (p + 1) // 2
        square = triangle if arguments["dense"] else p
        errors = 0 if arguments["errors"] is None else K * triangle
        noise = isfinite(arguments["df"])  # or it is known
        return n * (_floats(sizes, arguments) + errors), n * (K + p + square + noise)

    def begin(cls, clients, answers, arguments):
        cls._put_prior(answers, slice(None), arguments)

    def fill(cls, pool, answers, lost, arguments, start, whole):
        cls._put_prior(answers, lost, arguments)

    def _put_prior(cls, answers, some, arguments):
        """Nothing is known of some clients but the prior."""
        theta, weights = arguments["theta"], arguments["weights"]
        answers["responsibilities"][some] = weights
        answers["means"][some] = weights @ theta
        names = "theta", "root", "weights", "errors", "dense", "df"
        answers["covariances"][some] = prior_covariance(*map(arguments.get, names))
        answers["noise"][some] = arguments["dispersion"] * prior_variance(arguments["df"])

    def kernel(cls, clients, block, slots, theta, root, weights, dispersion, df, errors, dense):
        every = [None] * len(theta) if errors is None else errors
        parts, about = [], (theta, root, weights, dispersion, df, errors is not None)
        for _, found, r, _ in _posteriors_of(clients, block, slots, *about):
            x, scales = theta[:, None] + found.deviations, np.ones(r.shape)
            if found.scales is not None:
                scales = found.scales.variances
            scaled = zip(found.curvatures, every, scales[:, :, None, None], strict=True)
            V = [
                each.covariances(*how) if dense else each.variances(*how) for each, *how in scaled
            ]
            noise = dispersion * (r * scales).sum(axis=0)
            parts.append((r.T, *_of_mixture(r, x, V), noise))
        return tuple(np.concatenate(values) for values in zip(*parts, strict=True))


def _posteriors_of(clients, block, slots, theta, root, weights, dispersion, df, dense=False):
    """Pieces of a block: its clients, their posteriors, responsibilities and evidence."""
    model, (K, p) = clients.model, theta.shape
    n = block.shape[1] * model.n_outputs
    by_rows = not dense and model.has_few_rows(block, root)
    floats = (2 * K + 2) * n * n + (6 * K + 8) * p if by_rows else (4 * K + 4) * p * p
    with np.errstate(divide="ignore"):
        prior = np.log(weights)[:, None]
    for some, part in pieces(block, floats, by_rows):
        n = clients.client_weights[slots[some]]
        start = last_modes(part, (K, len(n), p))
        found = model.posteriors(part, n, theta, root, dispersion, start, by_rows, df)
        part.cache["modes"] = found.modes
        joint = found.evidence + prior
        evidence = np.logaddexp.reduce(joint, axis=0)
        shares = np.exp(joint - evidence)
        # Large log-likelihoods have few digits behind the point.
        yield slots[some], found, shares / shares.sum(axis=0), evidence


def last_modes(part, shape):
    """Modes that were found last for these rows, None if they are of another shape."""
    modes = part.cache.get("modes")
    return modes if modes is not None and modes.shape == shape else None


def kept_for(cache, name, about, make):
    """What is kept under a name for the same arguments `about`; it is made anew for others."""
    known, kept = cache.get(name, ((), None))
    if not are_same(known, about):
        kept = make()
        cache[name] = about, kept
    return kept


def pieces(block, floats, kept):
    """Places of some clients of a block, of so many numbers each, and their rows.

    The rows may be kept for later.
    """
    c, size = len(block.clients), max(int(POSTERIOR_BYTES // (8 * floats)), 1)
    if c <= size:
        return [(slice(0, c), block)]
    if ("pieces", size) not in block.cache:
        pieces = ((some, block.take(some)) for some in slices(c, size))
        if not kept:
            return pieces
        block.cache["pieces", size] = list(pieces)
    return block.cache["pieces", size]


def _sums_of(found, r, root, dispersion):
    """Sums over clients of posteriors with responsibilities r (K, c)."""
    K, p = len(r), found.modes.shape[2]
    one = all(curvature is found.curvatures[0] for curvature in found.curvatures)
    precise, informative = _precise(found, r)
    squares, coupling, curvature = np.zeros(root.shape), np.zeros((p, p)), np.empty((K, p, p))
    pull, scatter = np.zeros(p), 2.0 * (precise * found.losses).sum()
    for some in [slice(0, K)] if one else [slice(k, k + 1) for k in range(K)]:
        about, own = found.curvatures[some.start], r[some].sum(axis=0)
        c = len(own)
        if not root.any():  # clusters without variance: nothing is posterior but the choice
            squares += own.sum() * (np.ones(p) if root.ndim == 1 else np.eye(p))
            curvature[some] = about.hessian_sums(informative[some])
            continue
        A, bent = about.inner, about.bent
        u = found.modes[some].transpose(1, 0, 2)
        weighted = precise[some].T[:, :, None] * u
        # Curvature of the marginal likelihood in the prior's mean.
        curvature[some] = about.information_sums(informative[some])
        outer = np.matmul(weighted.transpose(0, 2, 1), u)
        if root.ndim == 1:
            squares += own @ np.einsum("cii->ci", A) + np.einsum("cii->i", outer)
        else:
            squares += (own @ A.reshape(c, -1)).reshape(p, p) + outer.sum(axis=0)
        # At a mode the rows pull with as much as the prior does.
        pull += (weighted * (np.matmul(u, bent) + u)).sum(axis=(0, 1))
        coupling += (own @ (bent * A).reshape(c, -1)).reshape(p, p)
        coupling += np.einsum("cpq,cpq->pq", outer, bent)
        known = p - np.einsum("cii->c", A)  # the trace of A times bent
        scatter += dispersion * (own @ known)
    return (*_sums_of_modes(found, r, squares, curvature), pull, coupling, scatter)


def _lean_sums_of(found, r, root, dispersion):
    """The same without matrices: diagonals, and of the coupling the sums of its rows."""
    squares, pull, coupling, scatter, curvature = 0.0, 0.0, 0.0, 0.0, []
    about = zip(*_precise(found, r), strict=True)
    for k, (own, (precise, informative)) in enumerate(zip(r, about, strict=True)):
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
        curvature.append(informative @ information)
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


def are_same(one, other):
    """True if two tuples of arrays, numbers and None are the same."""
    if len(one) != len(other):
        return False
    return all(a is b or np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def _information(found, r):
    """Functions v -> ``sum_i r_i P_i v`` of each component."""
    informative = _precise(found, r)[1]
    return [
        own.information_products(weights)
        for own, weights in zip(found.curvatures, informative, strict=True)
    ]


def _of_mixture(r, x, V):
    """Means (c, p) and covariances of mixtures, (c, p, p) or their diagonals (c, p).

    Moments of components with weights r (K, c), means x (K, c, p) and K arrays V of covariances.
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


def prior_variance(df):
    """Expectation of one over a precision of mean 1 with so many degrees of freedom."""
    return df / (df - 2.0) if np.isfinite(df) else 1.0


def prior_covariance(theta, root, weights, errors, dense, df=np.inf):
    """Covariance of an unknown client, or its diagonal."""
    away, root = theta - weights @ theta, np.sqrt(prior_variance(df)) * root
    if dense:
        covariance = np.diag(root**2) if root.ndim == 1 else root @ root.T
        covariance = covariance + (weights[:, None] * away).T @ away
        return covariance if errors is None else covariance + np.tensordot(weights, errors, 1)
    variance = root**2 if root.ndim == 1 else (root**2).sum(axis=1)
    variance = variance + weights @ away**2
    return variance if errors is None else variance + weights @ np.einsum("kpp->kp", errors)
