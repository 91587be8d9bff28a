"""What a site agrees to, whoever asks: its own decision, which no server can change."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from .._checks import Count
from .._typing import Array
from .messages import CALLS, check_calls
from .sites import Refused, WrappedSite, answer_without


class SitePolicy:
    """Which calls the clients of a site answer.

    A site that has refused a call takes no further part in that fit, so that sums over the clients
    are always over the same clients.  Where the site is elsewhere its clients are missing from
    then on; in this process the refusal is an error.

    Parameters
    ----------
    min_rows : int, default=1
        Clients of fewer rows do not answer, nor do parts of a client's rows, such as those of a
        fold, that have fewer; what all of them together add to a sum is left out too.
    calls : collection of str or None, default=None
        The calls that are answered, by their names in the table of
        :mod:`skcfl.federation.messages`; None is all of them.  Those that send nothing up always
        are.
    max_calls : int or None, default=None
        How many calls are answered, in all fits together; None is any number.

    Raises
    ------
    ValueError
        If there is no such call, or a number is no positive integer.

    Examples
    --------
    A site that sends no second derivatives:

    >>> from skcfl import FedAvgRegressor, LocalModelsRegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.federation import InProcessFederation, SitePolicy
    >>> from skcfl.federation.messages import CALLS
    >>> data = make_clustered_regression(n_clients=6, n_clusters=2, random_state=0)
    >>> policy = SitePolicy(calls=set(CALLS) - {"hessians"})
    >>> federation = InProcessFederation(data.X, data.y, data.groups, policy=policy)
    >>> LocalModelsRegressor(alpha=0.01).fit_federation(federation).params_.shape
    (6, 11)
    >>> FedAvgRegressor(alpha=0.01).fit_federation(federation)
    Traceback (most recent call last):
        ...
    skcfl.federation.sites.Refused: it does not answer hessians
    """

    def __init__(
        self, min_rows: int = 1, calls: Collection[str] | None = None, max_calls: int | None = None
    ) -> None:
        for name, value in (("min_rows", min_rows), ("max_calls", max_calls)):
            if value is not None and not Count(1).is_satisfied_by(value):
                raise ValueError(f"{name} must be a positive integer, got {value!r}.")
        if min_rows is None:
            raise ValueError("min_rows must be a positive integer, got None.")
        if calls is not None:
            calls = check_calls(calls)
        self.min_rows, self.calls, self.max_calls = int(min_rows), calls, max_calls

    def __repr__(self):
        calls = None if self.calls is None else sorted(self.calls)
        return f"SitePolicy(min_rows={self.min_rows}, calls={calls}, max_calls={self.max_calls})"

    def check_rows(self, sizes: Array) -> None:
        """Raise Refused if no client of a site has enough rows to take part.

        Parameters
        ----------
        sizes : ndarray of shape (n_clients,)
            Rows of each client.
        """
        if np.max(sizes, initial=0) < self.min_rows:
            raise Refused(f"no client has min_rows={self.min_rows} rows")


def check_policy(policy: SitePolicy | None) -> None:
    """Raise a TypeError for what is neither a policy nor None."""
    if policy is not None and not isinstance(policy, SitePolicy):
        raise TypeError(f"policy must be a SitePolicy or None, got {type(policy).__name__}.")


class Guard:
    """A policy that is kept, and counts.

    Parameters
    ----------
    policy : SitePolicy
        What is agreed to.
    """

    def __init__(self, policy):
        self.policy, self.count = policy, 0

    def wrapper(self):
        """What makes sites of one fit such that keep the policy."""
        fit = _Fit(self)
        return lambda site: PolicySite(site, fit)


class _Fit:
    """The refusal that ended a site's part in a fit, shared by the sites made from one."""

    def __init__(self, guard):
        self.guard, self.refusal = guard, None

    def check(self, call):
        policy = self.guard.policy
        if self.refusal is None:
            if policy.calls is not None and CALLS[call].up and call not in policy.calls:
                self.refusal = f"it does not answer {call}"
            elif policy.max_calls is not None and self.guard.count >= policy.max_calls:
                self.refusal = f"it has answered max_calls={policy.max_calls} calls"
        if self.refusal is not None:
            raise Refused(self.refusal)
        self.guard.count += 1


class PolicySite(WrappedSite):
    """Site that keeps to a policy.

    Parameters
    ----------
    site : Site
        The clients.
    fit : object
        What the policy has said in this fit.
    """

    def __init__(self, site, fit):
        super().__init__(site)
        self.fit = fit
        few = site.client_sizes < fit.guard.policy.min_rows
        # There is nothing to know of clients without rows.
        self._mute = few & (site.client_sizes > 0)

    def answer(self, call, arguments):
        """Answers that are agreed to, see :meth:`Site.answer`; else Refused is raised."""
        self.fit.check(call)
        if not self._mute.any():
            return self.site.answer(call, arguments)
        return answer_without(self.site, call, arguments, ~self._mute)

    def _of(self, site, clients=None):
        return PolicySite(site, self.fit)
