"""One model a client: no federation at all."""

import numpy as np

from ._result import Result


def solve_local(pool):
    """Fit each client's own minimiser.

    Parameters
    ----------
    pool : ClientPool
        The federation.

    Returns
    -------
    result : Result
        One cluster a client.
    """
    w, converged = pool.solve()
    n = pool.n_clients
    value = pool.objectives(w)
    objective = float(np.average(value, weights=pool.client_weights))
    missing = int((~converged).sum())
    up, down = pool.ledger.since_mark()
    history = {
        "objective": np.array([objective]),
        "change": np.array([np.nan]),
        "n_clusters": np.array([n]),
        "participants": np.array([n]),
        "floats_up": np.array([up]),
        "floats_down": np.array([down]),
    }
    return Result(
        cluster_params=w,
        labels=np.arange(n),
        params=w,
        objective=objective,
        n_iter=1,
        history=history,
        converged=missing == 0,
        shortfall=(
            ""
            if not missing
            else f"Newton's method stopped short of the minimiser for {missing} of {n} clients; "
            "scale the features or raise alpha."
        ),
    )
