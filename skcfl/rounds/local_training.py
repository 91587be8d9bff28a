"""One model per client: no federation at all."""

from functools import partial

import numpy as np

from .._progress import loop
from ..calls.curvatures import Solve
from ..calls.first_order import LocalUpdate, Objectives
from ..federation.result import Result
from .alternate import Options
from .model_kinds import FITTED, MINIMISED, NETWORK_STEP, TRAINED, kind_of

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
    return _OF_KIND[kind_of(pool)](pool, TRAINING if options is None else options)


def _minimise(pool, options):
    """Minimisers, by Newton's method."""
    w, converged = pool.ask(Solve)
    missing = int((~converged).sum())
    return _result(
        pool,
        w,
        [{"objective": _objective(pool, w), "change": np.nan, **pool.ledger.close_round()}],
        ""
        if not missing
        else f"Newton's method stopped short of the minimiser for {missing} of {pool.n_clients} "
        "clients; scale the features or raise alpha.",
    )


def _train(pool, options):
    """Steps of an optimiser in rounds, as long as the models move."""
    w = np.tile(pool.start(), (pool.n_clients, 1))
    rounds = []
    with loop("round", options.max_iter) as progress:
        for t in progress:
            new = pool.ask(
                LocalUpdate,
                w,
                options.local_steps,
                options.step_size,
                options.optimizer,
                options.batch_size,
                last=t > 1,
                later=True,
            )
            moved, size = np.linalg.norm(new - w, axis=1), np.linalg.norm(w, axis=1)
            change, w = float((moved / np.maximum(size, 1e-12)).max()), new
            objective = _objective(pool, w)
            so_far = partial(_result, pool, w, [{"objective": objective, "change": change}], "")
            stopped = progress.tell(so_far, objective=objective, change=change)
            done = stopped or change < options.tol or t == options.max_iter
            if done:
                pool.ledger.book(up=pool.n_clients * pool.n_params, clients=pool.n_clients)
            rounds.append({"objective": objective, "change": change, **pool.ledger.close_round()})
            if done:
                break
    short = options.tol > 0 and not options.budget and not change < options.tol
    return _result(
        pool,
        w,
        rounds,
        ""
        if not short
        else f"After max_iter={options.max_iter} rounds of {options.local_steps} steps a model "
        f"still changes by {change:.2g} (relative; tol={options.tol:g}). Increase max_iter or "
        "tol, or set tol=0 to train for max_iter rounds.",
    )


def _take_fitted(pool, options):
    """The estimators that the clients have fitted."""
    w = kind_of(pool).first_steps(pool, None, 1)
    rounds = [{"objective": _objective(pool, w), "change": np.nan, **pool.ledger.close_round()}]
    return _result(pool, w, rounds, "")


_OF_KIND = {MINIMISED: _minimise, TRAINED: _train, FITTED: _take_fitted}


def _objective(pool, w):
    """Mean of the clients' objectives, weighted by their rows."""
    values = pool.ask(Objectives, w, last=True, searching=False)
    here = slice(None) if pool.answered is None else pool.answered
    return float(np.average(values[here], weights=pool.client_weights[here]))


def _result(pool, w, rounds, shortfall):
    """Models of the clients, and the history by round."""
    n, count = pool.n_clients, len(rounds)
    history = {name: np.array([one[name] for one in rounds]) for name in rounds[0]}
    history.update(n_clusters=np.full(count, n), participants=np.full(count, n))
    return Result(
        cluster_params=w,
        labels=np.arange(n),
        params=w,
        objective=rounds[-1]["objective"],
        n_iter=count,
        history=history,
        shortfall=shortfall,
    )
