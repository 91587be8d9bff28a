"""What the alternating methods share: parameters, their automatic values, starts and restarts."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import closing
from dataclasses import replace
from functools import partial
from numbers import Integral, Real

import numpy as np
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

from .._checks import Count, about, real_array
from .._progress import series
from ..base import BaseFederated
from ..clients.ids import check_ids, encode
from ..federation.lanes import lanes_of, together
from ..rounds.aggregation import AGGREGATORS, is_operator, make_aggregator
from ..rounds.alternate import Options, Rounds, alternate
from ..rounds.local_training import solve_local
from ..rounds.model_kinds import NETWORK_STEP, kind_of, need_minima
from ..rounds.record_options import Record
from ..rounds.starts import DRAWN, STARTS, Candidates
from ..rounds.training_options import Training
from ..search.alpha import n_priors
from ..search.n_clusters import find_n_clusters, sample

# Rounds of a fit that starts near its end, before it is polished.
BRIEF = 5
# Starts that know what to do where some clients may be false.
ROBUST_STARTS = {"loss++", "kmeans"}


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

CHOICE_CONSTRAINTS = {
    "n_clusters": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "init": [StrOptions(set(STARTS)), "array-like"],
    "n_init": [Count(1, 10**6), StrOptions({"auto"})],
    "shared_layers": [Interval(Integral, 0, None, closed="left"), str, "array-like", None],
    "record": [Record, None],
}


SUSPICION = """\
    ndarray of shape (n_clients,)
    With an ``aggregation`` other than "mean": distance of each client's message or loss from its
    cluster, relative to the largest distance expected of an honest client. Values above 1:
    excluded; infinity: no answer. See :class:`~skcfl.inspection.SuspicionDisplay`."""


class AlternatingClustering(BaseFederated):
    """Base of the methods that look for clusters by rounds, from one or several starts.

    What differs between them is :meth:`_rule`: who gets which model.
    """

    _parameter_constraints = {**ROUND_CONSTRAINTS, **CHOICE_CONSTRAINTS}
    _option_classes = {"training": Training, "record": Record}

    _doc_attributes = {
        "search_": """\
            dict of str to ndarray
            With ``n_clusters="auto"``, one entry for each number tried (that of all clients is a
            model for each): "n_clusters", "found", "held_out_loss", "gain", "standard_error",
            "accepted", "floats_up" and "floats_down".""",
        "suspicion_": SUSPICION,
        "round_params_": """\
            ndarray of shape (n_rounds, n_clusters, n_params)
            Cluster models after each round, with ``Record(models=True)``, in the numbering of the
            rounds, not of ``labels_``.""",
        "round_labels_": """\
            ndarray of shape (n_rounds, n_clients)
            Clusters of the clients in each round, likewise; -1 for clients not heard yet.""",
    }

    #: Starts by name; what they return is models, or models and the clients' first labels.
    _starts = STARTS

    @abstractmethod
    def _rule(self, n_clients, n_clusters, rng):
        """The choice of clusters in a round, fresh for every start."""

    @property
    def needs_single_answers(self) -> bool:
        """Whether fits of this configuration ask clients for models or gradients one by one.

        Starts among local models need them, the search of `n_clusters`, empty clusters that are
        filled, and robust operators.
        """
        if robust_aggregator(self) is not None:
            return True
        drawn = not isinstance(self.init, str) or self.init in DRAWN
        refilled = self._empty_cluster != "keep"
        return self.n_clusters == "auto" or (self.n_clusters > 1 and (refilled or not drawn))

    @property
    def _empty_cluster(self):
        """What happens to clusters without clients."""
        return getattr(self, "empty_cluster", "reseed")

    def _automatic_n_init(self, pool):
        """Number of starts."""
        kind = kind_of(pool)
        return kind.n_init if self.init == "loss++" else kind.n_init_random

    def _solve_options(self, groups):
        return {"truth": true_labels(self, groups)}

    def _n_priors(self, pool, options):
        return n_priors(pool, self.n_clusters)

    def _options_of_rounds(self, pool):
        """Options of the server loop, none of them automatic."""
        shared = shared_mask(self.shared_layers, pool.model.layer_slices(), pool.n_params)
        return make_options(self, pool, shared)

    def _solve(self, pool, truth):
        options = replace(
            self._options_of_rounds(pool),
            empty_cluster=self._empty_cluster,
            dealt_first=isinstance(self.init, str) and self.init == "same",
            truth=truth,
            keep_rounds=self._option("record").models,
        )
        if self.n_clusters != "auto":
            return self._fit(pool, min(self.n_clusters, pool.n_clients), options)
        if not isinstance(self.init, str):
            raise ValueError(
                "n_clusters='auto' tries several numbers of clusters and needs a named init, got "
                "an array. Give n_clusters, or the name of an init."
            )
        brief = shortened(options)

        def fit(part, n_clusters, start, candidates, drawn):
            how = options if candidates is None else brief
            if part.n_clients < pool.n_clients:
                how = replace(how, truth=None)
            return self._fit(part, n_clusters, how, start, candidates, drawn)

        def local(part):
            return solve_local(part, options)

        return find_n_clusters(
            pool,
            fit,
            pool.random_state,
            local=None if options.shared is not None else local,
            grow=kind_of(pool).exact and self.init == "loss++",
            memory=Candidates,
            robust=options.aggregator is not None,
        )

    def _fit(self, pool, n_clusters, options, start=None, candidates=None, drawn=True):
        """Fit a given number of clusters: from some models, from drawn ones, or the better."""
        if not isinstance(self.init, str):
            theta = _check_init(self.init, n_clusters, pool.n_params, self._starts)
            return self._best(pool, [pool.units.from_user(theta)], options)
        if n_clusters == 1:
            # One cluster is FedAvg, from the same start: there is nothing to choose.
            labels = np.zeros(pool.n_clients, dtype=np.intp)
            result = alternate(pool, pool.start()[None], options, pool.random_state, labels)
            result.extra.pop("loss")
            return result
        given = [] if start is None else [start]
        if not drawn:
            return self._best(pool, given, options)
        n_init = self._automatic_n_init(pool) if self.n_init == "auto" else self.n_init
        part = sample(pool, pool.random_state) if self.init == "loss++" else pool
        candidates = Candidates() if candidates is None else candidates
        robust = options.aggregator is not None and self.init in ROBUST_STARTS
        more = {"robust": True} if robust else {}

        def draw(lane, restart):
            drawn = self._starts[self.init]
            return drawn(lane, n_clusters, lane.random_state, restart, candidates, **more)

        starts = [*given, *(partial(draw, restart=restart) for restart in range(n_init))]
        if part is pool:
            return self._best(pool, starts, options)
        if len(starts) == 1:
            return self._best(pool, [draw(part, 0)], options)
        first = self._best(part, starts, replace(options, truth=None, keep_rounds=False))
        return self._best(pool, [first.cluster_params], options)

    def _best(self, pool, starts, options):
        """The fit of least loss from some starts: models, or functions that draw them.

        Starts do not wait for each other.  Of those that end in the same clusters the first is
        polished.
        """

        def run(start, lane):
            lane.ledger.since_mark()
            theta = start(lane) if callable(start) else start
            theta, first = theta if isinstance(theta, tuple) else (theta, None)
            rng = lane.random_state
            rule = self._rule(lane.n_clients, len(theta), rng)
            return Rounds(lane, theta, options, rng, rule=rule, first=first)

        lanes = lanes_of(pool, len(starts)) if len(starts) > 1 else [pool]
        tasks = [partial(run, *pair) for pair in zip(starts, lanes, strict=True)]
        ended = with_progress("starts", tasks, lanes, pool.ledger, _last_objective)
        first = {one.key or k: one for k, one in reversed(list(enumerate(ended)))}
        ended = [one for one in ended if one in first.values()]
        tasks, lanes = [one.finish for one in ended], [one.pool for one in ended]
        results = with_progress("polished starts", tasks, lanes, pool.ledger, _loss)
        losses = [result.extra.pop("loss") for result in results]
        return results[int(np.argmin(np.nan_to_num(losses, nan=np.inf)))]


def with_progress(name, tasks, lanes, ledger, values):
    """Results of tasks that do not wait for each other, fewer if a callback ends the series.

    Parameters
    ----------
    name : str
        Of the series, in the plural.
    tasks, lanes, ledger
        As of :func:`~skcfl.federation.lanes.together`.
    values : callable
        ``values(result)`` returns numbers by name, to be reported.

    Returns
    -------
    results : list
    """
    results = []
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


def _last_objective(ended):
    return {"objective": ended.record.last}


def _loss(result):
    return {"loss": result.extra["loss"]}


def _check_init(init, n_clusters, n_params, starts):
    theta = real_array(init, "init", finite=False)
    if theta.shape != (n_clusters, n_params) or not np.isfinite(theta).all():
        raise ValueError(
            f"init must be one of {sorted(starts)} or a finite array of shape (n_clusters, "
            f"n_params) = ({n_clusters}, {n_params}), got an array of shape {theta.shape}"
            f"{'' if np.isfinite(theta).all() else ' with values that are not finite'}."
        )
    return theta


def true_labels(estimator, groups):
    """True clusters of the clients, None where the study has none."""
    given = estimator._option("record").true_labels
    return None if given is None else labels_of(given, groups, "record: true_labels")


def labels_of(labels, groups, name="labels"):
    """Labels of the clients as codes 0..K-1, aligned with the sorted ids."""
    if groups is None or labels is None:
        n_clients = 1 if groups is None else len(groups)
        return np.zeros(n_clients, dtype=np.intp)
    if isinstance(labels, dict):
        missing = [g for g in groups.tolist() if g not in labels]
        if missing:
            raise ValueError(
                f"{name} has no entry for {len(missing)} of {len(groups)} clients: "
                f"{missing[:5]}. Give the label of every id in groups."
            )
        labels = [labels[g] for g in groups.tolist()]
    with about(name):
        shape = np.shape(labels)
    if shape != groups.shape:
        raise ValueError(
            f"{name} must have one entry per client, {len(groups)} in the order of the sorted "
            f"ids, got an array of shape {shape}."
        )
    return encode(check_ids(labels, name=name))[1]


def shared_mask(layers, slices, n_params):
    """Mask of the parameters of some layers, None if there are none.

    Raises
    ------
    ValueError
        If the local model has no such layers, or no others.
    """
    names = list(slices)
    if layers is None or (isinstance(layers, Integral) and layers == 0):
        return None
    if isinstance(layers, str):
        layers = [layers]
    with about("shared_layers"):
        layers = layers if isinstance(layers, Integral) else list(layers)
    wanted = names[:layers] if isinstance(layers, Integral) else layers_named(layers, names)
    unknown = [name for name in wanted if name not in names]
    if unknown or len(set(wanted)) >= len(names):
        raise ValueError(
            "shared_layers must be a number of layers, fewer than all, or names of some of them; "
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
    return replace(options, max_iter=min(options.max_iter, BRIEF), settled=1)


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
        local_steps=training.steps(),
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
