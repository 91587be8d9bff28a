"""Pools of clients that are elsewhere, by the public check; and that it sees what is wrong."""

import numpy as np
import pytest
from trials import some

from skcfl.federation.fanout import FanOut
from skcfl.federation.inprocess import InProcessSite
from skcfl.federation.pool import ClientPool
from skcfl.models import MLP, LinearModel, Location
from skcfl.models.losses import Quantile
from skcfl.testing import check_pool


def fan_out(kind=FanOut, n_places=3):
    """A maker of pools whose clients are dealt to places in no order."""

    def make(model, X, y, codes, n_clients, sample_weight):
        whole = InProcessSite(model, X, y, codes, n_clients, sample_weight)
        order = np.random.RandomState(1).permutation(n_clients)
        places = np.array_split(order, n_places)
        return ClientPool(kind([(whole.subset(some), some) for some in places]), model)

    return make


MODELS = [
    MLP((2,), alpha=0.1, precision="double"),
    Location(),
    LinearModel("tweedie", alpha=0.2),
    LinearModel(Quantile(smoothing=0.5), alpha=0.2),
]


@pytest.mark.parametrize("model", some(MODELS, 1), ids=repr)
def test_fan_outs_are_pools(model):
    """Whatever the model; the default one is asked over wires in test_settings.py."""
    check_pool(fan_out(n_places=2), model=model)


class Unsorted(FanOut):
    """Joins answers in the order of the places."""

    def _joined(self, answers):
        return np.concatenate(answers)


class Selfish(FanOut):
    """Draws by position rather than by client: the seeds of its parts differ."""

    def answer(self, call, arguments):
        if arguments.get("draw") is not None:
            arguments = {**arguments, "draw": (arguments["draw"][0] + 1, arguments["draw"][1])}
        return super().answer(call, arguments)


class Forgetful(FanOut):
    """Keeps its penalty."""

    def derive(self, step, *arguments):
        return [self] if step == "penalised" else super().derive(step, *arguments)


class Narrow(FanOut):
    """Leaves out half of the answer."""

    def answer(self, call, arguments):
        answers = super().answer(call, arguments)
        return {"values": answers["values"]} if call == "objectives_gradients" else answers


class Other(FanOut):
    """Holds out other rows."""

    def derive(self, step, *arguments):
        if step == "held_out":
            arguments = arguments[0], arguments[1] + 1
        return super().derive(step, *arguments)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Unsorted, "the pool: client_sizes"),
        (Selfish, "local_update by batches, sgd must be answered as in one process"),
        (Forgetful, "another local penalty: .* must be answered"),
        (Narrow, "objectives_gradients must be answered by"),
        (Other, "rows to train on: "),
    ],
)
def test_the_check_says_what_is_wrong(kind, message):
    """Rows that are held out come last, and locations have no penalty and few calls."""
    model = Location() if kind is Other else LinearModel(alpha=0.1)
    with pytest.raises((AssertionError, RuntimeError), match=message):
        check_pool(fan_out(kind, 2), model=model)
