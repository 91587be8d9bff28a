"""Modules of PyTorch as local models; skipped where PyTorch is not installed."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from skcfl import IFCA, FedAvg
from skcfl.datasets import make_clustered_classification
from skcfl.federation.inprocess import open_rows
from skcfl.models import MLP, TorchModel
from skcfl.models.losses import LOSSES

torch = pytest.importorskip("torch")

import torch_modules as modules  # noqa: E402

DATA = make_clustered_classification(n_clients=8, n_clusters=2, random_state=0)
# No row, one row, few, many.
SIZES = [4, 1, 0, 9, 3, 12]


class Federation:
    """An MLP and a module that is exactly it, on the same rows."""

    def __init__(self, loss, n_classes=3, activation="tanh", seed=0):
        rng = np.random.default_rng(seed)
        self.m, self.codes = len(SIZES), rng.permutation(np.repeat(np.arange(len(SIZES)), SIZES))
        n = len(self.codes)
        self.X = rng.normal(size=(n, 4))
        classifier = LOSSES[loss].classifier
        self.y = rng.integers(n_classes, size=n) if classifier else rng.poisson(1.5, n) + 0.5
        self.weights = rng.integers(1, 4, size=n).astype(float)
        own = {"loss": loss, "alpha": 0.1, "precision": "double"}
        n_classes = n_classes if classifier else None
        self.mlp = MLP((5, 3), activation, **own).bind(4, n_classes)
        self.start = self.mlp.init_params(self.m, 1)
        module = modules.as_module(self.mlp, self.start[0])
        self.torch = TorchModel(module, **own).bind(4, n_classes)

    def pools(self):
        rows = self.X, self.y, self.codes, self.m, self.weights
        return [open_rows(model, *rows, random_state=0) for model in (self.mlp, self.torch)]

    def as_module(self, models):
        return np.array([modules.as_vector(self.mlp, w) for w in models])


every_loss = pytest.mark.parametrize("loss", sorted(LOSSES))


@every_loss
def test_a_module_that_is_an_mlp_answers_like_it(loss):
    problem = Federation(loss)
    ours, torchs = problem.pools()
    w = problem.start
    v = problem.as_module(w)
    assert_allclose(torchs.losses(v[:2]), ours.losses(w[:2]), rtol=1e-12)
    both = torchs.objectives_gradients(v), ours.objectives_gradients(w)
    for own, other in zip(*both, strict=True):
        other = problem.as_module(other) if other.ndim == 2 else other
        assert_allclose(own, other, rtol=1e-10, atol=1e-13)
    assert_allclose(torchs.objectives(v), ours.objectives(w), rtol=1e-12)
    labels = np.array([0, 1, -1, 0, -1, 1])
    both = torchs.best_response(v[:2], labels), ours.best_response(w[:2], labels)
    for own, other in zip(*both, strict=True):
        other = problem.as_module(other) if other.shape == w.shape else other
        assert_allclose(own, other, rtol=1e-10, atol=1e-13)
    for optimizer, batch_size in [("sgd", None), ("momentum", 4), ("adam", 4)]:
        job = 5, 0.05, optimizer, batch_size
        other = problem.as_module(ours.local_update(w, *job))
        assert_allclose(torchs.local_update(v, *job), other, rtol=1e-8, atol=1e-10)


@every_loss
def test_gradients_are_those_of_autograd(loss):
    """Of the mean loss, written in PyTorch, and the penalty of the weights."""
    problem = Federation(loss, n_classes=3)
    _, pool = problem.pools()
    w = problem.as_module(problem.start)
    gradients = pool.gradients(w)
    kernel, client = problem.torch.kernel, 5
    module = problem.torch.plain(w[client], None)
    rows = np.flatnonzero(problem.codes == client)
    z = module(torch.from_numpy(problem.X[rows]))
    y = torch.from_numpy(problem.y[rows])
    share = torch.from_numpy(problem.weights[rows] / problem.weights[rows].sum())
    u, functional = z[:, 0], torch.nn.functional
    signs = 2.0 * functional.one_hot(y.long()) - 1.0 if kernel.classifier else None
    away = (y - u).abs()
    inner = away.clamp(max=0.05)
    # But for terms that do not depend on the module.
    written = {
        "squared_error": lambda: 0.5 * away**2,
        "huber": lambda: functional.huber_loss(u, y, reduction="none", delta=1.35),
        "quantile": lambda: inner / 0.1 * (away - 0.5 * inner),
        "poisson": lambda: functional.poisson_nll_loss(u, y, reduction="none"),
        "gamma": lambda: y * torch.exp(-u) + u,
        "tweedie": lambda: 2.0 * (torch.exp(0.5 * u) + y * torch.exp(-0.5 * u)),
        "log_loss": lambda: functional.cross_entropy(z, y, reduction="none"),
        "squared_hinge": lambda: (torch.relu(1 - signs * z) ** 2).sum(1),
    }[loss]()
    objective = share @ written + 0.05 * sum(
        (p**2).sum() for p in module.parameters() if p.ndim > 1
    )
    parts = torch.autograd.grad(objective, list(module.parameters()))
    own = np.concatenate([part.numpy().ravel() for part in parts])
    assert_allclose(gradients[client], own, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "method",
    [FedAvg(), IFCA(n_clusters=2), FedAvg(batch_size=16)],
    ids=["FedAvg", "IFCA", "batches"],
)
def test_fits_equal_those_of_the_mlp(method):
    """20 rounds from the same start, in single precision."""
    X, y, groups = DATA.X, DATA.y, DATA.groups
    bound = MLP((200,)).bind(X.shape[1], 2)
    start = bound.start(3)
    method.set_params(max_iter=20, tol=0, random_state=0)
    ours = clone(method).set_params(model=Started((200,), first=start))
    ours.fit(X, y, groups=groups)
    theirs = clone(method).set_params(model=TorchModel(modules.as_module(bound, start)))
    theirs.fit(X, y, groups=groups)
    assert_array_equal(theirs.labels_, ours.labels_)
    own = np.array([modules.as_vector(bound, w) for w in ours.params_])
    assert_allclose(theirs.params_, own, atol=1e-4)
    proba = ours.predict_proba(X, groups=groups)
    assert_allclose(theirs.predict_proba(X, groups=groups), proba, atol=1e-4)
    assert theirs.calls_ == ours.calls_
    assert (theirs.floats_up_, theirs.floats_down_) == (ours.floats_up_, ours.floats_down_)


class Started(MLP):
    """MLP with a start that is given."""

    def __init__(self, hidden_layer_sizes=(100,), first=None):
        super().__init__(hidden_layer_sizes)
        self.first = first

    def start(self, random_state=None):
        return self.first
