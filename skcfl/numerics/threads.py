"""Threads that libraries start by themselves."""

import sys
from functools import lru_cache

from threadpoolctl import ThreadpoolController


@lru_cache(maxsize=1)
def _libraries(n_modules):
    """Libraries with threads of their own, looked for again where others may have come."""
    return ThreadpoolController()


def one_thread():
    """Context in which BLAS and OpenMP start no threads."""
    return _libraries(len(sys.modules)).limit(limits=1)
