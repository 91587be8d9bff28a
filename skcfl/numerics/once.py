"""Properties that are computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class once:  # noqa: N801 - a decorator
    """As ``functools.cached_property``, without its lock.

    Python 3.11 has one lock for a property of all objects: threads wait for each other, and those
    that take turns for ever.
    """

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        value = vars(instance)[self.name] = self.compute(instance)
        return value
