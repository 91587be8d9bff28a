"""Messages as bytes: what arrives is what was sent, and hostile bytes are refused."""

import json
import pickle
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal
from site_tables import Table
from trials import examples

from skcfl.exceptions import MessageError
from skcfl.federation.federation import Handshake
from skcfl.federation.host import SiteHost
from skcfl.federation.serialization import MAGIC, MAX_HEADER, dumps, loads, versions
from skcfl.federation.sites import PlaceLost
from skcfl.federation.wire import WireTransport
from skcfl.models import MLP, Autoencoder, LinearModel
from skcfl.models.losses import Quantile

KINDS = "? i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8 >f8 >i4 S3 U3 >U2"
DTYPES = st.sampled_from(KINDS.split(" "))
TEXT = st.text(st.characters(codec="utf-8"))
ARRAYS = DTYPES.flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
        elements=TEXT.map(lambda text: text[:2]) if "U" in dtype else None,
    )
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUES = st.recursive(
    PLAIN | ARRAYS,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.integers() | TEXT, inner)
    ),
    max_leaves=8,
)


def assert_same(found, wanted):
    if isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype.newbyteorder("=") and found.shape == wanted.shape
        assert_array_equal(found, wanted)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        assert_same(list(found.values()), list(wanted.values()))
    elif isinstance(wanted, list | tuple):
        assert type(found) is type(wanted) and len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    else:
        assert type(found) is type(wanted)
        assert found == wanted or (found != found and wanted != wanted)


@examples(12)
@given(VALUES)
def test_what_arrives_is_what_was_sent(value):
    assert_same(loads(dumps(value)), value)


def test_scalars_types_and_texts():
    values = np.float32(2), np.int16(3), np.bool_(True), np.str_("a"), np.dtype("f4")
    for found, wanted in zip(loads(dumps(values)), values, strict=True):
        assert found == wanted
    names = np.array(["age", "sex", None, 3], dtype=object)
    found = loads(dumps(names))
    assert found.dtype == object and found.tolist() == names.tolist()
    assert loads(dumps(np.zeros((2, 0), "U"))).shape == (2, 0)


@pytest.mark.parametrize(
    "model",
    [
        LinearModel(Quantile(smoothing=0.2)).bind(3).in_units(1.5, 4.0),
        LinearModel("poisson").bind(3).in_units(2.5, 4.0),
        LinearModel(alpha="auto").bind(3).penalised(0.3),
        LinearModel("log_loss", class_weight={"a": 2.0}).bind(2, 4, np.float32),
        MLP((3, 2), loss="log_loss").bind(4, 3),
        Autoencoder(hidden_layer_sizes=(2,)).bind(4),
    ],
)
def test_bound_models_have_what_they_had(model):
    found = loads(dumps(model))
    assert type(found) is type(model)
    params = np.linspace(-1, 1, model.n_params)[None]
    X, y = np.linspace(-1, 1, 2 * model.n_features).reshape(2, -1), np.array([0, 1])
    rows = X.astype(model.dtype), y, params, np.zeros(2, int)
    assert_array_equal(found.decay, model.decay)
    assert_array_equal(found.init_params(2, 0), model.init_params(2, 0))
    assert_array_equal(found.start(0), model.start(0))
    assert_array_equal(found.row_losses(*rows), model.row_losses(*rows))


# ------------------------------------------------------------------------- hostile bytes


def honest_messages():
    """Requests and replies as they go between a server and a site."""
    host, model = SiteHost(Table("north")), LinearModel(standardize=True).bind(3)
    rows = (1, 0, "rows", (np.arange(2), model, np.dtype(float), None))
    site = (2, 1, "site", (model,))
    requests = [
        (0, [], [], "hello", ("regressor",)),
        (1, [rows], [], "moments", ("features", "sums")),
        (2, [rows, site], [], "facts", ()),
        (2, [rows, site], [7], "answer", ("losses", {"theta": np.ones((2, 4))})),
        (2, [rows, site], [], "answer", ("solve", {})),
    ]
    sent = [dumps(request) for request in requests]
    return sent + [host.handle(message) for message in sent]


def mutated(message, rng):
    """An honest message with bytes changed, lost, added or swapped with a part of its own."""
    data, kind = bytearray(message), rng.integers(6)
    at = int(rng.integers(len(data)))
    if kind == 0:
        data[at] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del data[at : at + int(rng.integers(1, 20))]
    elif kind == 2:
        data[at:at] = rng.bytes(int(rng.integers(1, 20)))
    elif kind == 3:
        data = data[:at]
    elif kind == 4:
        other = int(rng.integers(len(data)))
        data[at : at + 12] = data[other : other + 12]
    else:  # another number in the header
        text = data.decode("latin-1")
        digits = [k for k, letter in enumerate(text) if letter.isdigit()]
        data[digits[rng.integers(len(digits))]] = ord("0") + int(rng.integers(10))
    return bytes(data)


class Replies(WireTransport):
    """A site that answers with given bytes."""

    def __init__(self, reply):
        super().__init__("south", patience=10**9)
        self.reply = reply

    def send(self, message):
        number = slice(len(MAGIC), len(MAGIC) + 8)
        return lambda: self.reply[: number.start] + message[number] + self.reply[number.stop :]


def test_mutated_messages_are_refused_or_read(tmp_path, monkeypatch):
    """800 of them: a site answers in order, a server loses the site; nobody crashes."""
    monkeypatch.chdir(tmp_path)
    honest, rng = honest_messages(), np.random.default_rng(0)
    host, read = SiteHost(Table("north")), 0
    for k in range(800):
        message = mutated(honest[k % len(honest)], rng)
        try:
            loads(message)
            read += 1
        except MessageError:
            pass
        status, value, note = loads(host.handle(message))
        assert status in {"done", "unknown", "invalid", "refused", "lost"} and (
            status == "done" or value is None or isinstance(value, str)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                assert Replies(message).start((0, [], [], "hello", ()))()[0] in {"done", "unknown"}
            except (PlaceLost, ValueError) as error:
                assert "south" in str(error) or "Site 'north'" in str(error)
    # Changed floats are floats; most of the rest is found out.
    assert read < 400 and not list(tmp_path.iterdir())


class Named:
    """Pickles a name, and calls it."""

    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
@pytest.mark.parametrize(
    "thing",
    [
        Named(eval, "open('harm', 'w')"),
        Named(np.ndarray, (1,), "O"),
        np.dtype("O"),
        np.array([Named(eval, "open('harm', 'w')")], dtype=object),
        LinearModel().bind(2),
    ],
)
def test_pickles_are_no_messages(thing, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(thing, protocol=protocol)
    for message in (data, MAGIC + data, dumps(1)[:-1] + data):
        with pytest.raises(MessageError):
            loads(message)
    assert not list(tmp_path.iterdir())


LONG = MAGIC + bytes(8)


def forged(arrays, value, data=b"", header=None):
    header = header or {"versions": versions(), "arrays": arrays, "value": value}
    text = json.dumps(header).encode()
    text += b" " * (-(len(MAGIC) + len(text)) % 8)
    return MAGIC + bytes(8) + len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "message, reason",
    [
        (forged([["|O8", [1]]], {"array": 0}, bytes(8)), "type '|O8' are not allowed"),
        (forged([["<M8[s]", [1]]], {"array": 0}, bytes(8)), "not allowed"),
        (forged([["<f8,<f8", [1]]], {"array": 0}, bytes(16)), "not allowed"),
        (forged([["<U0", [9]]], {"array": 0}), "not allowed"),
        (forged([["<f8", [10**15]]], {"array": 0}, bytes(8)), "longer|impossible"),
        (forged([["<f8", [2**31, 2**31]]], {"array": 0}), "longer than the message"),
        (forged([["<f8", [2**31, 0, 2**40]]], {"array": 0}), "impossible shape"),
        (forged([["<f8", [-1]]], {"array": 0}, bytes(8)), "impossible shape"),
        (forged([["<f8", [True]]], {"array": 0}, bytes(8)), "impossible shape"),
        (forged([["<f8", [1] * 60]], {"array": 0}, bytes(8)), "impossible shape"),
        (forged([["<f8", [1]]], {"array": 1}, bytes(8)), "an array is missing"),
        (forged([["<f8", [1]]], {"array": -1}, bytes(8)), "an array is missing"),
        (forged([["<f8", [1]]], {"array": 0}, bytes(16)), "bytes after the end"),
        (forged([["|b1", [1]]], {"array": 0}, b"\x02"), "not valid"),
        (forged([["<U1", [1]]], {"array": 0}, b"\xff\xff\xff\x7f"), "not valid"),
        (forged([["<U1", [1]]], {"array": 0}, b"\x00\xd8\x00\x00"), "not valid"),
        (forged([], {"__init__": []}), "kind '__init__' are unknown"),
        (forged([], {}), "kind None are unknown"),
        (forged([], {"at": 0}), "unknown"),
        (forged([], {"objects": [[1]], "shape": [1]}), "more than numbers and text"),
        (forged([], {"objects": [1], "shape": [10**9]}), "malformed"),
        (forged([], {"dtype": "O"}), "not allowed"),
        (forged([], {"class": ["os", "system"]}), "os.system, which is not trusted"),
        (forged([], {"class": ["os\nINFO fine", "system"]}), r"names os\\nINFO fine.system"),
        (forged([], {"class": ["skcfl.models._linear", "np"]}), "no class of this module"),
        (forged([], {"class": ["skcfl.models._linear", "LinearModel.bind"]}), "not trusted"),
        (forged([], {"class": ["skcfl.models.losses", "make_loss"]}), "no class of this module"),
        (forged([], {"class": ["skcfl.modelsx", "A"]}), "not trusted"),
        (forged([], {"class": ["skcfl.models.nothing", "A"]}), "malformed: ModuleNotFound"),
        (forged([], {"object": ["skcfl.models._linear", "LinearModel"], "state": {"dict": []}}),
         "is made of parameters"),
        (forged([], {"made": ["skcfl.models.losses.shifted", "Shifted"], "of": {"dict": []}}),
         "malformed: AttributeError"),
        (forged([], {"object": ["skcfl.federation.host", "SiteHost"], "state": {"dict": []}}),
         "not trusted"),
        (forged([], {"dict": [[{"dict": []}, 1]]}), "malformed: TypeError"),
        (forged([], 1, header=[1]), "malformed"),
        (forged([], 1, header={"versions": versions()}), "malformed: KeyError"),
        (LONG + (MAX_HEADER + 1).to_bytes(8, "little") + b"1", "longer than the message"),
        (MAGIC + b"\xff" * 16, "longer than the message"),
        (MAGIC, "longer than the message|malformed"),
        (b"", "no message"),
        (b"[" * 10**6, "no message"),
        (LONG + (10**6).to_bytes(8, "little") + b"[" * 10**6, "malformed: RecursionError"),
    ],
)  # fmt: skip
def test_forged_messages_are_refused(message, reason):
    tracemalloc.start()
    with pytest.raises(MessageError, match=reason.replace("|O8", r"\|O8")):
        loads(message)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20 + 40 * len(message)  # whatever sizes it claims


def test_large_messages_are_refused():
    message = dumps(np.zeros(1000))
    with pytest.raises(MessageError, match=r"has 8\d\d\d bytes, more than max_bytes=8000"):
        loads(message, max_bytes=8000)
    with pytest.raises(MessageError, match="more than max_bytes=8000"):
        dumps(np.zeros(1000), max_bytes=8000)

    class Small(Table):
        max_bytes = 8000

    status, reason, _ = loads(SiteHost(Small("north")).handle(message))
    assert status == "lost" and "more than max_bytes=8000" in reason


def test_versions_shake_hands():
    hello = Handshake(np.array(["a"]), 2, None, np.dtype(float))
    assert loads(dumps(hello)).n_features == 2
    header = {"versions": ["0.0.1", "0" * 16], "arrays": [], "value": 3}
    with pytest.raises(MessageError, match="same version of skcfl.*the sender has .*0.0.1"):
        loads(forged([], 3, header=header))
    assert loads(forged([], 3, header=header), same_version=False) == 3
