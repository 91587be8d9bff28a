"""Calls about mixtures: each row belongs to several models, in shares."""

import numpy as np

from ..clients.training import train
from ..numerics.by_cluster import least_number
from .answer_bounds import SHARES, TOTAL
from .call import Call
from .first_order import PLAIN, seeds_of


class Mixture(Call):
    """Responsibilities of models for the clients' rows, under shares of each client.

    The density of a row of client i is proportional to
    ``sum_k shares_ik exp(-loss_k / dispersion)``.

    Parameters
    ----------
    theta : ndarray of shape (K, n_params)
        Models.
    shares : ndarray of shape (n_clients, K)
        Shares of the models, which each client keeps for itself.
    dispersion : float
        Dispersion of the losses.
    share_steps : int, default=1
        How often the shares are estimated anew, under models that stay.

    Returns
    -------
    shares : ndarray of shape (n_clients, K)
        Means of the rows' responsibilities.
    values : ndarray of shape (n_clients,)
        Minus the mean log-density of the rows; infinite where the loss of a row overflows
        under all models, which are then too far away.
    scatter : ndarray of shape (n_clients,)
        Mean loss of the rows, weighted by the responsibilities.
    """

    down = {"theta": "K p", "shares": "n K", "dispersion": "", "share_steps": ""}
    defaults = {"share_steps": 1}
    up = {"shares": "n K", "values": "n", "scatter": "n"}
    searched = True
    bounds = {"shares": SHARES}
    effort = "K"

    def cast(cls, pool, name, value):
        # Shares are in double precision, whatever the models are.
        return np.asarray(value, float) if name == "shares" else super().cast(pool, name, value)

    def count(cls, sizes, arguments):
        """A client keeps its shares."""
        n, K, p = sizes["n"], sizes["K"], sizes["p"]
        return n * (K * p + 1), n * (K + 2)

    def begin(cls, clients, answers, arguments):
        answers["shares"][:] = arguments["shares"]

    def kernel(cls, clients, block, slots, theta, shares, dispersion, share_steps):
        q, *answers = _responsibilities(clients, block, theta, shares, dispersion, share_steps)
        return answers

    def least_summed(cls, site, arguments, answers, units):
        weights, models = site.client_weights * (units > 0), np.zeros(len(units), dtype=np.intp)
        return min(least_number(weights * q, units, models) for q in answers["shares"].T)

    def fill(cls, pool, answers, lost, arguments, start, whole):
        answers["shares"][lost] = arguments["shares"][lost]


class MixtureSums(Mixture):
    """The same, and sums over the clients of derivatives weighted by the responsibilities.

    Returns
    -------
    shares, values, scatter
        As for :class:`Mixture`, with the parameters of this call.
    gradients : ndarray of shape (K, n_params)
        Gradients of the rows' losses, without the local penalty.
    hessians : ndarray of shape (K, n_params, n_params)
        Likewise, with a curvature with which Newton steps do not overshoot.
    """

    up = {**Mixture.up, "gradients": "K p", "hessians": "K p p"}
    whole = False
    minimised = True

    def count(cls, sizes, arguments):
        n, K, p = sizes["n"], sizes["K"], sizes["p"]
        down, up = super().count(sizes, arguments)
        return down, up + n * K * (p + p * (p + 1) // 2)

    def kernel(cls, clients, block, slots, theta, shares, dispersion, share_steps):
        K, p = theta.shape
        q, *answers = _responsibilities(clients, block, theta, shares, dispersion, share_steps)
        gradients, hessians = np.zeros((K, p)), np.zeros((K, p, p))
        # Sums over clients do not depend on the assignment of rows.
        rows = block.astype(np.float64).together()
        q *= clients.client_weights[slots][:, None, None]
        for k in range(K):
            share, w = q[:, k].reshape(1, -1), theta[k : k + 1].astype(float)
            model, part = clients.model, rows.reweighted(share)
            derivatives = model.loss_derivatives(part, w, np.ones(1))
            if not all(np.isfinite(values).all() for values in derivatives):
                # Rows of other models may overflow under this one.
                part = rows.batch(np.flatnonzero(share > 0)[None], share[share > 0][None])
                derivatives = model.loss_derivatives(part, w, np.ones(1))
            gradients[k], hessians[k] = (values[0] for values in derivatives)
        return *answers, gradients, hessians


class MixtureUpdate(Mixture):
    """Let every client train all models for some steps, its rows weighted by responsibility.

    Parameters
    ----------
    theta, shares, dispersion, share_steps
        As of :class:`Mixture`.
    steps : int
        Steps of training.
    rate : float
        Their length.
    optimizer, batch_size
        As of ``LocalUpdate``.

    Returns
    -------
    shares, values, scatter
        As of :class:`Mixture`.
    moves : ndarray of shape (K, n_params)
        Sums of what the models moved, weighted by the responsibilities' sums.
    masses : ndarray of shape (K,)
        Sums of the responsibilities.
    """

    down = {
        **{"theta": "K p", "shares": "n K", "dispersion": "", "steps": "", "rate": ""},
        **{"optimizer": "", "batch_size": "", "share_steps": "", "draw": ""},
    }
    defaults = PLAIN | {"share_steps": 1}
    up = {**Mixture.up, "moves": "K p", "masses": "K"}
    whole = False
    searched = False
    bounds = {"shares": SHARES, "masses": TOTAL}

    def count(cls, sizes, arguments):
        n, K, p = sizes["n"], sizes["K"], sizes["p"]
        down, up = super().count(sizes, arguments)
        return down, up + n * K * (p + 1)

    def kernel(cls, clients, block, slots, theta, steps, rate, draw, **how):
        about = [how.pop(name) for name in ("shares", "dispersion", "share_steps")]
        q, *answers = _responsibilities(clients, block, theta, *about)
        mass, n = answers[0], clients.client_weights[slots]
        moves, masses = np.zeros(theta.shape), n @ mass
        many, rates = np.full(len(slots), steps), np.full(len(slots), rate, dtype=theta.dtype)
        rho = np.zeros(len(slots), dtype=theta.dtype)
        seeds = seeds_of(clients, draw, slots=slots)
        for k in range(len(theta)):
            # Steps are as long whatever the share of a model: rows weigh 1 together.
            unit = np.where(mass[:, k] > 0, mass[:, k], 1.0)[:, None]
            part = block.reweighted((q[:, k] / unit).astype(block.weights.dtype))
            w = np.tile(theta[k], (len(slots), 1))
            w = train(clients.model, part, w, many, rates, None, rho, seeds=seeds, **how)
            away = w - theta[k]
            moves[k] = (n * mass[:, k]) @ away.astype(float)
        return *answers, moves, masses


def _responsibilities(clients, block, theta, shares, dispersion, share_steps):
    """Weighted responsibilities (c, K, n) of a block's rows, and the answers of `Mixture`."""
    V = clients.model.losses_of_rows(block, theta).astype(float)
    V[np.isnan(V)] = np.inf
    weights = block.exact[1]
    if share_steps > 1:
        shares = _likely_shares(shares, -V / dispersion, weights, share_steps - 1)
    with np.errstate(divide="ignore"):
        joint = np.log(shares)[:, :, None] - V / dispersion
    top = _finite_maximum(joint)
    q = np.exp(joint - top[:, None])
    total = q.sum(axis=1)
    q *= (weights / np.where(total > 0, total, 1.0))[:, None]
    with np.errstate(divide="ignore"):
        total = np.where(weights > 0, top + np.log(total), 0.0)
    scatter = np.einsum("ckn,ckn->c", q, np.where(q > 0, V, 0.0))
    return q, q.sum(axis=2), -np.einsum("cn,cn->c", total, weights), scatter


def _finite_maximum(logs):
    """Largest over components, zero where all are minus infinity: (c, K, n) -> (c, n)."""
    top = logs.max(axis=1)
    return np.where(np.isfinite(top), top, 0.0)


def _likely_shares(shares, logs, weights, steps):
    """Shares (c, K) after some steps of EM; `logs` (c, K, n) are log-densities."""
    logs = np.where(shares[:, :, None] > 0, logs, -np.inf)
    likely = np.exp(logs - _finite_maximum(logs)[:, None])
    for _ in range(steps):
        total = np.einsum("ck,ckn->cn", shares, likely)
        ratio = np.divide(weights, total, out=np.zeros_like(total), where=total > 0)
        shares = shares * np.einsum("ckn,cn->ck", likely, ratio)
    return shares
