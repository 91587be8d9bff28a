"""Solvers of fusion problems as users choose them, and how their functions are declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

from sklearn.utils._param_validation import StrOptions, validate_params

from .._checks import MOST, NOT_NEGATIVE, POSITIVE, Count, Interval
from .._option_objects import Options, parameters
from ..rounds.model_kinds import NETWORK_STEP

__all__ = ["ADMM", "PDMM", "FPFCRounds", "InexactPrimalDual", "PrimalDual", "Solver", "solver"]

# Factor by which the proposals of the primal-dual method are overshot.
RELAXATION = 1.7
# Steps of Adam of a network in an iteration.
STEPS = 30
# Iterations with one partition that end a fit of networks.
SETTLED_ITERATIONS = 30

# Constraints of the parameters that all have in common.
LOOP = {
    "lam": [Interval(Real, 0, MOST, closed="right")],
    "tol": [Interval(Real, 0, None, closed="left")],
    "max_iter": [Count()],
}


class Solver(Options):
    """Base of the solvers of convex fusion and of networks, with their options."""

    #: The function, ``solve(problem, lam, *, tol, max_iter, state, ...)``.
    solve: ClassVar[Callable[..., Any]]


class ADMM(Solver):
    """Alternating direction method of multipliers, the solver that needs fewest iterations.

    Its step adapts.

    Parameters
    ----------
    contraction : bool, default=True
        If True, try the exact partition: solve the reduced problem of the clusters seen, and prove
        it by a flow.

    See Also
    --------
    skcfl.fusion.admm.admm : The function.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFL
    >>> from skcfl.fusion.solvers import ADMM
    >>> from skcfl.models import Location
    >>> pair = ConvexClusteredFL(Location(), lam=0.8, solver=ADMM(contraction=False))
    >>> pair.fit([[0.0], [1.0]], groups=["first", "second"]).params_.round(4).ravel()
    array([0.5, 0.5])
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {"contraction": ["boolean"]}

    def __init__(self, *, contraction: bool = True) -> None:
        self.contraction = contraction


@parameters
class PrimalDual(Solver):
    """Primal-dual message passing along the edges, cheap on large graphs.

    Parameters
    ----------
    ratio : float or None, default=None
        Primal over dual step, kept as it is; None starts from the clients' curvature and adapts.
    relaxation : float, default=1.7
        Factor by which proposals are overshot, in (0, 2); 1 is as in the paper.
    contraction : bool, default=True
        If True, try the exact partition, as :class:`ADMM` does.

    See Also
    --------
    InexactPrimalDual : The same of networks.
    skcfl.fusion.primal_dual.primal_dual : The function.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFL
    >>> from skcfl.fusion.solvers import PrimalDual
    >>> from skcfl.models import Location
    >>> pair = ConvexClusteredFL(Location(), lam=0.8, solver=PrimalDual(relaxation=1.0))
    >>> pair.fit([[0.0], [1.0]], groups=["first", "second"]).params_.round(4).ravel()
    array([0.5, 0.5])
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "ratio": [POSITIVE, None],
        "relaxation": [Interval(Real, 0, 2, closed="neither")],
        "contraction": ["boolean"],
    }

    _: KW_ONLY
    ratio: float | None = None
    relaxation: float = RELAXATION
    contraction: bool = True


@parameters
class PDMM(Solver):
    """Parallel direction method of multipliers, in which a part of the clients takes part.

    Parameters
    ----------
    participation : float, default=1.0
        Share of the clients sampled in a round, at least one client.
    rho : float or None, default=None
        Penalty of the split; None starts from the clients' curvature and adapts.
    eta : float or None, default=None
        Weight of the Bregman terms (half squared distances to the last iterate) of both clients
        and pairs; None is rho for pairs and what the graph asks for for clients.
    tau : float, default=0.8
        Step of the duals (18), as a multiple of rho.
    nu : float, default=0.2
        Backward step (19), as a multiple of rho.
    dual_sampling : {"ends", "independent"}, default="ends"
        Pairs that are updated in a round: those with a sampled end, or two separate draws, each
        pair with probability `participation`, for (17) and for (18).
    skip_zeros : bool, default=False
        The saving of the paper's appendix C: a client stops updating and sending a difference
        that has been zero for 10 updates. Iterates are equal, only the messages are fewer.
    contraction : bool, default=True
        If True, try the exact partition, as :class:`ADMM` does.
    check_every : int or None, default=None
        Rounds between checks of the gap; each check is one entry of the history; None is every
        10th, after 200 rounds every 50th.

    See Also
    --------
    skcfl.fusion.pdmm.pdmm : The function.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFL
    >>> from skcfl.fusion.solvers import PDMM
    >>> from skcfl.models import Location
    >>> half = PDMM(participation=0.5, contraction=False)
    >>> pair = ConvexClusteredFL(Location(), lam=0.8, solver=half, random_state=0)
    >>> pair.fit([[0.0], [1.0]], groups=["first", "second"]).params_.round(4).ravel()
    array([0.5, 0.5])
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "participation": [Interval(Real, 0, 1, closed="right")],
        "rho": [POSITIVE, None],
        "eta": [Interval(Real, 0, MOST, closed="both"), None],
        "tau": [POSITIVE],
        "nu": [Interval(Real, 0, 1, closed="left")],
        "dual_sampling": [StrOptions({"ends", "independent"})],
        "skip_zeros": ["boolean"],
        "contraction": ["boolean"],
        "check_every": [Count(), None],
    }

    participation: float = 1.0
    _: KW_ONLY
    rho: float | None = None
    eta: float | None = None
    tau: float = 0.8
    nu: float = 0.2
    dual_sampling: Literal["ends", "independent"] = "ends"
    skip_zeros: bool = False
    contraction: bool = True
    check_every: int | None = None


@parameters
class InexactPrimalDual(Solver):
    """Primal-dual message passing of networks, which take steps of Adam in place of updates.

    Parameters
    ----------
    ratio : float or None, default=None
        Primal over dual step, kept as it is; None starts from a typical one and adapts.
    relaxation : float, default=1.0
        Factor by which proposals are overshot, in (0, 2); 1 is as in the paper.
    local_steps : int, default=30
        Steps of Adam of a client in an iteration.
    step_size : float, default=0.005
        Their length in the first iterations.
    n_iter_no_change : int or None, default=30
        The iteration also ends when the partition has been the same for so many iterations, models
        fit the flows to .01, and gradients are as small or fall no more: models settle long after
        clusters. None waits for ``tol``.

    See Also
    --------
    skcfl.fusion.primal_dual_inexact.primal_dual_inexact : The function.

    Examples
    --------
    >>> from skcfl import GTVClassifier
    >>> from skcfl.fusion.solvers import InexactPrimalDual
    >>> few_steps = InexactPrimalDual(local_steps=5)
    >>> net = GTVClassifier(0.01, hidden_layer_sizes=(8,), solver=few_steps)
    >>> net.set_params(solver__local_steps=10).solver
    InexactPrimalDual(local_steps=10)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "ratio": [POSITIVE, None],
        "relaxation": [Interval(Real, 0, 2, closed="neither")],
        "local_steps": [Count()],
        "step_size": [POSITIVE],
        "n_iter_no_change": [Count(), None],
    }

    _: KW_ONLY
    ratio: float | None = None
    relaxation: float = 1.0
    local_steps: int = STEPS
    step_size: float = NETWORK_STEP
    n_iter_no_change: int | None = SETTLED_ITERATIONS


@parameters
class FPFCRounds(Options):
    """The rounds of :class:`skcfl.FPFC`: what the server does with the clients' models.

    Parameters
    ----------
    rho : "auto" or float, default="auto"
        Weight of the augmented term. "auto" is the typical curvature of the clients' objectives,
        and three times the concavity of the penalty at least (``3 / (a - 1)`` for the paper's),
        where the update of a pair has one minimiser and goes to it quickly.
    nu : "auto" or float, default="auto"
        Threshold of clusters: clients i and j are linked if ``theta_ij`` is not longer, and
        clusters are the connected components. "auto" looks for the widest gap in the lengths at
        which clients link up, on a logarithmic scale between ``xi`` and ``lam``, where the penalty
        is linear and no difference can rest.
    n_iter_no_change : int or None, default=20
        The rounds also end when the partition has been the same for so many (divided by
        ``participation``) and ``theta`` is within a thousandth of the models' differences, a
        hundredth for samples of the clients, or within two steps of Adam: clusters settle long
        before models do.
        None waits for ``tol``.

    Examples
    --------
    >>> from skcfl import FPFCRegressor
    >>> from skcfl.fusion.solvers import FPFCRounds
    >>> FPFCRegressor(0.5, solver=FPFCRounds(n_iter_no_change=None)).solver.rho
    'auto'
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "rho": [StrOptions({"auto"}), POSITIVE],
        "nu": [StrOptions({"auto"}), NOT_NEGATIVE],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left"), None],
    }

    _: KW_ONLY
    rho: float | Literal["auto"] = "auto"
    nu: float | Literal["auto"] = "auto"
    n_iter_no_change: int | None = 20


def solver(
    kind: type[Solver] | None = None, *, extra: dict[str, Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a solver ``solve(problem, lam, *, tol, max_iter, state, ...)``.

    Parameters
    ----------
    kind : type, default=None
        The class with the parameters that users may give; None is none.
    extra : dict, default=None
        Constraints of those that an estimator gives: ``certify``, ``contract_from``, ``rng``.

    Returns
    -------
    declare : callable
        Decorator: parameters are validated, the solver has ``options`` and ``extra``, and `kind`
        has the solver.
    """
    options, extra = {} if kind is None else kind._parameter_constraints, extra or {}

    def declare(solve: Any) -> Callable[..., Any]:
        constraints = {**LOOP, **extra, **options}
        solve = validate_params(constraints, prefer_skip_nested_validation=True)(solve)
        solve.options, solve.extra = frozenset(options), frozenset(extra)
        if kind is not None:
            kind.solve = staticmethod(solve)
        return solve

    return declare
