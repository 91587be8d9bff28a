"""Tasks that do not wait for each other's answers: their exchanges go together, and count once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.parallel import Parallel, delayed

from .._progress import series
from .turns import Meter, in_turns

if TYPE_CHECKING:
    from .ledger import Ledger
    from .pool import ClientPool


def lanes_of(pool: ClientPool, number: int) -> list[ClientPool]:
    """Pools of the same clients for tasks that run together, one for each task.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    number : int
        Number of tasks.

    Returns
    -------
    lanes : list of ClientPool
        Each has a ledger, random numbers and last answers of its own, so that the result of a task
        does not depend on when the others run.
    """
    seeds = pool.random_state.randint(np.iinfo(np.int32).max, size=number)
    return [pool.lane(int(seed)) for seed in seeds]


def together(
    tasks: Sequence[Callable[[], Any]],
    lanes: Sequence[ClientPool],
    ledger: Ledger,
    n_jobs: int | None = None,
) -> Generator[Any, None, None]:
    """Run tasks that do not wait for each other.

    Where clients are in other processes the tasks run in lockstep, and their messages are on the
    way at the same time.  In this process they run one after the other, each when its result is
    asked for, or in `n_jobs` threads.

    Parameters
    ----------
    tasks : sequence of callable
        Each asks the clients of its own lane, or of pools that share the lane's ledger.
    lanes : sequence of ClientPool
        A pool for each task, see :func:`lanes_of`; of a single task the pool itself will do.
    ledger : Ledger
        Where everything is booked in the end: the floats of all, the exchanges of the task that
        had most.
    n_jobs : int or None, default=None
        Threads in this process.

    Yields
    ------
    result : object
        What a task returned, in the order of `tasks`.
    """
    # Parts of models that clients keep for themselves are shared by all tasks: no lockstep then.
    travels = any(lane.travels and lane.model.own is None for lane in lanes)
    own = [lane.ledger for lane in lanes if lane.ledger is not ledger]
    try:
        if len(tasks) < 2 or (n_jobs in (None, 1) and not travels):
            yield from (task() for task in tasks)
        elif travels:
            meters = [Meter() for _ in lanes]
            for lane, meter in zip(lanes, meters, strict=True):
                if lane.ledger is not ledger:
                    lane.ledger.wire = meter
                    lane.ledger.close_round()
            yield from in_turns(tasks, meters)
        else:
            parallel = Parallel(n_jobs, prefer="threads", return_as="generator")
            yield from parallel(delayed(task)() for task in tasks)
    finally:
        if own:
            ledger.take_over(own)


def asked_at_once(
    *questions: tuple[ClientPool, Callable[[ClientPool], Any]], ledger: Ledger | None = None
) -> list[Any]:
    """Answers to questions that do not wait for each other, in one exchange.

    Parameters
    ----------
    *questions : tuple of (ClientPool, callable)
        ``question(pool)`` asks the pool.  At most one of the questions is of a call whose answers
        clients remember.
    ledger : Ledger, default=None
        Where that is booked; the ledger of the first pool by default.

    Returns
    -------
    answers : list
        What the questions return.  A pool's ``answered`` says who has answered all of its own.
    """
    if not questions:
        return []
    lanes = [pool.lane(remembers=False) for pool, _ in questions]
    tasks = [partial(ask, lane) for (_, ask), lane in zip(questions, lanes, strict=True)]
    ledger = questions[0][0].ledger if ledger is None else ledger
    answers = list(together(tasks, lanes, ledger))
    for pool, _ in questions:
        pool.answered = None
    for (pool, _), lane in zip(questions, lanes, strict=True):
        if lane.answered is not None:
            before = True if pool.answered is None else pool.answered
            pool.answered = lane.answered & before
    return answers


def with_progress(
    name: str,
    tasks: Sequence[Callable[[], Any]],
    lanes: Sequence[ClientPool],
    ledger: Ledger,
    values: Callable[[Any], dict[str, Any]],
) -> list[Any]:
    """Results of tasks that do not wait for each other, fewer if a callback ends the series.

    Parameters
    ----------
    name : str
        Of the series, in the plural.
    tasks, lanes, ledger
        See :func:`together`.
    values : callable
        ``values(result)`` returns numbers by name, to be reported.

    Returns
    -------
    results : list
    """
    results: list[Any] = []
    with (
        series(name, name[:-1], len(tasks)) as progress,
        closing(together(tasks, lanes, ledger)) as some,
    ):
        for _ in tasks:
            with progress.item() as tell:
                results.append(next(some))
                tell(**values(results[-1]))
            if progress.stopped:
                break
    return results
