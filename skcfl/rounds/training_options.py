"""How clients train in a round, as the methods by rounds take it."""

from __future__ import annotations

from dataclasses import KW_ONLY
from numbers import Integral, Real
from typing import Literal

from sklearn.utils._param_validation import StrOptions

from .._checks import MOST_STEPS, POSITIVE, Count, Interval
from .._option_objects import Options, parameters
from .._typing import ArrayLike
from ..clients.optimizers import OPTIMIZERS

__all__ = ["Training"]

#: Local steps of "auto".
LOCAL_STEPS = 10


@parameters
class Training(Options):
    """How clients train in a round, and how the server weighs their messages.

    The parameter ``training`` of the methods by rounds, where None stands for ``Training()``.  A
    method names the options that it uses, and refuses values of the others.  Linear models that
    average gradients, or are solved exactly, take no local steps.

    Parameters
    ----------
    averaging : {"auto", "gradient", "model"}, default="auto"
        Message of a client.  With "gradient" the server averages the gradients of a cluster's
        clients and takes one step.  With "model" clients take `local_steps` steps and the server
        averages the models, which saves rounds but drifts away from the cluster's best model when
        its clients differ.  "auto" is "gradient" for linear models, "model" for networks.
    local_steps : "auto", int, "exact" or array-like of shape (n_clients,), default="auto"
        Steps (optimizer updates) of a client in a round, with model averaging.  The state of the
        optimizer starts anew in every round.  "auto" is 10; for linear models of ``FedRep`` and
        ``PerFedAvg`` it is 1, with which the rounds end at the minimum.  ``FPFC`` also takes
        "exact", which solves the clients' problems to the end (linear models), and one number for
        each client, in the order of the sorted ids.
    optimizer : {"auto", "sgd", "momentum", "adam"}, default="auto"
        Rule of the local steps.  "sgd" takes plain gradient steps, which is gradient descent where
        `batch_size` is None; "momentum" adds momentum of 0.9.  "auto" is "sgd" for linear models
        and "adam" for networks.
    step_size : "auto" or float, default="auto"
        Length of a gradient step.  "auto" takes it from the curvature, so that it suits any scale
        of the features: 1 over the mean of the clients' Lipschitz constants (weighted by their
        rows) for a step of a cluster, 1 over its own for a local step of a client, 1 over the
        largest for one of ``FedRep`` and ``PerFedAvg`` on counts and amounts; .005 under Adam.  A
        number is used as it is and can make the fit diverge.  Local steps on all rows that raise a
        loss of counts or amounts are undone and halved: no curvature bounds them.
    batch_size : int or None, default=None
        Rows a client draws for a step.  None uses all of them, which is deterministic and best for
        linear models.
    participation : float, default=1.0
        Fraction of the clients that take part in a round, drawn anew each time, in (0, 1].
    weights : {"n_samples", "uniform"}, default="n_samples"
        Weight of a client in its cluster's average.  "n_samples" weighs a client by its rows (or
        the sum of their sample weights), so that a cluster's model is the one fitted on its pooled
        rows.  "uniform" counts each client once, as the papers do, and protects small clients from
        large ones.
    polish : "auto" or bool, default="auto"
        If True, finish the cluster models by Newton's method once the clusters are stable,
        reassign the clients and repeat until nothing changes.  The models are then each cluster's
        exact minimiser and do not depend on the order of clients.  "auto" polishes where the model
        allows second-order steps (linear models).  Turn it off to study the iteration itself.
    hold_out : float, default=0.0
        Fraction of each client's rows, in [0, 1), kept away from training and used only to choose
        the cluster.  It guards against a flexible model that fits any client.
    division : {"cluster", "all"}, default="cluster"
        Divisor of a cluster's sum of messages.  "cluster" is the weight of the clients that chose
        it.  "all" is the weight of all participants, as Algorithm 1 of the IFCA paper is written;
        small clusters then move slowly.
    stable_rounds : int or None, default=None
        After so many rounds with the same choice a client is sent only the model of its cluster,
        which divides the traffic by the number of clusters, but fixes its choice.  None sends all
        models in every round.

    Examples
    --------
    >>> from skcfl import IFCARegressor, Training
    >>> ifca = IFCARegressor(3, training=Training(averaging="model", local_steps=5))
    >>> ifca.set_params(training__local_steps=20).training
    Training(averaging='model', local_steps=20)
    """

    _parameter_constraints = {
        "averaging": [StrOptions({"auto", "gradient", "model"})],
        "local_steps": [StrOptions({"auto", "exact"}), Count(1, MOST_STEPS), "array-like"],
        "optimizer": [StrOptions({"auto", *OPTIMIZERS})],
        "step_size": [POSITIVE, StrOptions({"auto"})],
        "batch_size": [Count(1, MOST_STEPS), None],
        "participation": [Interval(Real, 0, 1, closed="right")],
        "weights": [StrOptions({"n_samples", "uniform"})],
        "polish": ["boolean", StrOptions({"auto"})],
        "hold_out": [Interval(Real, 0, 1, closed="left")],
        "division": [StrOptions({"cluster", "all"})],
        "stable_rounds": [Interval(Integral, 1, None, closed="left"), None],
    }

    _: KW_ONLY
    averaging: Literal["auto", "gradient", "model"] = "auto"
    local_steps: int | Literal["auto", "exact"] | ArrayLike = "auto"
    optimizer: Literal["auto", "sgd", "momentum", "adam"] = "auto"
    step_size: float | Literal["auto"] = "auto"
    batch_size: int | None = None
    participation: float = 1.0
    weights: Literal["n_samples", "uniform"] = "n_samples"
    polish: bool | Literal["auto"] = "auto"
    hold_out: float = 0.0
    division: Literal["cluster", "all"] = "cluster"
    stable_rounds: int | None = None

    def steps(self, automatic: int = LOCAL_STEPS) -> int:
        """Steps of a client in a round, one number for all.

        Raises
        ------
        ValueError
            If it is something else.
        """
        if isinstance(self.local_steps, str) and self.local_steps == "auto":
            return automatic
        if not isinstance(self.local_steps, Integral):
            raise ValueError(
                "training: local_steps must be 'auto' or one number here, got "
                f"{self.local_steps!r}; 'exact' and a number for each client are options of FPFC."
            )
        return int(self.local_steps)
