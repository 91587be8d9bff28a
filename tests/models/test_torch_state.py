"""What modules of PyTorch keep between calls: no client sees that of another."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skcfl import FedAvg
from skcfl.calls.first_order import LocalUpdate
from skcfl.federation import InProcessFederation, SitePolicy
from skcfl.federation.inprocess import open_rows
from skcfl.models import TorchModel

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
CODES = np.repeat(np.arange(4), 12)
X, Y = RNG.normal(size=(48, 4)).astype(np.float32), RNG.integers(2, size=48)


class Running(torch.nn.Linear):
    """Subtracts a running mean of the rows."""

    def __init__(self, how, persistent=True):
        super().__init__(4, 2)
        self.how = how
        self.register_buffer("mean", torch.zeros(4), persistent=persistent)

    def forward(self, x):
        if self.training:
            mean = 0.9 * self.mean + 0.1 * x.mean(0)
            if self.how == "copied":
                self.mean.copy_(mean)
            elif self.how == "data":
                self.mean.data = mean
            else:
                self.mean = mean
        return super().forward(x - self.mean)


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("how", ["copied", "assigned", "data"])
def test_buffers_follow_the_rows_of_their_client(how, persistent):
    bound = TorchModel(Running(how, persistent), precision="double").bind(4, 2)
    start, found = bound.start(0), []
    for rows in (X, np.where(CODES[:, None] == 0, X + 5, X)):
        pool = open_rows(bound, rows, Y, CODES, 4, random_state=0)
        found.append(pool.ask(LocalUpdate, start, 3, 0.1))
    assert (found[0][0] != found[1][0]).any()
    assert_array_equal(found[0][1:], found[1][1:])
    assert not bound.stackable
    if persistent:
        expected = (1 - 0.9**3) * np.array([X[CODES == i].mean(axis=0) for i in range(4)])
        assert_allclose(found[0][:, bound.statistics], expected, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_buffers_that_clients_keep_follow_their_rows_once_a_round():
    """Also where a policy checks how many clients have moved."""
    model = FedAvg(TorchModel(Running("copied"), buffers="local"), max_iter=2, random_state=0)
    plain, checked = (
        model.fit_federation(InProcessFederation(X, Y, CODES, policy=policy)).params_
        for policy in (None, SitePolicy(min_clients=2))
    )
    assert_array_equal(plain, checked)


class Counting(torch.nn.Linear):
    """Counts its batches in a tensor that it shares, and learns faster by them."""

    def __init__(self, how):
        super().__init__(4, 2)
        self.how, self.part, self.known = how, torch.nn.Module(), []
        self.register_buffer("count", torch.zeros(1, dtype=torch.long))
        if how == "list":
            self.known.append(self.count)
        else:
            self.part.register_buffer("count", self.count)

    def forward(self, x):
        assert self.count == (self.known[0] if self.known else self.part.count)
        if self.training and self.how == "assigned":
            self.count = self.part.count = self.count + 1
        elif self.training:
            self.count += 1
        return super().forward(x) * (1 + self.count if self.training else 1)


@pytest.mark.parametrize("how", ["list", "module", "assigned"])
def test_counters_that_modules_share_begin_anew_together(how):
    bound = TorchModel(Counting(how)).bind(4, 2)
    pool = open_rows(bound, np.tile(X[:12], (4, 1)), np.tile(Y[:12], 4), CODES, 4, random_state=0)
    found = pool.ask(LocalUpdate, bound.start(0), 3, 0.1)
    assert_array_equal(found, found[:1].repeat(4, axis=0))


class Turning(torch.nn.Linear):
    """Turns pairs of features, as rotary embeddings do."""

    def __init__(self):
        super().__init__(4, 2)
        self.register_buffer("turn", torch.polar(torch.ones(2), torch.tensor([0.3, 2.5])))

    def forward(self, x):
        pairs = torch.view_as_complex(x.view(-1, 2, 2)) * self.turn
        return super().forward(torch.view_as_real(pairs).flatten(1))


@pytest.mark.parametrize("precision", ["single", "double"])
def test_complex_constants_keep_their_imaginary_part(precision):
    given = Turning()
    model = FedAvg(TorchModel(given, precision=precision), max_iter=1, tol=1e3)
    made = model.fit(X, Y, groups=CODES).client_model(0)
    assert_allclose(made.turn, given.turn)
    assert made.turn.is_complex()
    raw = made(torch.from_numpy(X).to(made.weight.dtype)).detach()
    assert_allclose(model.decision_function(X, groups=CODES), raw[:, 1] - raw[:, 0], rtol=1e-4)
