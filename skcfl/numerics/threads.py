"""Threads that libraries start by themselves."""

import sys
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock

from threadpoolctl import ThreadpoolController


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
