"""What clients compute and do not send: maximisers of conjugates, searches from a start."""

import numpy as np


def maximisers(pool, s):
    """Where ``<s_i, x> - f_i(x)`` is the largest, as the clients of this process find it."""
    x = np.zeros_like(s)

    def work(block, slots):
        x[slots] = pool.model.conjugate(block, s[slots])[1]

    pool._site.each(work)
    return x


def minimisers_from(pool, start):
    """Minimisers of the clients' objectives, searched for from a start."""
    w = np.zeros_like(start)

    def work(block, slots):
        w[slots] = pool.model._minimise(block, start[slots])[0]

    pool._site.each(work)
    return w


def hessians(pool, theta, labels, weights=None, damping=0.0):
    """Sums of Hessians by cluster, of single clients with few rows too, which none would send."""
    arguments = {
        "theta": theta,
        "labels": labels,
        "weights": pool.client_weights if weights is None else weights,
        "damping": np.broadcast_to(damping, (len(theta),)),
        "members": np.full(len(theta), 2),
    }
    answers = pool._site.answer("hessians", arguments)
    # A site leaves clients out whose part is not finite, and names them.
    answers["H"][labels[answers.get("non_finite", np.zeros(len(labels), dtype=bool))]] = np.nan
    return answers["H"]
