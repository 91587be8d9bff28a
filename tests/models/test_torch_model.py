"""Modules of PyTorch as local models; skipped where PyTorch is not installed."""

import copy
import inspect
import pickle
import warnings
from functools import partial

import numpy as np
import pytest
from grouped import grouped
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.utils import Bunch, check_random_state

import skcfl
from skcfl import (
    IFCA,
    FedALA,
    FedAvg,
    FedAvgClassifier,
    FedPACClassifier,
    FedProtoClassifier,
    FedRep,
    Training,
)
from skcfl.base import BaseFederated
from skcfl.calls.first_order import (
    BestResponse,
    LocalUpdate,
    Losses,
    Objectives,
    ObjectivesGradients,
)
from skcfl.calls.kept_models import Recall
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.exceptions import MessageError, PrivacyError, UnitsWarning
from skcfl.federation import FanOutFederation, InProcessFederation, inprocess
from skcfl.federation.inprocess import open_rows
from skcfl.federation.serialization import dumps, loads
from skcfl.models import MLP, TorchModel
from skcfl.models._torch_runner import _check_ids
from skcfl.models.losses import LOSSES
from skcfl.models.losses.huber import Huber
from skcfl.testing import StrictFederation

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
    assert_allclose(torchs.ask(Losses, v[:2]), ours.ask(Losses, w[:2]), rtol=1e-12)
    both = torchs.ask(ObjectivesGradients, v), ours.ask(ObjectivesGradients, w)
    for own, other in zip(*both, strict=True):
        other = problem.as_module(other) if other.ndim == 2 else other
        assert_allclose(own, other, rtol=1e-10, atol=1e-13)
    assert_allclose(torchs.ask(Objectives, v), ours.ask(Objectives, w), rtol=1e-12)
    labels = np.array([0, 1, -1, 0, -1, 1])
    both = torchs.ask(BestResponse, v[:2], labels), ours.ask(BestResponse, w[:2], labels)
    for own, other in zip(*both, strict=True):
        other = problem.as_module(other) if other.shape == w.shape else other
        assert_allclose(own, other, rtol=1e-10, atol=1e-13)
    for optimizer, batch_size in [("sgd", None), ("momentum", 4), ("adam", 4)]:
        job = 5, 0.05, optimizer, batch_size
        other = problem.as_module(ours.ask(LocalUpdate, w, *job))
        assert_allclose(torchs.ask(LocalUpdate, v, *job), other, rtol=1e-8, atol=1e-10)


def test_gradients_of_some_layers_are_computed_alone():
    problem = Federation("log_loss")
    model, w = problem.torch, problem.as_module(problem.start)[0]
    runner, found = model._runner(), []
    runner.load(w)
    slopes = np.random.default_rng(0).normal(size=(len(problem.X), 3))
    for trained in (None, model.head_mask()):
        outputs, _ = runner.forward(problem.X)
        found.append(np.full(model.n_params, np.nan))
        runner.gradient([outputs], [slopes], found[-1], trained)
    head = model.head_mask()
    assert_array_equal(found[1][head], found[0][head])
    assert np.isnan(found[1][~head]).all()
    assert not np.isnan(found[0]).any()


class Started(MLP):
    """MLP with a start that is given, of rows as they are, and the penalty of modules."""

    def __init__(self, hidden_layer_sizes=(100,), first=None):
        super().__init__(hidden_layer_sizes, alpha=1e-4, standardize=False)
        self.first = first

    def start(self, random_state=None):
        return self.first


# ------------------------------------------------------------------ as a parameter


def net(**more):
    """A model of rows with ten features."""
    return TorchModel(modules.Net, **{"n_features": 10, **more})


SHORT = {"max_iter": 3, "training": Training(local_steps=3), "tol": 0, "random_state": 0}


def fitted(model, method=FedAvg, data=DATA, **more):
    options = SHORT | grouped(method, **{"local_steps": 3, **more})
    return method(model, **options).fit(data.X, data.y, groups=data.groups)


def elsewhere(data, first):
    """The clients in two places."""
    parts = [InProcessFederation(data.X[h], data.y[h], data.groups[h]) for h in (first, ~first)]
    return StrictFederation(FanOutFederation(parts))


def fitted_anywhere(*args, data=DATA, **more):
    """A fit that is the same for any number of threads and wherever clients are."""
    method = fitted(*args, data=data, **more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inprocess, "PARALLEL_WORK", 0)
        assert_array_equal(fitted(*args, data=data, n_jobs=2, **more).params_, method.params_)
    other = clone(method).fit_federation(elsewhere(data, data.groups > "client04"))
    assert_allclose(other.params_, method.params_, atol=1e-6)
    return method


@pytest.mark.parametrize(
    "method",
    [
        *(FedAvg(**SHORT), IFCA(n_clusters=2, **SHORT), FedRep(**SHORT)),
        FedAvg(**SHORT | {"max_iter": 20, "training": Training(batch_size=16)}),
        *(FedProtoClassifier(**SHORT), FedPACClassifier(**SHORT)),
        FedALA(blend_rate=10.0, **SHORT),
    ],
    ids=lambda method: type(method).__name__,
)
def test_fits_equal_those_of_the_mlp(method):
    """From the same start, in single precision; and models of new clients."""
    X, y, groups = DATA.X, DATA.y, DATA.groups
    bound = MLP((12,)).bind(X.shape[1], 2)
    start = bound.start(3)
    models = Started((12,), first=start), TorchModel(modules.as_module(bound, start))
    ours, theirs = (clone(method).set_params(model=model) for model in models)
    for fit in (ours, theirs):
        fit.fit(X, y, groups=groups)
    assert_array_equal(theirs.labels_, ours.labels_)
    own = np.array([modules.as_vector(bound, w) for w in ours.params_])
    assert_allclose(theirs.params_, own, atol=1e-4)
    proba = ours.predict_proba(X, groups=groups)
    assert_allclose(theirs.predict_proba(X, groups=groups), proba, atol=1e-4)
    assert theirs.calls_ == ours.calls_
    assert (theirs.floats_up_, theirs.floats_down_) == (ours.floats_up_, ours.floats_down_)
    new, everywhere = np.full(20, "new"), np.repeat("new", len(X))
    found, wanted = (
        fit.adapt(X[:20], y[:20], new).predict(X, everywhere) for fit in (theirs, ours)
    )
    assert_array_equal(found, wanted)


def test_parameters_of_the_class_are_parameters():
    model = net(hidden=5, alpha=0.1)
    assert model.get_params()["hidden"] == 5
    assert clone(model).get_params() == model.get_params()
    assert "hidden=5" in repr(model)
    method = FedAvg(model).set_params(model__hidden=7, model__norm=True, model__alpha=0.2)
    bound = method.model.bind(10, 2)
    assert (method.model.module_params["hidden"], bound.alpha_) == (7, 0.2)
    assert bound.n_params == 7 * 11 + 4 * 7 + 2 * 8
    assert clone(method).model.get_params() == method.model.get_params()
    with pytest.raises(ValueError, match="nothing"):
        FedAvg(model).set_params(nothing__hidden=3)


def test_pickle_and_copies():
    model = fitted(net(norm=True))
    other = pickle.loads(pickle.dumps(model))
    expected = model.predict_proba(DATA.X, groups=DATA.groups)
    assert_array_equal(other.predict_proba(DATA.X, groups=DATA.groups), expected)
    again = other.fit(DATA.X, DATA.y, groups=DATA.groups)
    assert_array_equal(again.predict_proba(DATA.X, groups=DATA.groups), expected)


def test_a_module_that_is_given_is_copied_and_where_training_starts():
    given = modules.Net(10)
    before = copy.deepcopy(given.state_dict())
    model = fitted(TorchModel(given), max_iter=1, local_steps=1, step_size=1e-30)
    for name, value in given.state_dict().items():
        assert torch.equal(value, before[name])
        assert torch.equal(model.client_model(DATA.groups[0]).state_dict()[name], value)
    fitted(TorchModel(given), IFCA, n_clusters=2, init="random")  # reset_parameters
    assert all(torch.equal(v, before[name]) for name, v in given.state_dict().items())


def test_starts_are_drawn_by_the_random_state_alone():
    bound, given = net().bind(10, 2), TorchModel(modules.Net(10)).bind(10, 2)
    before = torch.get_rng_state()
    one, two, other = (bound.init_params(3, seed) for seed in (0, 0, 1))
    assert_array_equal(one, two)
    assert (one != other).any()
    assert len(np.unique(one[:, 0])) == 3
    assert len(np.unique(given.init_params(3, 0)[:, 0])) == 3
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("precision", ["single", "double"])
def test_lazy_layers_are_drawn_by_the_random_state_alone(precision):
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    bound = TorchModel(lazy, precision=precision).bind(10, 2)
    before = torch.get_rng_state()
    one, two, other = (bound.start(seed) for seed in (0, 0, 1))
    assert_array_equal(one, two)
    assert (one != other)[:66].all()
    assert_array_equal(one[66:], other[66:])  # weights of the layer that was given
    assert_array_equal(pickle.loads(pickle.dumps(bound)).start(0), one)
    again = TorchModel(lazy, precision=precision).bind(10, 2)
    assert_array_equal(again.init_params(2, 0), bound.init_params(2, 0))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_client_s_model_is_the_module():
    model = fitted(net(norm=True, dropout=0.5), IFCA, n_clusters=2)
    for group in np.unique(DATA.groups)[:3]:
        module = model.client_model(group)
        assert type(module) is modules.Net
        assert not module.training
        rows = DATA.X[DATA.groups == group]
        with torch.no_grad():
            proba = module(torch.from_numpy(rows).float()).softmax(1).numpy()
        own = model.predict_proba(rows, groups=np.repeat(group, len(rows)))
        assert_allclose(proba, own, atol=1e-6)


# ------------------------------------------------------------------ losses and targets


def regression(**more):
    data = make_clustered_regression(n_clients=6, n_clusters=2, n_features=10, random_state=0)
    return TorchModel(modules.Net, n_features=10, n_outputs=1, **more), data


@pytest.mark.parametrize("loss", ["squared_error", "huber", Huber(delta=2.0)])
def test_regression(loss):
    model, data = regression(loss=loss)
    method = fitted(model, data=data)
    assert is_regressor(method)
    predicted = method.predict(data.X, groups=data.groups)
    assert predicted.shape == data.y.shape
    assert method.score(data.X, data.y, groups=data.groups) == r2_score(data.y, predicted)


def test_functions_as_losses():
    model, data = regression(loss=modules.smooth_l1_rows, task="regressor")
    huber = fitted(regression(loss=Huber(delta=1.0))[0], data=data)
    assert_allclose(fitted(model, data=data).params_, huber.params_, atol=1e-5)
    own = fitted(net(loss=modules.cross_entropy_rows, task="classifier"))
    named = fitted(net())
    assert is_classifier(own)
    assert not hasattr(own, "predict_proba")
    assert_allclose(own.params_, named.params_, atol=1e-5)
    assert_array_equal(
        own.predict(DATA.X, groups=DATA.groups), named.predict(DATA.X, groups=DATA.groups)
    )


@pytest.mark.parametrize("loss", ["squared_error", modules.squares_rows])
def test_reconstruction(loss):
    model = TorchModel(modules.Net, n_features=10, n_outputs=10, loss=loss, task="unsupervised")
    X, groups = DATA.X, DATA.groups
    method = IFCA(model, n_clusters=2, **SHORT).fit(X, groups=groups)
    away = (method.predict(X, groups=groups) - X) ** 2
    factor = 0.5 if loss == "squared_error" else 1.0
    assert_allclose(method.score(X, groups=groups), -factor * away.mean(), rtol=1e-5)


def test_one_output_of_two_classes_or_two():
    X, y, groups = DATA.X, DATA.y, DATA.groups
    for outputs in (1, 2):
        method = fitted(net(n_outputs=outputs))
        proba = method.predict_proba(X, groups=groups)
        assert proba.shape == (len(X), 2)
        scores = method.decision_function(X, groups=groups)
        assert_allclose(proba[:, 1], 1 / (1 + np.exp(-scores)), atol=1e-6)
        assert_array_equal(method.predict(X, groups=groups), method.classes_[(scores > 0) * 1])
        assert method.score(X, y, groups=groups) > 0.5
    weighted = fitted(net(class_weight={method.classes_[0]: 100.0}), step_size=0.05)
    assert (weighted.predict(X, groups=groups) == method.classes_[0]).mean() > 0.8


# ------------------------------------------------------------------ rows of any rank


def images():
    """Digits held two ways, as images with one channel."""
    digits = load_digits()
    X, y = (digits.images[:360] / 16)[:, None], digits.target[:360] % 2
    groups = np.arange(360) % 6
    turned = groups % 2 == 1
    X[turned] = np.rot90(X[turned], axes=(2, 3))
    return Bunch(X=X, y=y, groups=groups)


def test_images():
    data = images()
    method = fitted(TorchModel(modules.ConvNet), IFCA, data, n_clusters=2)
    flat = data.X.reshape(len(data.X), -1)
    same = TorchModel(modules.ConvNet, input_shape=(1, 8, 8))
    same = IFCA(same, n_clusters=2, **SHORT).fit(flat, data.y, groups=data.groups)
    assert_array_equal(method.params_, same.params_)
    proba = method.predict_proba(data.X, groups=data.groups)
    assert_array_equal(proba, same.predict_proba(flat, groups=data.groups))
    assert_array_equal(proba, method.predict_proba(flat, groups=data.groups))
    assert method.score(data.X, data.y, groups=data.groups) == same.score(
        flat, data.y, groups=data.groups
    )
    assert method.n_features_in_ == 64
    federation = elsewhere(data, data.groups < 2)
    other = clone(method).fit_federation(federation)
    assert_allclose(other.params_, method.params_, atol=1e-6)
    assert other.score_federation(federation) == pytest.approx(
        method.score(data.X, data.y, groups=data.groups)
    )


def test_rows_of_another_shape_are_refused():
    data = images()
    method = fitted(TorchModel(modules.ConvNet), data=data)
    with pytest.raises(
        ValueError, match=r"rows of shape \(8, 8\); fit had rows of shape \(1, 8, 8"
    ):
        method.predict(data.X[:, 0], groups=data.groups)
    for other in (FedAvg(), FedAvg(MLP()), FedAvgClassifier()):
        with pytest.raises(ValueError, match="X must have two axes"):
            other.fit(data.X, data.y, groups=data.groups)
        with pytest.raises(ValueError, match="X must have two axes"):
            other.fit_federation(InProcessFederation(data.X, data.y, data.groups))
    with pytest.raises(ValueError, match="group_col must be None"):
        FedAvg(TorchModel(modules.ConvNet), group_col=0).fit(data.X, data.y)
    with pytest.raises(ValueError, match=r"input_shape=\(1, 7, 7\) is 49 numbers"):
        fitted(TorchModel(modules.ConvNet, input_shape=(1, 7, 7)), data=data)
    halves = [
        InProcessFederation(X, data.y, data.groups) for X in (data.X, data.X.transpose(0, 2, 1, 3))
    ]
    halves[1].ids = halves[1].ids + 100
    with pytest.raises(ValueError, match="All rows must have one shape"):
        method.fit_federation(FanOutFederation(halves))


def tokens():
    """Rows of token ids; the words of a class are those of its half, which clusters swap."""
    rng = np.random.default_rng(0)
    y, groups = rng.integers(2, size=240), np.arange(240) % 6
    X = rng.integers(10, size=(240, 7)) + 10 * ((y + groups) % 2)[:, None]
    return Bunch(X=X, y=y, groups=groups)


def test_token_ids():
    data = tokens()
    model = TorchModel(modules.WordNet, input_dtype="int")
    method = fitted(model, IFCA, data, n_clusters=2, max_iter=10, step_size=0.05)
    assert_array_equal(method.labels_, [0, 1, 0, 1, 0, 1])
    assert method.score(data.X, data.y, groups=data.groups) == 1.0
    with pytest.raises(ValueError, match="X must hold integers"):
        method.predict(data.X + 0.5, groups=data.groups)
    with pytest.raises(ValueError, match="module failed on rows of X"):
        method.predict(data.X + 1, groups=data.groups)
    for more in (-1, 1):  # no such word, in one row
        X = data.X.copy()
        X[17, 3] = -1 if more < 0 else 20
        with pytest.raises(ValueError, match="X must hold integers|index out of range"):
            clone(method).fit(X, data.y, groups=data.groups)


@pytest.mark.parametrize(
    ("kind", "stacks"),
    [(torch.nn.Embedding, False), (torch.nn.Embedding, True), (torch.nn.EmbeddingBag, False)],
)
def test_embeddings_with_sparse_gradients_train_as_others(kind, stacks, monkeypatch):
    monkeypatch.setattr(TorchModel, "_stacks", lambda self: stacks)
    found = []
    for is_sparse in (False, True):
        layers = [kind(20, 2, sparse=is_sparse)]
        layers += [torch.nn.Flatten(), torch.nn.LazyLinear(2)]
        model = TorchModel(torch.nn.Sequential(*layers), input_dtype="int")
        bound = model.bind(7, 2)
        start = np.linspace(-1.0, 1.0, bound.n_params, dtype=np.float32)
        pool = open_rows(bound, *pooled(tokens()), random_state=0)
        found.append(pool.ask(LocalUpdate, start, 3, 0.1))
        assert bound.plain(start, None)[0].sparse == is_sparse
    assert_array_equal(*found)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(("ids", "got"), [([[0, 19]], None), ([[3, 20]], 20), ([[-1, 2]], -1)])
def test_ids_are_checked_where_a_gpu_would_stop_for_good(ids, got, stacked):
    module, x = modules.WordNet(), torch.tensor(ids)
    module.words.register_forward_pre_hook(_check_ids)
    call = torch.vmap(lambda x: module(x[None]), randomness="different") if stacked else module
    if got is None:
        assert torch.isfinite(call(x)).all()
        return
    with pytest.raises(IndexError, match=f"ids must be 0 to 19, got {got}."):
        call(x)


def test_what_a_gpu_needs_is_prepared():
    model = TorchModel(modules.WordNet, input_dtype="int", device="cpu")
    runner = model.bind(7, 2)._runner()
    assert not runner.module.words._forward_pre_hooks  # the processor checks ids by itself
    runner._prepare()
    assert list(runner.module.words._forward_pre_hooks.values()) == [_check_ids]


# ------------------------------------------------------------------ training


@pytest.mark.parametrize("batch_size", [None, 16])
def test_dropout_is_drawn_by_client_and_round(batch_size):
    """The same for any number of threads and wherever clients are; other seeds, other draws."""
    model = net(dropout=0.5)
    before = torch.get_rng_state()
    method = fitted_anywhere(model, batch_size=batch_size)
    assert torch.equal(torch.get_rng_state(), before)
    dry = fitted(net(), batch_size=batch_size)
    assert np.abs(dry.params_ - method.params_).max() > 1e-3
    pool = open_rows(model.bind(10, 2), *pooled(DATA), random_state=0)
    w = pool.start()
    first, second = (pool.ask(LocalUpdate, w, 1, 0.1) for _ in range(2))
    assert (first != second).any()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("stacks", [False, True])
def test_fits_are_the_same_where_gradients_are_off(mode, stacks, monkeypatch):
    monkeypatch.setattr(TorchModel, "_stacks", lambda self: stacks and self.stackable)
    loss = {"loss": modules.cross_entropy_rows, "task": "classifier"}
    for model in (net(), net(norm=True, dropout=0.1), net(**loss), TorchModel(modules.Net(10))):
        wanted = fitted(model, max_iter=1).params_
        with mode():
            found = fitted(model, max_iter=1)
        assert_array_equal(found.params_, wanted)
        other = found.client_model(DATA.groups[0]).train()
        other(torch.zeros(2, 10)).sum().backward()


def test_every_step_draws_anew():
    """Two steps of hardly any length go twice as far as one only where nothing is drawn."""
    moves = {}
    for dropout in (0.0, 0.5):
        bound = net(dropout=dropout, precision="double").bind(10, 2)
        for steps in (1, 2):
            pool = open_rows(bound, *pooled(DATA), random_state=0)
            w = pool.start()
            moves[dropout, steps] = pool.ask(LocalUpdate, w, steps, 1e-6) - w
    assert_allclose(moves[0.0, 2], 2 * moves[0.0, 1], rtol=1e-3, atol=1e-10)
    assert np.abs(moves[0.5, 2] - 2 * moves[0.5, 1]).max() > 1e-8


def pooled(data):
    codes = np.unique(data.groups, return_inverse=True)[1]
    return data.X, np.unique(data.y, return_inverse=True)[1], codes, codes.max() + 1


def test_buffers_are_averaged_and_predicted_with():
    """Running means after a step of no length are those of PyTorch, averaged by rows."""
    model = net(norm=True)
    method = fitted(model, max_iter=1, local_steps=2, step_size=1e-30)
    bound, start = method.model_, None
    X, _, codes, n = pooled(DATA)
    assert set(bound.layer_slices()) == {"body.0", "body.1", "fc"}
    assert bound.moved.sum() == bound.n_params - 16
    start = bound.start(check_random_state(0))
    states = []
    for i in range(n):
        module = bound.plain(start, None).train()
        for _ in range(2):
            module(torch.from_numpy(X[codes == i]).float())
        states.append(module.body[1].state_dict())
    shares = np.bincount(codes) / len(codes)
    own = method.client_model(DATA.groups[0]).body[1].state_dict()
    for name in ("running_mean", "running_var", "weight"):
        expected = sum(w * state[name] for w, state in zip(shares, states, strict=True))
        assert_allclose(own[name], expected, rtol=1e-4, atol=1e-6)
    assert own["num_batches_tracked"] == 0


def test_statistics_without_momentum_are_means_of_all_batches_of_a_round():
    """Of batches that are all rows in another order, that is the rows' mean, in every round."""
    given = torch.nn.Sequential(
        torch.nn.BatchNorm1d(10, momentum=None, affine=False), torch.nn.Linear(10, 2)
    )
    codes = pooled(DATA)[2]
    rows = np.concatenate([np.flatnonzero(codes == i)[:20] for i in range(8)])
    data = Bunch(X=DATA.X[rows], y=DATA.y[rows], groups=DATA.groups[rows])
    method = fitted(TorchModel(given), data=data, max_iter=2, local_steps=4, batch_size=10)
    norm = method.client_model(data.groups[0])[0]
    assert_allclose(norm.running_mean, data.X.mean(axis=0), rtol=1e-4, atol=1e-5)
    assert norm.num_batches_tracked == 0


def test_buffers_do_not_move_by_steps_or_pulls():
    model = net(norm=True)
    pool = open_rows(model.bind(10, 2), *pooled(DATA), random_state=0)
    w = pool.start()
    still = w.copy()
    buffers = ~pool.model.moved
    # Without training the running statistics stay; a pull to elsewhere moves the others only.
    centre = np.tile(w + 1, (pool.n_clients, 1))
    free = pool.ask(LocalUpdate, w, 3, 0.01)
    pulled = pool.ask(LocalUpdate, w, 3, 0.01, center=centre, rho=5.0)
    assert (free[:, ~buffers] != pulled[:, ~buffers]).all()
    # The first batch sees the same layer below, so that after a step its mean is the same.
    one, two = (pool.ask(LocalUpdate, w, 1, 0.01, center=c, rho=5.0) for c in (None, centre))
    assert_array_equal(one[:, buffers], two[:, buffers])
    assert (one[:, buffers] != still[buffers]).any()


def test_batches_of_one_row_are_normalised_by_what_is_known():
    rows = np.arange(9)
    codes = np.zeros(9, dtype=int)
    bound = net(norm=True).bind(10, 2)
    pool = open_rows(bound, DATA.X[:9], rows % 2, codes, 1, random_state=0)
    assert np.isfinite(pool.ask(LocalUpdate, pool.start(), 5, 0.01, "adam", batch_size=4)).all()


def test_gradient_averaging_is_refused_where_steps_tell_more():
    for more in ({"norm": True}, {"dropout": 0.5}):
        with pytest.raises(ValueError, match="averaging must be 'model'"):
            fitted(net(**more), averaging="gradient", step_size=0.1)
    fitted(net(), averaging="gradient", step_size=0.1)


def test_what_needs_no_gradient_stays():
    given = modules.Net(10)
    given.body[0].requires_grad_(False)
    model = fitted(TorchModel(given))
    weight = model.client_model(DATA.groups[0]).body[0].weight
    assert torch.equal(weight, given.body[0].weight)
    assert model.alpha_ == 1e-4


class Fixed(torch.nn.Module):
    """A parameter that is frozen, in a part that cannot draw it."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((10,), 3.0), requires_grad=False)

    def forward(self, x):
        return self.scale * x


def test_starts_that_are_drawn_keep_what_needs_no_gradient():
    given = torch.nn.Sequential(Fixed(), modules.Net(10, norm=True))
    body, norm = given[1].body[:2]
    body.weight.requires_grad_(False)  # but not its biases
    norm.requires_grad_(False)
    norm.running_mean += 1.0
    model = fitted(TorchModel(given), IFCA, n_clusters=2, init="random", max_iter=1)
    for made in map(model.client_model, np.unique(DATA.groups)):
        assert torch.equal(made[0].scale, given[0].scale)
        assert torch.equal(made[1].body[0].weight, body.weight)
        assert not torch.equal(made[1].body[0].bias, body.bias)
    starts = [model.model_.plain(w, None)[1] for w in model.model_.init_params(2, 0)]
    assert torch.equal(starts[0].body[1].running_mean, norm.running_mean)
    for one, other in ((starts[0], starts[1]), (starts[0], given[1])):
        assert not torch.equal(one.fc.weight, other.fc.weight)
        assert not torch.equal(one.body[0].bias, other.body[0].bias)


# ------------------------------------------------------------------ layers


def test_shared_layers_by_name_and_prefix():
    method = fitted(net(norm=True), IFCA, n_clusters=2, shared_layers="body")
    apart = np.ptp(method.cluster_params_, axis=0) > 0
    shared = np.zeros(len(apart), dtype=bool)
    for name, place in method.model_.layer_slices().items():
        shared[place] = name.startswith("body.")
    assert not apart[shared].any()
    assert apart[~shared].any()
    with pytest.raises(ValueError, match=r"the layers of the local model are \['body.0'"):
        fitted(net(), IFCA, n_clusters=2, shared_layers="bod")


def test_the_last_layer_is_that_named():
    for more, first in (({}, "fc"), ({"head": "fc"}, "fc"), ({"head": "body"}, "body.0")):
        bound = net(**more).bind(10, 2)
        mask = np.zeros(bound.n_params, dtype=bool)
        mask[bound.layer_slices()[first]] = True
        assert_array_equal(bound.head_mask(), mask)
        assert bound.n_representation == (8 if first == "fc" else 10)
    with pytest.raises(ValueError, match="head must be the name of a part"):
        net(head="nothing").bind(10, 2)
    method = fitted(net(), FedRep)
    apart = np.ptp(method.params_, axis=0) > 0
    assert not apart[~method.model_.head_mask()].any()
    assert apart[method.model_.head_mask()].any()


def test_representations_need_a_layer_that_has_one():
    X, y, groups = DATA.X, DATA.y, DATA.groups
    with pytest.raises(ValueError, match="model must have a layer below"):
        FedProtoClassifier(model=TorchModel(torch.nn.Linear(10, 2))).fit(X, y, groups=groups)
    with pytest.raises(ValueError, match="head must name a linear layer"):
        FedProtoClassifier(model=net(head="body")).fit(X, y, groups=groups)
    with pytest.raises(ValueError, match="model must be a classifier"):
        FedPACClassifier(model=MLP(loss="squared_error")).fit(X, y, groups=groups)


# ------------------------------------------------------------------ what is refused


class Stubborn(torch.nn.Linear):
    def __deepcopy__(self, memo):
        raise RuntimeError("not to be copied")


REFUSED = [
    (TorchModel(3), TypeError, "module must be a torch.nn.Module, a class"),
    (TorchModel(dict), TypeError, "module must make a torch.nn.Module"),
    (TorchModel(modules.Net(10), hidden=3), ValueError, "module is a module already"),
    (TorchModel(lambda: modules.Net(10)), ValueError, "module must be something that can be cop"),
    (net(loss=lambda z, y: z, task="regressor"), ValueError, "loss must be something that can"),
    (net(n_outputs=3), ValueError, "module must have 1 outputs per row for loss='log_loss' and 2"),
    (net(loss="squared_hinge"), ValueError, "1 outputs per row for loss='squared_hinge' and 2"),
    (net(n_features=9), ValueError, r"module cannot take rows of shape \(10,\)"),
    (net(loss="nothing"), ValueError, "loss"),
    (net(loss=modules.cross_entropy_rows), ValueError, "task must be 'classifier'"),
    (net(task="regressor"), ValueError, "makes a classifier, got task='regressor'"),
    (net(task="unsupervised"), ValueError, "task='unsupervised' goes with loss='squared_error'"),
    (net(input_shape=(10.0,)), ValueError, "input_shape must hold positive integers"),
    (net(input_shape=(-10, -1)), ValueError, "input_shape must hold positive integers"),
    (net(device="abacus"), ValueError, "device='abacus' is not there"),
    (net(alpha=-1.0), ValueError, "alpha"),
    (net(precision="half"), ValueError, "precision"),
    (TorchModel(torch.nn.ReLU), ValueError, "module must have parameters"),
    (TorchModel(torch.nn.Embedding, num_embeddings=3, embedding_dim=2), ValueError, "input_dtype"),
    (TorchModel(modules.Wrong, how="scalar"), ValueError, "one entry per row"),
    (TorchModel(modules.Wrong, how="tuple"), ValueError, "must return a tensor"),
    (TorchModel(modules.Wrong, how="int"), ValueError, "module must return floats"),
    (TorchModel(modules.Wrong, how="tuple in training"), ValueError, "'tuple'> for 2.*train mode"),
    (
        TorchModel(modules.Wrong, how="shape in training"),
        ValueError,
        "as many numbers in both modes",
    ),
    (TorchModel(modules.Wrong, how="complex"), ValueError, r"complex parameters, got \['turn'\]"),
    (TorchModel(modules.Wrong, how="drawn"), ValueError, "not draw random numbers in eval mode"),
    (TorchModel(modules.Wrong, how="beside others"), ValueError, "predict each row by itself"),
    (TorchModel(modules.Wrong, how="in time"), ValueError, "first axis for time need batch_first"),
    (TorchModel(modules.Wrong, how="log"), ValueError, "outputs that are not finite on rows of X"),
]


@pytest.mark.parametrize(("model", "kind", "match"), REFUSED, ids=[case[2] for case in REFUSED])
def test_refused_before_the_first_round(model, kind, match):
    method = FedAvg(model, **SHORT)
    with pytest.raises(kind, match=match):
        method.fit(DATA.X, DATA.y, groups=DATA.groups)
    assert not hasattr(method, "groups_")


def test_a_module_that_cannot_be_copied():
    method = FedAvg(TorchModel(Stubborn(10, 2)), **SHORT)
    with pytest.raises(ValueError, match="module must be something that can be copied"):
        method.fit(DATA.X, DATA.y, groups=DATA.groups)


def test_bad_losses_and_targets():
    model, data = regression(loss="poisson")
    with pytest.raises(ValueError, match="y must be non-negative"):
        fitted(model, data=data)
    for loss, match in (
        (modules.mean_loss, "one number per row"),
        (modules.log_of_target, "finite"),
    ):
        with pytest.raises(ValueError, match=match):
            fitted(regression(loss=loss, task="regressor")[0], data=data)
    with pytest.raises(TypeError, match="X must be dense"):
        FedAvg(net(), **SHORT).fit(sparse.csr_array(DATA.X), DATA.y, groups=DATA.groups)
    with pytest.raises(ValueError, match="class_weight is for classifiers"):
        fitted(regression(loss="huber", class_weight="balanced")[0], data=data)


# ------------------------------------------------------------------ several clients at once


@pytest.mark.parametrize("kind", ["rows", "images", "tokens"])
def test_stacked_clients_are_those_one_after_the_other(kind, monkeypatch):
    """What a GPU would do, here on the processor: padding, penalty and batches included."""
    model, data = {
        "rows": (net(alpha=0.1), DATA),
        "images": (TorchModel(modules.ConvNet), images()),
        "tokens": (TorchModel(modules.WordNet, input_dtype="int"), tokens()),
    }[kind]
    keep = np.arange(len(data.y)) % 7 < 5  # clients of unlike sizes
    data = Bunch(X=data.X[keep], y=data.y[keep], groups=data.groups[keep])
    plain = fitted(model, data=data, batch_size=9)
    monkeypatch.setattr(TorchModel, "_stacks", lambda self: self.stackable)
    stacked = fitted(model, data=data, batch_size=9)
    assert stacked.model_.stackable and stacked.model_.n_states > 8
    assert_allclose(stacked.params_, plain.params_, atol=2e-5)
    drawing = net(dropout=0.5)
    assert not fitted(drawing).model_.stackable


# ------------------------------------------------------------------ buffers of the clients' own


def shifted():
    """The data of two clusters, each client's features in other units."""
    rng = np.random.default_rng(0)
    ids, codes = np.unique(DATA.groups, return_inverse=True)
    scale, level = rng.uniform(0.5, 4.0, (2, len(ids), DATA.X.shape[1]))
    X = scale[codes] * DATA.X + level[codes]
    return Bunch(X=X, y=DATA.y, groups=DATA.groups)


class Normed(modules.Net):
    """Normalises the rows before anything else."""

    def __init__(self, n_features=10):
        super().__init__(n_features)
        self.norm = torch.nn.BatchNorm1d(n_features, momentum=0.3)

    def forward(self, x):
        return super().forward(self.norm(x))


modules.Normed = Normed
Normed.__module__ = "torch_modules"
Normed.__qualname__ = "Normed"


def test_buffers_of_the_clients_own():
    """They are those of each client's rows, however models are averaged, and predicted with."""
    data = shifted()
    X, _, codes, n = pooled(data)
    options = {"max_iter": 8, "local_steps": 5}
    method = fitted(
        TorchModel(modules.Normed, buffers="local"), IFCA, data, n_clusters=2, **options
    )
    for i, group in enumerate(method.groups_):
        module = method.client_model(group)
        assert_allclose(module.norm.running_mean, X[codes == i].mean(axis=0), rtol=1e-3)
    common = fitted(TorchModel(modules.Normed), IFCA, data, n_clusters=2, **options)
    scores = [m.score(data.X, data.y, groups=data.groups) for m in (method, common)]
    assert scores[0] > scores[1] + 0.03
    # Everything else is the cluster's.
    others = ~method.model_.own
    assert_array_equal(
        method.params_[:, others], method.cluster_params_[method.labels_][:, others]
    )
    assert (np.ptp(method.params_, axis=0)[method.model_.own] > 0).any()


def test_buffers_of_their_own_do_not_travel():
    """What comes back from training is what was sent; recall publishes."""
    data = shifted()
    bound = TorchModel(modules.Normed, buffers="local").bind(10, 2)
    pool = open_rows(bound, *pooled(data), random_state=0)
    w = pool.start()
    first = pool.ask(LocalUpdate, w, 3, 0.01, "adam", batch_size=9)
    assert_array_equal(first[:, bound.own], np.tile(w[bound.own], (pool.n_clients, 1)))
    mine = pool.ask(Recall, first)
    assert (mine[:, bound.own] != first[:, bound.own]).any(axis=1).all()
    assert_array_equal(mine[:, ~bound.own], first[:, ~bound.own])
    # In a first round they are what a model that averages sends.
    other = open_rows(TorchModel(modules.Normed).bind(10, 2), *pooled(data), random_state=0)
    other.start()
    assert_allclose(mine, other.ask(LocalUpdate, w, 3, 0.01, "adam", batch_size=9), rtol=1e-5)
    # Judged with what they keep: as by a model that averages, given these buffers.
    assert_allclose(pool.ask(Objectives, first), other.ask(Objectives, mine), rtol=1e-6)
    diagonal = np.diag(other.ask(Losses, mine))
    assert_allclose(np.diag(pool.ask(Losses, first)), diagonal, rtol=1e-5)
    # A client not heard of goes by what it is sent.
    fresh = open_rows(bound, *pooled(data), random_state=0)
    assert_allclose(np.diag(fresh.ask(Losses, mine)), diagonal, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.* fewer clients than least_clients")
def test_noise_is_refused_for_running_statistics():
    """Not for those that stay at the clients; sums without noise average them."""
    clients = InProcessFederation(DATA.X, DATA.y, DATA.groups)
    bounds = {"features": (-2, 2), "classes": np.unique(DATA.y)}
    for buffers in ("average", "local"):
        noisy = clients.private(100.0, bounds=bounds, random_state=0)
        norm = net(norm=True, buffers=buffers)
        for method in (FedAvg(norm, max_iter=1), FedRep(norm, max_iter=1)):
            with pytest.raises(PrivacyError, match=r"the layers \['body.1'\] of the module"):
                method.fit_federation(noisy)
        FedRep(norm, max_iter=1, shared_layers=["body.0"]).fit_federation(noisy)
    with pytest.raises(ValueError, match="bounds must declare 'classes' for a classifier"):
        undeclared = clients.private(100.0, bounds={"features": (-2, 2)})
        FedAvg(net(n_outputs=3)).fit_federation(undeclared)
    for method in (FedAvg, partial(IFCA, n_clusters=2)):
        masked = method(net(norm=True), max_iter=1)
        masked.fit_federation(clients.masked(3, bounds=bounds))
        assert (masked.cluster_params_[:, masked.model_.statistics][:, 8:] > 0).all()
        # Statistics that clients keep would be published as those of the module as it was given.
        kept = method(net(norm=True, buffers="local"), max_iter=1)
        with pytest.raises(
            PrivacyError, match=r"layers \['body.1'\] .* keep with buffers='local'"
        ):
            kept.fit_federation(clients.masked(3, bounds=bounds))


@pytest.mark.parametrize("method", [FedAvg, FedRep, partial(IFCA, n_clusters=2)])
def test_noise_does_not_move_what_needs_no_gradient(method):
    given = modules.Net(10)
    given.body[0].weight.requires_grad_(False)
    bounds = {"features": (-2, 2), "classes": np.unique(DATA.y)}
    noisy = InProcessFederation(DATA.X, DATA.y, DATA.groups).private(100.0, bounds=bounds)
    found = method(TorchModel(given), max_iter=1).fit_federation(noisy)
    made = found.model_.plain(found.cluster_params_[0], None)
    assert torch.equal(made.body[0].weight, given.body[0].weight)
    assert not torch.equal(made.body[0].bias, given.body[0].bias)


def test_buffers_of_their_own_wherever_clients_are():
    data = shifted()
    model = TorchModel(modules.Normed, buffers="local")
    method = fitted_anywhere(model, IFCA, data=data, n_clusters=2, hold_out=0.3)
    personal = fitted(model, FedRep, data)
    assert (np.ptp(personal.params_, axis=0)[personal.model_.own] > 0).any()
    adapted = method.adapt(data.X[:40], data.y[:40], np.full(40, "new"))
    assert len(adapted.params_) == len(method.params_) + 1
    with pytest.raises(ValueError, match="buffers must be 'average' where models are judged"):
        elsewhere(data, data.groups < "client04").open_with_folds(method.model_)[1].deal(3, 0)


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_frozen_layers_keep_their_running_statistics(buffers):
    """Those that are shared stay as fitted; those of the clients' own follow the new rows."""
    method = fitted(net(norm=True, buffers=buffers), FedRep)
    shared, bound = method.cluster_params_[0], method.model_
    adapted = method.adapt(2 * DATA.X[:20] + 1, DATA.y[:20], np.full(20, "new"))
    found = adapted.params_[list(adapted.groups_).index("new")]
    others = ~bound.head_mask() & ~bound.statistics
    assert_array_equal(found[others], shared[others])
    same = found[bound.statistics] == shared[bound.statistics]
    assert same.all() if buffers == "average" else not same.any()


# ------------------------------------------------------------------ wherever models go

GENERIC = [
    cls
    for name, cls in vars(skcfl).items()
    if isinstance(cls, type)
    and issubclass(cls, BaseFederated)
    and "model" in inspect.signature(cls).parameters
    and name not in {"ConvexClusteredFL", "PartialPooling"}
]


@pytest.mark.parametrize("cls", GENERIC, ids=lambda cls: cls.__name__)
def test_every_method_trains_modules(cls):
    """Through messages, with a network that draws and has buffers."""
    few = DATA.groups < "client04"
    X, y, groups = DATA.X[few], DATA.y[few], DATA.groups[few]
    own = inspect.signature(cls).parameters
    wanted = {"max_iter": 2, "local_steps": 2, "tol": 1e3, "random_state": 0, "n_clusters": 2}
    options = grouped(cls, **wanted)
    options = {name: value for name, value in options.items() if name in own}
    if cls in (skcfl.FPFC, skcfl.GTV):
        options |= {"lam": 0.01, "refit": False}
    options |= {"labels": np.arange(4) % 2} if cls is skcfl.OracleClusters else {}
    method = cls(model=net(norm=True, dropout=0.1), **options)
    federation = StrictFederation(InProcessFederation(X, y, groups))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        method.fit_federation(federation)
    predicted = method.predict(X, groups=groups)
    assert set(predicted) <= set(y)


def test_organisations_take_classes_that_they_trust():
    bound = net(norm=True).bind(10, 2)
    message = dumps(bound)
    with pytest.raises(MessageError, match="torch_modules.Net, which is not trusted"):
        loads(message)
    other = loads(message, trusted=("torch_modules",))
    assert_array_equal(other.start(0), bound.start(0))
    with pytest.raises(MessageError):
        dumps(TorchModel(modules.Net(10)).bind(10, 2))


def squares(output, target):
    return (output[:, 0] - target) ** 2


def test_targets_far_from_unit_size():
    """Of a named loss; what a function's size should be is not known."""
    X, groups = DATA.X, DATA.groups
    y = 1e4 * X[:, 0]
    linear = TorchModel(torch.nn.Linear(X.shape[1], 1), loss="squared_error")
    with pytest.warns(UnitsWarning, match="unit size.*Scale both"):
        FedAvg(linear, **SHORT).fit(X, y, groups=groups)
    square = TorchModel(linear.module, loss=squares, task="regressor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        FedAvg(square, **SHORT).fit(X, y, groups=groups)
