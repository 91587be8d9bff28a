"""Parameters that the alternating methods share, and what their automatic values mean."""

from numbers import Integral, Real

from sklearn.utils._param_validation import Interval, StrOptions

from .._optimizers import OPTIMIZERS
from ..solvers import Options

# Automatic values, found by trial (second-order models, others).
MAX_ITER = (300, 50)
NETWORK_STEP = 0.005

ROUND_CONSTRAINTS = {
    "max_iter": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "averaging": [StrOptions({"auto", "gradient", "model"})],
    "local_steps": [Interval(Integral, 1, None, closed="left")],
    "optimizer": [StrOptions({"auto", *OPTIMIZERS})],
    "step_size": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
    "batch_size": [Interval(Integral, 1, None, closed="left"), None],
    "participation": [Interval(Real, 0, 1, closed="right")],
    "weights": [StrOptions({"n_samples", "uniform"})],
    "tol": [Interval(Real, 0, None, closed="left")],
    "polish": ["boolean", StrOptions({"auto"})],
}

CHOICE_CONSTRAINTS = {
    "n_clusters": [Interval(Integral, 1, None, closed="left")],
    "division": [StrOptions({"cluster", "all"})],
    "init": [StrOptions({"loss++", "random"}), "array-like"],
    "n_init": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "empty_cluster": [StrOptions({"reseed", "keep"})],
    "hold_out": [Interval(Real, 0, 1, closed="left")],
    "stable_rounds": [Interval(Integral, 1, None, closed="left"), None],
}


def make_options(estimator, pool):
    """Options of the server loop from an estimator's parameters, none of them automatic.

    Raises
    ------
    ValueError
        If the local model has no second derivatives to polish with, or if the optimiser has
        nothing to do.
    """
    exact = pool.second_order
    averaging = estimator.averaging
    if averaging == "auto":
        averaging = "gradient" if exact else "model"
    optimizer = estimator.optimizer
    if averaging == "gradient" and optimizer not in ("auto", "sgd"):
        raise ValueError(
            f"optimizer={optimizer!r} is a rule of local steps and needs averaging='model'; with "
            "averaging='gradient' the server takes plain gradient steps."
        )
    if optimizer == "auto":
        optimizer = "sgd" if exact or averaging == "gradient" else "adam"
    step_size = estimator.step_size
    if step_size == "auto":
        step_size = NETWORK_STEP if optimizer == "adam" else None
    polish = estimator.polish
    if polish == "auto":
        polish = exact
    elif polish and not exact:
        raise ValueError(
            f"polish=True needs a local model with second derivatives, got {pool.model_name}; "
            "set polish=False or 'auto'."
        )
    max_iter = estimator.max_iter
    if max_iter == "auto":
        max_iter = MAX_ITER[0] if exact else MAX_ITER[1]
    names = ("division", "empty_cluster", "hold_out", "stable_rounds")
    more = {name: getattr(estimator, name) for name in names if hasattr(estimator, name)}
    return Options(
        max_iter=max_iter,
        averaging=averaging,
        local_steps=estimator.local_steps,
        optimizer=optimizer,
        step_size=step_size,
        batch_size=estimator.batch_size,
        participation=float(estimator.participation),
        weights=estimator.weights,
        tol=estimator.tol,
        polish=bool(polish),
        verbose=estimator.verbose,
        **more,
    )
