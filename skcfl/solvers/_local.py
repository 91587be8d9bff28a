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
        One cluster a client; the models stay with the clients, so nothing is sent.
    """
    w, converged = pool.solve()
    n = pool.n_clients
    value = pool.objectives(w)
    objective = float(np.average(value, weights=pool.client_weights))
    missing = int((~converged).sum())
    history = {
        "objective": np.array([objective]),
        "change": np.array([np.nan]),
        "n_clusters": np.array([n]),
        "participants": np.array([n]),
        "floats_up": np.array([0]),
        "floats_down": np.array([0]),
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
        extra={"floats_up": 0, "floats_down": 0},
    )
