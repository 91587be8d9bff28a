"""Bounds of what a message may set: a short one must not occupy a site."""

import numpy as np
import pytest
from site_tables import REGRESSION, Given, Wire

from skcfl.calls import CALLS
from skcfl.calls.answers import check_arguments
from skcfl.calls.letters import sizes_of
from skcfl.calls.settings import ANY_SIZE, MOST_WHOLE, REPEATS
from skcfl.exceptions import MessageError
from skcfl.federation import SitePolicy
from skcfl.federation.bounds import Limits
from skcfl.federation.fanout import FanOut
from skcfl.federation.host import SiteHost
from skcfl.federation.inprocess import InProcessSite
from skcfl.federation.policy import FitGuard, Guard
from skcfl.federation.pool import ClientPool
from skcfl.federation.remote import RemoteFederation, RemoteRows
from skcfl.federation.rows import Rows
from skcfl.federation.serialization import dumps, loads
from skcfl.models import LinearModel
from skcfl.testing import check_pool

HUGE = 10**9
MODEL = LinearModel(alpha=0.1).bind(3)
THETA, LABELS = np.zeros((2, 4)), np.zeros(6, dtype=int)


@pytest.fixture(scope="module")
def asked():
    """Messages of all calls over wires, as sites get them, with the sizes of their letters.

    Their answers are those of clients here; two sites have a policy that allows all calls.
    """
    messages, answer = {}, InProcessSite.answer

    def spy(site, call, arguments):
        sizes = sizes_of(site, arguments)
        check_arguments(call, arguments, sizes)
        messages.setdefault(call, []).append((dict(arguments), sizes))
        return answer(site, call, arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(InProcessSite, "answer", spy)
        check_pool(open_over_wires)
    return messages


def open_over_wires(model, X, y, codes, n_clients, sample_weight):
    sites = []
    for owned in np.array_split(np.random.RandomState(1).permutation(n_clients), 2):
        # A site that owns clients without rows is made by hand.
        here, place = np.isin(codes, owned), np.argsort(owned)
        at = place[np.searchsorted(owned, codes[here], sorter=place)]
        rows = X[here], y[here], at, sample_weight[here]
        wire = Wire(Given("site", (rows[0], rows[1], at.astype(str), rows[3])))
        root = RemoteFederation([wire])._roots[0]
        # What an honest site answers is within its bounds.
        sizes, totals = (np.bincount(at, w, len(owned)) for w in (None, rows[3]))
        limits = Limits(sizes, totals, X.shape[1])
        there = RemoteRows(owned, limits, root.line, root, "rows")
        guard = FitGuard(Guard(SitePolicy()))
        wire.host._host._kept[there.key] = Rows(*rows, owned, guard=guard)
        sites.append((there.site(model), owned))
    return ClientPool(FanOut(sites), model)


def larger(name, value):
    """Values with a huge integer in the place of one."""
    if isinstance(value, bool | np.bool_) or value is None:
        return
    if isinstance(value, int):
        yield from (HUGE, 10**30, np.int64(HUGE), np.array(HUGE))
    if isinstance(value, list | tuple) and name not in ANY_SIZE:
        yield type(value)((HUGE, *part[1:]) for part in value)
    if name in REPEATS:
        yield value * 0.0 + HUGE if isinstance(value, np.ndarray) else float(HUGE)
        yield np.full_like(value, HUGE)


def test_every_integer_that_a_call_takes_has_a_bound(asked):
    """A call that is new has it, too: where its class says nothing it is MOST_WHOLE."""
    assert asked.keys() == CALLS.keys()
    tried = set()
    for call, messages in asked.items():
        for arguments, sizes in messages:
            for name, value in arguments.items():
                for huge in larger(name, value):
                    tried.add((call, name))
                    changed = {**arguments, name: huge}
                    if name in ANY_SIZE:
                        check_arguments(call, changed, sizes)
                        continue
                    with pytest.raises(MessageError, match=f"{call} takes {name}.* at most"):
                        check_arguments(call, changed, sizes)
    whole = {"n_draws", "n_columns", "n_centres", "n_bins", "n_leaves", "n_vectors", "output"}
    assert {name for _, name in tried} >= {*whole, *REPEATS, *ANY_SIZE, "stages"}
    assert max(most for call in CALLS.values() for most in call.most.values()) <= MOST_WHOLE


def changed(asked, call, **values):
    arguments, sizes = asked[call][0]
    return call, {**arguments, **values}, sizes


@pytest.mark.parametrize(
    ("call", "values", "message"),
    [
        ("moreau_moves", {"steps": np.full(1, 10**4), "n_moves": 900}, "steps times n_moves"),
        ("gradient_sums", {"labels": 3}, "labels from 0 to 2"),
        ("gradient_sums", {"labels": -1}, "labels from 0 to 2"),
        ("best_response", {"fixed": -2}, "fixed from -1 to 2"),
        ("nearest_moves", {"begun": 10**9}, "begun from -1 to 2"),
        ("gradient_sums", {"weights": -1.0}, "finite weights that are not negative"),
        ("hessians", {"weights": np.nan}, "finite weights that are not negative"),
        ("score_sums", {"counted": 1e-9}, "counted of booleans"),
        ("level_sums", {"n_columns": 1e9}, "n_columns of at most 10000"),
        ("level_sums", {"n_columns": np.nan}, "n_columns of at most 10000"),
        ("local_update", {"steps": 1e9}, "steps of at most 100000"),
    ],
)
def test_settings_out_of_bounds(asked, call, values, message):
    n = asked[call][0][1]["n"]
    each = {"n": lambda value: np.broadcast_to(value, n), "": lambda value: value}
    values = {name: each[CALLS[call].down[name]](value) for name, value in values.items()}
    with pytest.raises(MessageError, match=f"{call} takes {message}"):
        check_arguments(*changed(asked, call, **values))


def test_no_answer_is_larger_than_a_message(asked):
    arguments, sizes = asked["local_centres"][0]
    with pytest.raises(MessageError, match=r"local_centres would be answered by .* numbers"):
        check_arguments(
            "local_centres", {**arguments, "n_centres": 10**4}, {**sizes, "n": 10**5, "h": 10**4}
        )


STEPS = [(1, 0, "rows", (np.arange(6), MODEL, np.dtype(float), None)), (2, 1, "site", (MODEL,))]


def test_a_site_says_at_once_that_it_does_not_compute():
    """Whether it has a policy or not."""
    X, y, groups = (getattr(REGRESSION, name) for name in ("X", "y", "groups"))
    host = SiteHost(Given("south", (X, y, groups)))
    moves = {
        **{"theta": THETA, "labels": LABELS, "rho": np.ones(6), "move": np.ones(6)},
        **{"n_moves": HUGE, "weights": np.ones(6)},
    }

    def ask(key, steps, name, *arguments):
        return loads(host.handle(dumps((key, steps, [], name, arguments))))

    assert ask(2, STEPS, "answer", "proximal_moves", moves)[:2] == (
        "lost",
        "proximal_moves takes n_moves of at most 1000, got 1e+09.",
    )
    assert ask(2, STEPS, "answer", "proximal_moves", {**moves, "n_moves": 2})[0] == "done"
    folds = [*STEPS, (3, 2, "derive", ("folds", HUGE, 0)), (4, 3, "__getitem__", (0,))]
    assert ask(4, folds, "facts")[0] == "lost"
