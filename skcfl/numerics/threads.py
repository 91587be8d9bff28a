"""Threads: those asked for by `n_jobs`, and those that libraries start by themselves."""

import sys
from contextlib import contextmanager
from functools import lru_cache, partial
from threading import Lock

from joblib import effective_n_jobs
from sklearn.utils.parallel import Parallel, delayed
from threadpoolctl import ThreadpoolController

# Values of an array below which its parts are gone through one after the other.
PARALLEL_VALUES = 1e7


@lru_cache(maxsize=1)
def _libraries(n_modules):
    return ThreadpoolController()


def libraries():
    """Libraries with threads, looked up again if a module was imported since."""
    return _libraries(len(sys.modules))


class OneThread:
    """Context in which libraries of a kind start no threads, until the last one has left it.

    Parameters
    ----------
    kind : {"blas", "openmp"}
        Which libraries.
    """

    def __init__(self, kind):
        self.kind, self._inside, self._lock, self._limit = kind, 0, Lock(), None

    def __enter__(self):
        with self._lock:
            if not self._inside:
                self._limit = libraries().limit(limits=1, user_api=self.kind)
            self._inside += 1

    def __exit__(self, *_):
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limit.restore_original_limits()


#: Clients' models are small: threads of BLAS wait for each other longer than they work.  Cores are
#: for clients, see `n_jobs`.
BLAS = OneThread("blas")
_OPENMP = OneThread("openmp")


@contextmanager
def one_thread():
    """Context in which BLAS and OpenMP start no threads."""
    with BLAS, _OPENMP:
        yield


def in_order(function, items):
    """List of ``function(item)``, one after the other."""
    return [function(item) for item in items]


def at_once(function, items, n_jobs):
    """List of ``function(item)`` in threads; the calls must not depend on each other."""
    n_jobs = effective_n_jobs(n_jobs)
    if n_jobs == 1:
        return in_order(function, items)
    # Small shares keep the threads busy to the end.
    count = min(4 * n_jobs, len(items))
    shares = [items[i::count] for i in range(count)]
    with one_thread():
        done = Parallel(n_jobs=n_jobs, require="sharedmem")(
            delayed(in_order)(function, share) for share in shares
        )
    made = [None] * len(items)
    for i, share in enumerate(done):
        made[i::count] = share
    return made


def over_parts(n_values, n_jobs):
    """``each(function, items)`` for the parts of an array: threads where they save time."""
    return partial(at_once, n_jobs=n_jobs) if n_values >= PARALLEL_VALUES else in_order
