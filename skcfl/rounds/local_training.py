"""One model per client: no federation at all."""

from functools import partial

import numpy as np

from .._progress import loop
from ..calls.curvatures import Solve
from ..calls.first_order import LocalUpdate, Objectives
from ..federation.result import Result
from .alternate import Options
from .loop import relative_change
from .model_kinds import NETWORK_STEP, TRAINED, kind_of
from .record import History

__all__ = ["solve_local"]

# Default training of networks, that of the alternating methods.
TRAINING = Options(max_iter=50, budget=True, optimizer="adam", step_size=NETWORK_STEP)


def solve_local(pool, options=None):
    """Fit each client's own minimiser; train its own network where there is no exact solution.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    options : Options, default=None
        For models that are trained: all clients start from one network and train for
        `max_iter` times `local_steps` steps, or until no model moves by more than `tol` of its
        norm in `local_steps` of them.

    Returns
    -------
    result : Result
        One cluster per client; clients send the models, to be published, and the objectives.
    """
    pool.ledger.since_mark()
    kind = kind_of(pool)
    history = History(pool.ledger, "objective", "change", "n_clusters", "participants")
    if kind is TRAINED:
        w, shortfall = _train(pool, TRAINING if options is None else options, history)
    else:
        w, shortfall = _minimise(pool) if kind.exact else (kind.first_steps(pool, None, 1), "")
        history.add(**_columns(pool, _objective(pool, w), np.nan))
    objectives = history["objective"]
    return _result(w, objectives[-1], len(objectives), history.arrays(), shortfall)


def _minimise(pool):
    """Minimisers, by Newton's method, and what they fall short of."""
    w, converged = pool.ask(Solve)
    missing = int((~converged).sum())
    if not missing:
        return w, ""
    return w, (
        f"Newton's method stopped short of the minimiser for {missing} of {pool.n_clients} "
        "clients; scale the features or raise alpha."
    )


def _train(pool, options, history):
    """Models after steps of an optimiser in rounds, as long as they move, and the shortfall."""
    w = np.tile(pool.start(), (pool.n_clients, 1))
    how = options.local_steps, options.step_size, options.optimizer, options.batch_size
    with loop("round", options.max_iter) as progress:
        for t in progress:
            new = pool.ask(LocalUpdate, w, *how, last=t > 1, later=True)
            change, w = relative_change(w, new), new
            objective = _objective(pool, w)
            columns = _columns(pool, objective, change)
            now = {name: np.array([value]) for name, value in columns.items()}
            so_far = partial(_result, w, objective, t, now)
            stopped = progress.tell(so_far, objective=objective, change=change)
            done = stopped or change < options.tol or t == options.max_iter
            if done:
                pool.ledger.book(up=pool.n_clients * pool.n_params, clients=pool.n_clients)
            history.add(**columns)
            if done:
                break
    if options.tol == 0 or options.budget or change < options.tol:
        return w, ""
    return w, (
        f"After max_iter={options.max_iter} rounds of {options.local_steps} steps a model "
        f"still changes by {change:.2g} (relative; tol={options.tol:g}). Increase max_iter or "
        "tol, or set tol=0 to train for max_iter rounds."
    )


def _columns(pool, objective, change):
    """What is recorded of a round: every client takes part, each a cluster of its own."""
    n = pool.n_clients
    return {"objective": objective, "change": change, "n_clusters": n, "participants": n}


def _objective(pool, w):
    """Mean of the clients' objectives, weighted by their rows."""
    values = pool.ask(Objectives, w, last=True, searching=False)
    here = slice(None) if pool.answered is None else pool.answered
    return float(np.average(values[here], weights=pool.client_weights[here]))


def _result(w, objective, n_iter, history, shortfall=""):
    """Models of the clients, each a cluster of its own."""
    return Result(
        cluster_params=w,
        labels=np.arange(len(w)),
        params=w,
        objective=objective,
        n_iter=n_iter,
        history=history,
        shortfall=shortfall,
    )
