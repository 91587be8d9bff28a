"""Fits that were cut off go on from their checkpoint to the same result, to the bit."""

import errno
import os
from functools import partial
from itertools import product

import numpy as np
import pytest
from cases import CLASSES, DATA, EVERYDAY, make
from numpy.testing import assert_array_equal
from pickled_hosts import PickledHost, named, parts_of
from site_tables import Given, Wire
from sklearn.base import clone
from trials import one_a_method, spread

import skcfl
from skcfl import FedAvgRegressor, IFCARegressor, LocalModels, datasets
from skcfl.exceptions import CheckpointError, FederationError
from skcfl.federation import Faults, InProcessFederation, journal
from skcfl.federation.journal import Journal, digest
from skcfl.federation.remote import RemoteFederation
from skcfl.models import Location

FITTED = ["params_", "labels_", "cluster_params_", "objective_", "cluster_centers_", "calls_"]
FITTED += ["client_labels_", "floats_up_", "floats_down_", "missing_clients_", "n_iter_"]
#: What a clock or a wire says, of the process that asked.
MEASURED = {"seconds", "bytes_up", "bytes_down"}

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


class Killed(BaseException):
    """What a kill is for code that writes nothing when it comes."""


@pytest.fixture
def journals(monkeypatch):
    """All journals of a test; ``journals.most`` answers are added to each before it is killed."""

    class Journals(list):
        most = None

    made = Journals()

    class Watched(Journal):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

        def add(self, *args):
            super().add(*args)
            if made.most is not None and self.n_added >= made.most:
                raise Killed

        def close(self, ended):
            self.n_left = sum(map(len, self._places.values()))
            if self._file is not None and not ended:
                self._waiting = []  # a process that is killed writes nothing more
            super().close(ended)

    monkeypatch.setattr("skcfl.base.checkpointing.Journal", Watched)
    return made


def here(name="IFCARegressor", **settings):
    data = CLASSES if "Classifier" in name else DATA
    return InProcessFederation(data.X, data.y, data.groups, **settings)


def elsewhere(name):
    parts = named(parts_of(CLASSES if "Classifier" in name else DATA, 3))
    return RemoteFederation([PickledHost(parts[k::2]) for k in (0, 1)])


def of(name):
    return skcfl.KFED(n_clusters=3, random_state=0) if name == "KFED" else make(name, max_iter=6)


def assert_same(found, wanted):
    for name in FITTED:
        if hasattr(wanted, name):
            assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
    history = getattr(wanted, "history_", {})
    for name in history.keys() - MEASURED:
        assert_array_equal(found.history_[name], history[name], err_msg=name)


def cut_off(model, federation, path, journals, most, **options):
    """Fit until so many answers have come."""
    journals.most = most
    with pytest.raises(Killed):
        model.fit_federation(federation, path, every=0, **options)
    journals.most = None
    assert federation.journal is None  # another fit to the same clients has none
    return journals[-1]


def resumed(model, federation, path, journals):
    """The fit that goes on; all that was answered before is found, and none of it is left."""
    model.fit_federation(federation, path, resume=True)
    assert journals[-1].n_left == 0
    assert not path.exists()
    return model


def goes_on(model, federation, path, journals, share=0.5):
    """A fit, and the same one that goes on after so many of its calls: equal, and asked once."""
    wanted = model().fit_federation(federation(), path)
    calls = journals[-1].n_added
    cut_off(model(), federation(), path, journals, int(share * calls))
    data = path.read_bytes()
    found = resumed(model(), federation(), path, journals)
    assert_same(found, wanted)
    assert journals[-1].n_found + journals[-1].n_added == calls
    return found, wanted, data


@pytest.mark.parametrize("name", [*spread(one_a_method(EVERYDAY), 11), "KFED"])
def test_every_method_goes_on(name, tmp_path, journals):
    """Killed after the first answer, and again in the middle: nothing is asked twice."""
    path = tmp_path / "fit"
    wanted = of(name).fit_federation(here(name), path)
    calls = journals[-1].n_added
    assert_same(wanted, of(name).fit_federation(here(name)))
    cut_off(of(name), here(name), path, journals, 1)
    if calls > 2:
        half = cut_off(of(name), here(name), path, journals, calls // 2, resume=True)
        assert half.n_found == 1
    assert_same(resumed(of(name), here(name), path, journals), wanted)
    assert journals[-1].n_found == 1 + calls // 2
    assert journals[-1].n_found + journals[-1].n_added == calls


@pytest.mark.parametrize(
    ("name", "share"),
    spread(product(["ConvexClusteredFLRegressor", "FPFCClassifier"], [0.5, 0.98]), 2),
)
def test_searches_at_the_server_go_on(name, share, tmp_path, journals):
    """The server computes by second moments or expansions what no client answers."""
    kind = "classification" if "Classifier" in name else "regression"
    make_rows = getattr(datasets, f"make_clustered_{kind}")
    data = make_rows(4, 2, 3, n_samples=20, random_state=0)
    search = skcfl.LamSearch(lams=[0.1, 0.6])
    model = partial(getattr(skcfl, name), random_state=0, search=search, alpha=0.01)
    places = partial(InProcessFederation, data.X, data.y, data.groups)
    found, wanted, _ = goes_on(model, places, tmp_path / "fit", journals, share)
    assert found.lam_ == wanted.lam_
    assert journals[-1].n_found == journals[-2].n_added


@pytest.mark.parametrize("parameters", [{"basis": "splines"}, {"crossed": [4]}], ids=str)
def test_columns_that_are_made_of_others(parameters, tmp_path, journals):
    """The clients are opened with several sets of columns, whose answers are kept apart."""
    X = np.column_stack([DATA.X, np.arange(len(DATA.X)) % 5])
    places = partial(InProcessFederation, X, DATA.y, DATA.groups)
    model = partial(skcfl.PartialPoolingRegressor, 1, random_state=0, max_iter=4, **parameters)
    goes_on(model, places, tmp_path / "fit", journals)
    assert journals[0].n_added > 20


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("IFCARegressor", 0.3),
        ("DittoRegressor", 0.9),
        ("ConvexClusteredFLClassifier", 0.3),
        ("FedRepRegressor", 0.9),
    ],
)
def test_hosts_that_were_started_anew(name, share, tmp_path, journals):
    goes_on(partial(of, name), partial(elsewhere, name), tmp_path / "fit", journals, share)


def test_networks_with_parts_of_their_own(tmp_path, journals):
    pytest.importorskip("torch")
    from torch_modules import Net

    from skcfl.models import TorchModel

    local = TorchModel(Net(norm=True), buffers="local")
    model = skcfl.FedAvg(local, max_iter=4).set_params(random_state=0)
    places = partial(here, "Classifier")
    goes_on(partial(clone, model), places, tmp_path / "fit", journals)


@pytest.mark.parametrize("draws", [None, "generator"])
def test_fits_without_a_seed(draws, tmp_path, journals):
    """Whoever resumes draws as the fit that was cut off."""
    path = tmp_path / "fit"

    def model():
        state = None if draws is None else np.random.RandomState(3)
        return IFCARegressor(n_clusters=3, random_state=state, max_iter=3, init="random")

    before = np.random.get_state()[1].copy()
    cut_off(model(), here(), path, journals, 40)
    data = path.read_bytes()
    found = []
    for _ in range(2):
        path.write_bytes(data)
        found.append(resumed(model(), here(), path, journals))
    assert_same(*found)
    assert found[0].random_state is None or draws is not None
    assert_array_equal(np.random.get_state()[1], before)


def losing(after, **settings):
    """Two hosts, the second of which is lost after so many messages."""
    parts = named(parts_of(DATA, 3))
    hosts = [PickledHost(parts[k::2]) for k in (0, 1)]
    hosts[1].lost_after = after
    return RemoteFederation(hosts, **settings), hosts[1]


def test_silent_clients_are_silent_again(tmp_path, journals):
    """What was not answered is in the journal, too: who was away is as it was."""
    path, model = tmp_path / "fit", partial(of, "GTVRegressor")
    wanted = model().fit_federation(losing(9, retries=2)[0], path)
    calls = journals[-1].n_added
    assert len(wanted.missing_clients_) == 3
    cut_off(model(), losing(9, retries=2)[0], path, journals, calls - 1)
    found = resumed(model(), losing(None, retries=2)[0], path, journals)
    assert journals[-1].n_found >= calls - 1
    assert_array_equal(found.labels_, wanted.labels_)
    assert_array_equal(found.params_, wanted.params_)


def test_a_place_is_reachable_as_it_was(tmp_path, journals):
    """Or silent clients would be asked more often than before, and the answers not be found."""
    path, model = tmp_path / "fit", partial(of, "IFCARegressor")
    (whole, first), (cut, second), (again, third) = (losing(n, retries=5) for n in (9, 9, None))
    first.reachable = second.reachable = False
    third.reachable = True
    wanted = model().fit_federation(whole, path)
    cut_off(model(), cut, path, journals, journals[-1].n_added - 1)
    assert second.n_asked <= first.n_asked
    found = resumed(model(), again, path, journals)
    assert third.n_asked < first.n_asked / 2
    assert_array_equal(found.params_, wanted.params_)


def test_lost_answers_of_clients_that_remember(tmp_path, journals):
    """A client does again what it did, and not what it has missed."""
    path = tmp_path / "fit"
    faults = Faults(dropout=0.4, random_state=0)
    cut_off(of("DittoRegressor"), here(faults=faults), path, journals, 20)
    found = resumed(of("DittoRegressor"), here(), path, journals)
    assert np.isfinite(found.params_).all() and journals[-1].n_found == 20


def wire_federation():
    first = DATA.groups < "client05"
    parts = ("north", first), ("south", ~first)
    return RemoteFederation(
        [Wire(Given(name, (DATA.X[m], DATA.y[m], DATA.groups[m]))) for name, m in parts]
    )


def test_sites_with_rows_of_their_own(tmp_path, journals):
    model = partial(of, "ConvexClusteredFLRegressor")
    found, wanted, data = goes_on(model, wire_federation, tmp_path / "fit", journals)
    for number in (*DATA.X[:3].ravel(), *DATA.y[:3]):
        assert np.float64(number).tobytes() not in data
    # Those of the fit that was cut off count, and so does what had to be asked again.
    for got, least in zip(found.wire_bytes_, wanted.wire_bytes_, strict=True):
        assert least <= got < 1.5 * least


# ----------------------------------------------------------------- files that are wrong


@pytest.fixture
def begun(tmp_path, journals):
    """The checkpoint of a fit that was cut off, and its bytes."""
    path = tmp_path / "fit"
    cut_off(of("IFCARegressor"), here(), path, journals, 10)
    return path, path.read_bytes()


def resume(path, model=None, federation=None):
    model = of("IFCARegressor") if model is None else model
    return model.fit_federation(here() if federation is None else federation, path, resume=True)


def test_a_last_record_that_is_not_whole(begun, journals):
    path, data = begun
    path.write_bytes(data[:-7])
    found = resume(path)
    assert journals[-1].n_found == 9
    assert_same(found, of("IFCARegressor").fit_federation(here()))


def test_a_checkpoint_is_not_written_over(begun):
    path, data = begun
    with pytest.raises(CheckpointError, match="resume=True goes on from it"):
        of("IFCARegressor").fit_federation(here(), path)
    assert path.read_bytes() == data


def test_without_a_checkpoint_the_fit_begins(tmp_path):
    path = tmp_path / "fit"
    assert_same(resume(path), of("IFCARegressor").fit_federation(here()))


@pytest.mark.parametrize("place", [0.02, 0.3, 0.7])
def test_damage(begun, place):
    path, data = begun
    at = int(place * len(data))
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(CheckpointError, match="is damaged|cannot be read"):
        resume(path)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", journal.MAGIC, journal.MAGIC + bytes(500)])
def test_other_files(tmp_path, data):
    path = tmp_path / "fit"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="is no checkpoint|has no header|is damaged"):
        resume(path)
    assert path.read_bytes() == data


def test_checkpoints_of_other_fits(begun, monkeypatch):
    path, data = begun
    with pytest.raises(CheckpointError, match=r"is of another estimator.*IFCAClassifier \w+ here"):
        resume(path, of("IFCAClassifier"), here("Classifier"))
    with pytest.raises(CheckpointError, match="or of other parameters"):
        resume(path, of("IFCARegressor").set_params(alpha=0.5))
    with pytest.raises(CheckpointError, match="is of other clients: numbers of rows, weights"):
        resume(path, federation=InProcessFederation(DATA.X[:60], DATA.y[:60], DATA.groups[:60]))
    with pytest.raises(CheckpointError, match="a place answers moments otherwise than before"):
        resume(path, federation=InProcessFederation(DATA.X + 1e-3, DATA.y, DATA.groups))
    monkeypatch.setattr(journal, "versions", lambda: ["9.9", "other calls"])
    with pytest.raises(CheckpointError, match=r"was written by skcfl '0\.1\.0' and its calls"):
        resume(path)
    monkeypatch.undo()
    assert path.read_bytes() == data
    of("IFCARegressor").set_params(verbose=0, n_jobs=2).fit_federation(here(), path, resume=True)


@pytest.mark.reports
@pytest.mark.parametrize("name", ["IFCAClassifier", "FedAvgRegressor", "PartialPoolingRegressor"])
@pytest.mark.parametrize("what", ["targets of some clients", "rows in another order"])
def test_other_rows_with_the_same_moments(name, what, tmp_path, journals):
    """What the fit had answered is not taken for what it would be answered now."""
    data = CLASSES if "Classifier" in name else DATA
    ids, path = np.unique(data.groups), tmp_path / "fit"
    one, other = np.flatnonzero(data.groups == ids[0]), np.flatnonzero(data.groups == ids[1])
    order = np.arange(len(data.y))
    n = min(len(one), len(other))
    order[one[:n]], order[other[:n]] = other[:n], one[:n]
    if what == "rows in another order":
        order = np.roll(np.arange(len(data.y)), 1)

    def model():
        return of(name).set_params(standardize=False)

    cut_off(model(), here(name), path, journals, 20)
    changed = InProcessFederation(data.X, np.asarray(data.y)[order], data.groups)
    with pytest.raises(CheckpointError, match="is of other rows: a place answers"):
        model().fit_federation(changed, path, resume=True)
    assert_same(
        model().fit_federation(here(name), path, resume=True), model().fit_federation(here(name))
    )


def test_sums_do_not_depend_on_the_order_of_sites():
    """Not to the last bit, of three of them."""
    found = []
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        places = [Wire(Given(f"s{k}", part)) for k, part in enumerate(parts_of(DATA, 3))]
        model = of("IFCARegressor").fit_federation(RemoteFederation([places[k] for k in order]))
        found.append(model.params_)
    assert_array_equal(found[1], found[0])
    assert_array_equal(found[2], found[0])


def test_sites_in_another_order(tmp_path, journals):
    """A server that is started again may meet them so."""

    def listed(step):
        return RemoteFederation([root.line.transport for root in wire_federation()._roots[::step]])

    model = partial(of, "IFCARegressor")
    wanted = model().fit_federation(listed(1), tmp_path / "fit")
    calls = journals[-1].n_added
    cut_off(model(), listed(1), tmp_path / "fit", journals, calls // 2)
    found = resumed(model(), listed(-1), tmp_path / "fit", journals)
    assert journals[-1].n_found + journals[-1].n_added == calls
    assert_array_equal(found.params_, wanted.params_)


def test_a_checkpoint_holds_no_other_classes(begun, journals):
    """What names a class, even one that messages may hold, is refused and not made."""
    path, _ = begun
    record = journal._record(
        digest("key"), journal.dumps({"value": Location(), "bytes": (0, 0)}, None)
    )
    with path.open("ab") as file:
        file.write(record)
    found = Journal(path, journals[-1].estimator, 0, True)
    with pytest.raises(CheckpointError, match="Location, which is not trusted here"):
        found.take(digest("key"))
    found.close(False)


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="resume=True needs checkpoint="):
        FedAvgRegressor().fit_federation(here(), resume=True)
    with pytest.raises(ValueError, match="every must be a number of seconds .*, got -1"):
        FedAvgRegressor().fit_federation(here(), tmp_path / "fit", every=-1)
    with pytest.raises(CheckpointError, match="its folder is not there"):
        FedAvgRegressor().fit_federation(here(), tmp_path / "none" / "fit")
    with pytest.raises(TypeError, match="federation must be one of"):
        FedAvgRegressor().fit_federation(DATA.X, tmp_path / "fit")


# ------------------------------------------------------------------------- full disks


def test_a_full_disk_costs_the_checkpoint_and_not_the_fit(tmp_path, journals, monkeypatch):
    """A warning says so, once; what was written is whole, and a later write may succeed."""
    path, wanted = tmp_path / "fit", of("IFCARegressor").fit_federation(here())
    fsync, times = os.fsync, []

    def full(number):
        times.append(number)
        if 5 < len(times) < 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(number)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match=r"could not be written \(.*No space left") as caught:
        cut_off(of("IFCARegressor"), here(), path, journals, 20)
    assert len(caught) == 1
    monkeypatch.undo()
    found = of("IFCARegressor").fit_federation(here(), path, resume=True)
    assert_same(found, wanted)


def test_what_a_full_disk_has_left_is_taken_away(tmp_path, monkeypatch):
    """Behind a shorter record nothing is left of a longer one that was given up."""
    path = tmp_path / "fit"
    first = Journal(path, "x", 0, False)
    first.begin({})

    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="could not be written"):
        patch.setattr(os, "fsync", full)
        first.add(digest("long"), np.zeros(1000))
    first.add(digest("short"), np.arange(3.0))
    first.close(False)
    again = Journal(path, "x", 0, True)
    assert again.take(digest("long")) is None
    assert_array_equal(again.take(digest("short")), np.arange(3.0))
    again.close(True)


def test_a_fit_that_fails_keeps_its_checkpoint(tmp_path):
    """What was answered until then is written, so that the fit can go on when clients are back."""
    path, model = tmp_path / "fit", of("IFCARegressor")
    with pytest.raises(FederationError, match="min_clients=9"):
        model.fit_federation(losing(12, retries=2, min_clients=9)[0], path)
    assert path.stat().st_size > 1000
    found = model.fit_federation(elsewhere("IFCARegressor"), path, resume=True)
    assert np.isfinite(found.params_).all()


def test_digests_tell_values_apart():
    values = [None, 0, 0.0, "0", b"0", [0], [[0]], [0, 0], {"a": 0}, np.zeros(2), np.zeros((2, 1))]
    values += [np.zeros(2, dtype=int), LocalModels(), FedAvgRegressor(), FedAvgRegressor(alpha=2)]
    values += [np.array(["a", None], dtype=object), int, float, np.float64(0)]
    found = {digest(value) for value in values}
    assert len(found) == len(values)
    assert digest(np.ones((2, 3)).T) == digest(np.ones((3, 2)))
