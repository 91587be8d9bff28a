"""Clients that do not answer, simulated in this process."""

from numbers import Real

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, validate_params

from .._checks import about
from .._groups import check_ids, locate
from .draws import mixed
from .messages import CALLS
from .sites import Site


class Faults:
    """Which clients of a simulated federation do not answer.

    Parameters
    ----------
    dropout : float, default=0.0
        Probability that a client does not answer a call, less than 1; every client and every
        call is drawn apart.
    dead : array-like of ids, default=()
        Clients that say who they are at the start, and never answer a call.
    random_state : int, RandomState instance or None, default=None
        Source of the draws.

    Raises
    ------
    ValueError
        If `dropout` is no number from 0 to 1, 1 excluded, or ids are missing.

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
    """

    @validate_params(
        {
            "dropout": [Interval(Real, 0, 1, closed="left")],
            "dead": ["array-like"],
            "random_state": ["random_state"],
        },
        prefer_skip_nested_validation=True,
    )
    def __init__(self, dropout=0.0, dead=(), random_state=None):
        self.dropout, self.dead, self.random_state = float(dropout), dead, random_state

    def dead_among(self, ids):
        """Which of the clients are dead, (n_clients,) of bool.

        Parameters
        ----------
        ids : ndarray of shape (n_clients,)
            Clients of a federation, sorted.
        """
        out = np.zeros(len(ids), dtype=bool)
        if len(self.dead):
            with about("dead"):
                positions, unseen = locate(ids, check_ids(self.dead, name="dead"))
            if len(unseen):
                raise ValueError(
                    f"dead must hold clients of the federation, got {unseen.tolist()[:5]}."
                )
            out[positions] = True
        return out

    def wrapper(self, dead, places):
        """What makes a site of these clients one whose clients may not answer."""
        draws = _Draws(self)
        return lambda site: FaultySite(site, dead, places, draws)


class _Draws:
    """Seed and count of the calls of one federation, shared by the sites made from one."""

    def __init__(self, faults):
        self.seed = int(check_random_state(faults.random_state).randint(np.iinfo(np.int32).max))
        self.dropout, self.count = faults.dropout, 0

    def lost(self, places):
        """Which clients do not answer the next call."""
        self.count += 1
        share = mixed(self.seed, self.count, places) / np.float64(2**64)
        return share < self.dropout


class FaultySite(Site):
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
        self.site, self.dead, self.places, self.draws = site, dead, places, draws
        self.client_sizes, self.client_weights = site.client_sizes, site.client_weights
        self.without_rows = site.without_rows

    @property
    def n_clients(self):
        """Number of clients, lost ones too."""
        return self.site.n_clients

    def _of(self, site, index=slice(None)):
        return FaultySite(site, self.dead[index], self.places[index], self.draws)

    def answer(self, call, arguments):
        """Answers of those who are not lost; zeros of the others, and who answered."""
        answered = ~(self.dead | self.draws.lost(self.places))
        if answered.all():
            return self.site.answer(call, arguments)
        message = CALLS[call]
        if all(map(message.is_of_clients, message.up)):
            # Cheaper than to pick the others; what the lost ones compute goes nowhere.
            memory, lost = self.site.memory, self.site.positions(~answered)
            before = memory.of(lost)
            answers = self.site.answer(call, arguments)
            memory.restore(lost, before)
            for value in answers.values():
                value[~answered] = 0
            return {**answers, "answered": answered}
        here = np.flatnonzero(answered)
        own = {name: message.own(name, value, here) for name, value in arguments.items()}
        answers = self.site.subset(here).answer(call, own)
        for name in filter(message.is_of_clients, message.up):
            own = answers[name]
            answers[name] = np.zeros((self.n_clients, *own.shape[1:]), dtype=own.dtype)
            answers[name][here] = own
        return {**answers, "answered": answered}

    def subset(self, clients):
        """Site of some of the clients."""
        return self._of(self.site.subset(clients), clients)

    def penalised(self, alpha):
        """Site of the same clients under another local penalty."""
        return self._of(self.site.penalised(alpha))

    def held_out(self, fraction, seed):
        """Two parts of each client's rows."""
        return tuple(map(self._of, self.site.held_out(fraction, seed)))

    def folds(self, n_folds, seed):
        """Pairs of parts, one a fold."""
        return [tuple(map(self._of, pair)) for pair in self.site.folds(n_folds, seed)]
