"""Options of training as the rounds take them, from an estimator's parameters."""

from dataclasses import replace
from numbers import Integral, Real

import numpy as np
from sklearn.utils._param_validation import HasMethods, StrOptions

from .._checks import Interval, about
from .aggregation import AGGREGATORS, is_operator, make_aggregator
from .alternate import Options
from .model_kinds import NETWORK_STEP, kind_of, need_minima
from .polish import ROUGH
from .training_options import LOCAL_STEPS, Training

# Rounds of a fit that starts near its end, before it is polished.
BRIEF = 5


class Operator(HasMethods):
    """Constraint: an operator, and no table or its class, whose ``aggregate`` means another."""

    def __init__(self):
        super().__init__("aggregate")

    def is_satisfied_by(self, val):
        """Whether the value is such an object."""
        return is_operator(val)

    def __str__(self):
        return "an object with a method aggregate(messages, weights)"


ROUND_CONSTRAINTS = {
    "max_iter": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "training": [Training, None],
    "aggregation": [StrOptions(set(AGGREGATORS)), Operator()],
    "tol": [Interval(Real, 0, None, closed="left")],
}
# Options of local training, of the steps that clients take and of the rounds that average them.
STEPS = "local_steps", "optimizer", "step_size", "batch_size"
SHARED_ROUNDS = *STEPS, "participation", "weights"
ROUNDS = "averaging", *SHARED_ROUNDS, "polish"


def shared_mask(layers, slices, n_params, every=False):
    """Mask of the parameters of some layers, or of all where that is allowed; None if of none.

    Raises
    ------
    ValueError
        If the local model has no such layers, or they are all and may not be.
    """
    names = list(slices)
    most, bound = (len(names), "up to all") if every else (len(names) - 1, "fewer than all")
    if layers is None or (isinstance(layers, Integral) and layers == 0):
        return None
    if isinstance(layers, str):
        layers = [layers]
    with about("shared_layers"):
        layers = layers if isinstance(layers, Integral) else list(layers)
    wanted = names[:layers] if isinstance(layers, Integral) else layers_named(layers, names)
    unknown = [name for name in wanted if name not in names]
    if unknown or (layers if isinstance(layers, Integral) else len(wanted)) > most:
        raise ValueError(
            f"shared_layers must be a number of layers, {bound}, or names of some of them; "
            f"the layers of the local model are {names}, got {layers!r}."
        )
    mask = np.zeros(n_params, dtype=bool)
    for name in wanted:
        mask[slices[name]] = True
    return mask if mask.any() else None


def layers_named(wanted, names):
    """Layers of these names, or that begin with one and a dot; names of none as they are."""
    found = {}
    for name in map(str, wanted):
        inside = [n for n in names if n == name or n.startswith(f"{name}.")]
        found.update(dict.fromkeys(inside or [name]))
    return list(found)


def automatic_step(step_size, optimizer, pool):
    """The step as a number, or None for steps from the curvature.

    Raises
    ------
    ValueError
        If nothing tells how long a step should be.
    """
    if step_size != "auto":
        return float(step_size)
    if optimizer == "adam":
        return NETWORK_STEP
    if pool.model.fits_whole:
        return None
    need_minima(
        pool,
        "training: step_size='auto' takes gradient steps from the curvature, of which {} knows no "
        "bound: give step_size a number, or set optimizer='adam' with averaging='model'.",
    )
    return None


def shortened(options):
    """Options of fits that are only judged: what is polished needs a partition to begin with."""
    if not options.polish:
        return options
    return replace(options, max_iter=min(options.max_iter, BRIEF), settled=1, exact=ROUGH)


def robust_aggregator(estimator):
    """What takes the place of the weighted mean of a cluster's clients; None is the mean."""
    if not hasattr(estimator, "aggregation"):
        return None
    return make_aggregator(estimator.aggregation)


def make_options(estimator, pool, shared=None, max_iter=None, **fixed):
    """Options of the server loop from an estimator's parameters, none of them automatic.

    Parameters
    ----------
    estimator : estimator
        With ``training``, ``max_iter`` and ``tol``.
    pool : ClientPool
        The federation.
    shared : ndarray of shape (n_params,) of bool, default=None
        Parameters that all clusters have in common.
    max_iter : int or "auto", default=None
        Most rounds, in place of the estimator's.
    **fixed : dict
        Options of training that are not the user's choice.

    Returns
    -------
    options : Options

    Raises
    ------
    ValueError
        If the local model has no second derivatives to polish with, or if the optimiser has
        nothing to do.
    """
    training = estimator._option("training")
    how = {**training.get_params(deep=False), **fixed}
    kind, averaging, optimizer = kind_of(pool), how["averaging"], how["optimizer"]
    if averaging == "auto":
        averaging = kind.averaging
    if averaging == "gradient" and optimizer not in ("auto", "sgd"):
        raise ValueError(
            f"training: optimizer={optimizer!r} is a rule of local steps and needs "
            "averaging='model'; with averaging='gradient' the server takes plain gradient steps."
        )
    if averaging == "gradient" and pool.model.local_steps_only:
        raise ValueError(
            "training: averaging must be 'model' for a module with dropout or buffers, such as "
            "running statistics, which local steps change and gradients at one point do not: got "
            f"{how['averaging']!r}."
        )
    if optimizer == "auto":
        optimizer = "sgd" if averaging == "gradient" else kind.optimizer
    polish = how["polish"]
    if polish == "auto":
        polish = kind.exact and shared is None
    elif polish and shared is not None:
        raise ValueError(
            "training: polish=True fits each cluster by itself and cannot keep shared_layers "
            "equal; set polish=False or 'auto'."
        )
    elif polish:
        words = "training: polish=True needs a local model with second derivatives, got {}; "
        need_minima(pool, words + "set polish=False or 'auto'.")
    max_iter, budget = kind.rounds(estimator.max_iter if max_iter is None else max_iter)
    return Options(
        max_iter=max_iter,
        budget=budget,
        averaging=averaging,
        local_steps=training.steps(getattr(estimator, "_local_steps", LOCAL_STEPS)),
        optimizer=optimizer,
        step_size=automatic_step(how["step_size"], optimizer, pool),
        batch_size=how["batch_size"],
        participation=float(how["participation"]),
        weights=how["weights"],
        division=how["division"],
        hold_out=how["hold_out"],
        stable_rounds=how["stable_rounds"],
        tol=estimator.tol,
        polish=bool(polish),
        shared=shared,
        aggregator=robust_aggregator(estimator),
    )
