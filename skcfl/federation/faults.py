"""Clients that do not answer, or lie, simulated in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from numbers import Real
from typing import Any, Literal

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from .._checks import Interval, about
from .._typing import Array, ClientIds, RandomState, validate_params
from ..calls import CALLS
from ..calls.answers import questions
from ..clients.draws import mixed
from ..clients.ids import check_ids, locate
from ..numerics.by_cluster import sum_by_cluster
from .row_calls import check_calls
from .sites import WrappedSite, answer_without

#: Attacks on messages, and how strong they are unless said: ALIE's and the inner product's as the
#: papers have tried them.
ATTACKS = {"sign_flip": 1.0, "scale": 1e6, "alie": 1.5, "inner_product": 2.0, "nan": np.nan}
# Answers that are models or slopes, and the argument that a model starts from.
STARTS = {"gradients": None, "w": "w", "x": "v"}


class Faults:
    """Which clients of a simulated federation do not answer, and which answer falsely.

    Parameters
    ----------
    dropout : float, default=0.0
        Probability that a client does not answer a call, less than 1; every client and every
        call is drawn apart.
    dead : array-like of ids, default=()
        Clients that say who they are at the start, and never answer a call.
    attack : {"sign_flip", "scale", "alie", "inner_product", "nan"} or None, default=None
        What false clients send in place of their gradients, or of the moves of the models that
        they have trained:

        * "sign_flip": the opposite;
        * "scale": a multiple;
        * "alie": "a little is enough" [1]_, the mean of the honest ones asked at the same model
          minus `strength` of their standard deviations, coordinate by coordinate;
        * "inner_product": minus `strength` times the mean of these [2]_;
        * "nan": nothing but NaN, in losses and sums, too.
    calls : collection of str or None, default=None
        Kinds of calls that `dropout` and `dead` apply to, by their names in
        :mod:`skcfl.calls`; None is all of them.
    false : float or array-like of ids, default=()
        Which clients are false, or which share of them, drawn at random.
    strength : float or None, default=None
        Of the attack; None is 1, 1e6, 1.5 and 2 for the first four.
    random_state : int, RandomState instance or None, default=None
        Source of the draws.

    Raises
    ------
    ValueError
        If `dropout` is no number from 0 to 1, 1 excluded, ids are missing, there is no such call,
        or there are false clients without an attack.

    References
    ----------
    .. [1] G. Baruch, M. Baruch, Y. Goldberg. "A Little Is Enough: Circumventing Defenses For
       Distributed Learning". NeurIPS 2019.
    .. [2] C. Xie, O. Koyejo, I. Gupta. "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner
       Product Manipulation". UAI 2019.

    Examples
    --------
    >>> from skcfl import IFCARegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.federation import Faults, InProcessFederation
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> faults = Faults(dropout=0.3, dead=["client05"], random_state=0)
    >>> federation = InProcessFederation(data.X, data.y, data.groups, faults=faults)
    >>> model = IFCARegressor(n_clusters=3, random_state=0).fit_federation(federation)
    >>> model.missing_clients_
    array(['client05'], dtype='<U8')

    A false client whose numbers are no numbers is found out at once:

    >>> import warnings
    >>> faults = Faults(attack="nan", false=["client03"])
    >>> federation = InProcessFederation(data.X, data.y, data.groups, faults=faults)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     IFCARegressor(n_clusters=3).fit_federation(federation).rejected_clients_
    array(['client03'], dtype='<U8')
    """

    @validate_params(
        {
            "dropout": [Interval(Real, 0, 1, closed="left")],
            "dead": ["array-like"],
            "calls": ["array-like", set, frozenset, str, None],
            "attack": [StrOptions(set(ATTACKS)), None],
            "false": [Interval(Real, 0, 1, closed="both"), "array-like"],
            "strength": [Interval(Real, 0, None, closed="neither"), None],
            "random_state": ["random_state"],
        }
    )
    def __init__(
        self,
        dropout: float = 0.0,
        dead: ClientIds = (),
        *,
        calls: Collection[str] | None = None,
        attack: Literal["sign_flip", "scale", "alie", "inner_product", "nan"] | None = None,
        false: float | ClientIds = (),
        strength: float | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.dropout, self.dead, self.random_state = float(dropout), dead, random_state
        self.calls = None if calls is None else check_calls(calls)
        self.attack, self.false, self.strength = attack, false, strength
        someone: Any = false if isinstance(false, Real) else len(false)  # type: ignore[arg-type]
        if attack is None and someone:
            raise ValueError(
                f"false={false!r} needs an attack, one of {sorted(ATTACKS)}, got attack=None."
            )

    def dead_among(self, ids: Array) -> Array:
        """Which of the clients are dead, (n_clients,) of bool.

        Parameters
        ----------
        ids : ndarray of shape (n_clients,)
            Clients of a federation, sorted.
        """
        return _among(ids, self.dead, "dead")

    def false_among(self, ids: Array) -> Array:
        """Which of the clients are false, (n_clients,) of bool.

        Parameters
        ----------
        ids : ndarray of shape (n_clients,)
            Clients of a federation, sorted.
        """
        if not isinstance(self.false, Real):
            return _among(ids, self.false, "false")
        rng = check_random_state(self.random_state)
        out = np.zeros(len(ids), dtype=bool)
        out[rng.permutation(len(ids))[: int(round(self.false * len(ids)))]] = True
        return out

    def wrapper(self, ids: Array, places: Array) -> Callable[[Any], Any]:
        """What makes a site of these clients one whose clients may be lost, or lie."""
        dead, false, draws = self.dead_among(ids), self.false_among(ids), _Draws(self)
        attack = None
        if self.attack is not None:
            strength = ATTACKS[self.attack] if self.strength is None else float(self.strength)
            attack = self.attack, strength

        def wrap(site):
            site = site if attack is None else FalseSite(site, false, *attack)
            return FaultySite(site, dead, places, draws)

        return wrap


def _among(ids, some, name):
    """Mask of some of the clients, by their ids."""
    out = np.zeros(len(ids), dtype=bool)
    if len(some):
        with about(name):
            positions, unseen = locate(ids, check_ids(some, name=name))
        if len(unseen):
            raise ValueError(
                f"{name} must hold clients of the federation, got {unseen.tolist()[:5]}."
            )
        out[positions] = True
    return out


class _Draws:
    """Seed and count of the calls of one federation, shared by the sites made from one."""

    def __init__(self, faults):
        self.seed = int(check_random_state(faults.random_state).randint(np.iinfo(np.int32).max))
        self.dropout, self.calls, self.count = faults.dropout, faults.calls, 0

    def lost(self, call, dead, places):
        """Which of some clients do not answer the next call."""
        self.count += 1
        if self.calls is not None and call not in self.calls:
            return np.zeros(len(places), dtype=bool)
        share = mixed(self.seed, self.count, places) / np.float64(2**64)
        return dead | (share < self.dropout)


class FalseSite(WrappedSite):
    """Site some of whose clients send false gradients and models.

    Parameters
    ----------
    site : Site
        The clients.
    false : ndarray of shape (n_clients,) of bool
        Who is false.
    attack : str
        What they send, a name in :data:`ATTACKS`.
    strength : float
        How far they go.
    """

    def __init__(self, site, false, attack, strength):
        super().__init__(site)
        # Who has no rows has nothing to lie about.
        false = false & ~self.without_rows
        self.false, self.attack, self.strength = false, attack, strength

    def _of(self, site, clients=slice(None)):
        return FalseSite(site, self.false[clients], self.attack, self.strength)

    def answer(self, call, arguments):
        """What the clients say, those that are false not what they have found."""
        if not self.false.any():
            return self.site.answer(call, arguments)
        arguments = self._with_starts(call, arguments)
        if self.attack == "nan":
            return self._nothing(call, arguments)
        if CALLS[call].adds:
            return self._false_sums(CALLS[call], arguments)
        answers = self.site.answer(call, arguments)
        for name in filter(CALLS[call].is_of_clients, answers.keys() & STARTS.keys()):
            start = arguments.get(STARTS[name], 0.0)
            moves = answers[name] - start
            moves[self.false] = self._lie(moves, questions(arguments, answers, len(moves)))
            answers[name] = (start + moves).astype(answers[name].dtype)
        if CALLS[call].keep and arguments.get("keep", True):
            # They go on from what they have sent, as the server takes it.
            places = self.positions(self.false)
            self.memory.keep(places, answers[CALLS[call].keep][self.false])
        return answers

    def _with_starts(self, call, arguments):
        """Arguments with the models that clients go on from, whoever has them."""
        name, own = CALLS[call].start, arguments.get("own")
        if not name or own is None:
            return arguments
        models = self.memory.continued(self.positions(slice(None)), own, arguments[name])
        return {**arguments, name: models, "own": None}

    def _false_sums(self, call, arguments):
        """Sums in which false clients have other parts than they have found."""
        answers = call.single(self.site, arguments)
        labels = answers.get("choice", arguments.get("labels"))
        for name in call.adds:
            # What models have moved is sent with its sign changed, as a slope to descend.
            sign = -1.0 if name == "moves" else 1.0
            parts = np.array(answers[name])
            parts[self.false] = sign * self._lie(sign * parts, labels)
            weights = arguments["weights"]
            weights = self.client_weights if weights is None else weights
            answers[name] = sum_by_cluster(parts, labels, len(arguments["theta"]), weights)
        return answers

    def _nothing(self, call, arguments):
        """Answers in which the entries of false clients are NaN, and sums without their part."""
        if not CALLS[call].sums:
            answers = self.site.answer(call, arguments)
        else:
            answers = answer_without(self.site, call, arguments, ~self.false)
            answers["answered"] |= self.false
            answers["non_finite"] = self.false | answers.get("non_finite", False)
        for name in CALLS[call].up:
            if CALLS[call].is_of_clients(name) and answers[name].dtype.kind == "f":
                answers[name] = np.array(answers[name])
                answers[name][self.false] = np.nan
        return answers

    def _lie(self, moves, asked):
        """What false clients send."""
        false, strength = self.false, self.strength
        if self.attack in {"sign_flip", "scale"}:
            return (-strength if self.attack == "sign_flip" else strength) * moves[false]
        out = moves[false]
        for question in np.unique(asked[false]):
            honest = moves[(asked == question) & ~false]
            if len(honest):
                mean, deviation = honest.mean(axis=0), honest.std(axis=0)
                alie = self.attack == "alie"
                lie = mean - strength * deviation if alie else -strength * mean
                out[asked[false] == question] = lie
        return out


class FaultySite(WrappedSite):
    """Site some of whose clients do not answer.

    Parameters
    ----------
    site : Site
        The clients.
    dead : ndarray of shape (n_clients,) of bool
        Who never answers.
    places : ndarray of shape (n_clients,)
        Positions of the clients in the whole federation.
    draws : object
        Who else is lost, call by call.
    """

    def __init__(self, site, dead, places, draws):
        super().__init__(site)
        # Of who has no rows the answers are known.
        dead = dead & ~self.without_rows
        self.dead, self.places, self.draws = dead, places, draws

    def _of(self, site, clients=slice(None)):
        return FaultySite(site, self.dead[clients], self.places[clients], self.draws)

    def answer(self, call, arguments):
        """Answers of those who are not lost; zeros of the others, and who answered."""
        answered = ~self.draws.lost(call, self.dead, self.places) | self.without_rows
        if answered.all():
            return self.site.answer(call, arguments)
        memory, lost = self.site.memory, self.site.positions(~answered)
        before = memory.of(lost)
        answers = answer_without(self.site, call, arguments, answered)
        memory.restore(lost, before)
        return answers
