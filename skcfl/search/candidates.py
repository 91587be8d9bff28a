"""What a search of lam chooses among: families of models, local penalties, members."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Alphas", "Family"]


class Family(ABC):
    """One graph and one penalty over lam: the models that compete.

    Parameters
    ----------
    name : dict of str to str
        Published names of what differs between families.
    lams : ndarray
        Positive values of lam to begin with, ascending.
    refits : tuple of bool
        Whether the penalised models, the refitted ones, or both compete.
    fused : float, default=inf
        The value from which on everything is fused; infinite where nothing ever is.
    grows : bool, default=True
        If True, the ends and values beyond those given may be tried.
    refines : bool, default=True
        If True, values between them may be tried too.
    anew : bool, default=False
        If True, every value is solved without a state to go on from, all at the same time.
    """

    def __init__(self, name, lams, refits, fused=np.inf, grows=True, refines=True, anew=False):
        self.name, self.lams, self.refits, self.fused = name, lams, refits, fused
        self.grows, self.refines, self.anew = grows, refines, anew

    @abstractmethod
    def problem(self, pool):
        """The problem of a pool, its refits as accurate as a search needs."""

    def prepare(self, problem):
        """Ask for what all values of lam need, before they are solved at the same time.

        Returns
        -------
        prepared : bool
            False if the first value has to be solved before the others.
        """
        return False

    @abstractmethod
    def solve(self, problem, lam, state):
        """A Result, to the accuracy of a search, and a state to go on from.

        With ``lam=0`` the clients' own models, with ``lam=inf`` those where everything fuses.
        """

    def refit(self, problem, labels, theta):
        """Each cluster's model on its pooled rows."""
        return problem.refit(labels, theta)

    def first(self):
        """The values of lam to begin with, the ends among them."""
        if not self.grows:
            return list(self.lams)
        inner = [float(lam) for lam in self.lams if 0.0 < lam < self.fused]
        return [0.0, *inner, *([self.fused] if np.isfinite(self.fused) else [])]


@dataclass(frozen=True)
class Alphas:
    """Local penalties that compete, and the one that each member is tried with first.

    Attributes
    ----------
    inner : float or None
        The one that lam is sought with; None is that of the pool.
    apart, fused : float or None
        That of the clients' own models, and that of one model for all.
    others : tuple of float
        All that compete; empty if none do.
    of_one : bool, default=False
        If True, one model for all keeps `fused` unless another is clearly better.
    """

    inner: float | None = None
    apart: float | None = None
    fused: float | None = None
    others: tuple = ()
    of_one: bool = False

    @classmethod
    def given(cls, values):
        """The local penalties of a user, of which the middle one comes first."""
        middle = values[len(values) // 2]
        return cls(middle, middle, middle, tuple(values))

    @classmethod
    def automatic(cls, unit, n_clients):
        """A prior once per model, of a prior of weight `unit`."""
        middle = float(unit * np.sqrt(n_clients))
        return cls(middle, unit * n_clients, unit, (unit, middle, unit * n_clients), of_one=True)

    def at(self, family, lam):
        """The local penalty that a member is first tried with."""
        return self.apart if lam == 0.0 else self.fused if lam >= family.fused else self.inner


@dataclass
class Member:
    """One set of models and how it was judged."""

    family: int
    alpha: float | None
    lam: float
    refit: bool
    losses: np.ndarray = field(repr=False)
    counts: tuple
    stable: bool = False

    def __post_init__(self):
        self.value = np.nan
        #: Mean number of models in the folds.
        self.n_models = float(np.mean(self.counts))
