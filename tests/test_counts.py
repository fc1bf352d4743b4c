"""Logs of counts stand for the logs that were counted, whoever counted them."""

import re
import warnings

import duckdb
import numpy as np
import polars as pl
import pytest

from dpdl import Dataset, certify, coverage, exact, learn, read_log, resume, safe_policy, verify
from test_ends import GAMMA, ending_model

SIZES = {"n_states": 6, "n_actions": 3}
ROLES = {"state": "ward", "action": "drug", "reward": "gain", "costs": ["icu", "wear"], "episode": "patient",
         "time": "day", "terminated": "left"}  # fmt: skip


@pytest.fixture(scope="module")
def log():
    return ending_model().rollout(5000, np.full((6, 3), 1 / 3), rng=1)


@pytest.fixture(scope="module")
def counted(log):
    return Dataset.from_counts(**log.counts(), initial=log.initial_counts, **SIZES)


def clinic(n=3000, seed=0, few=False):
    """A table of episodes, shuffled; rewards and costs with many values, or with few."""
    rng = np.random.default_rng(seed)
    ends = rng.random(n) < 0.1
    ends[-1] = True
    patient = np.append(0, np.cumsum(ends)[:-1])
    drug = rng.integers(3, size=n)
    wear = rng.integers(0, 3, n).astype(float) if few else rng.exponential(size=n)
    table = {
        "patient": patient,
        "day": np.arange(n),
        "ward": np.array(["ward", "icu", "rehab", "home"])[rng.integers(4, size=n)],
        "drug": np.array(["none", "low", "high"])[drug],
        "gain": drug + 0.0 if few else drug + rng.normal(size=n),
        "icu": (rng.random(n) < 0.1 + 0.1 * drug).astype(float),
        "wear": wear,
        "left": ends & (rng.random(n) < 0.8),
    }
    order = rng.permutation(n)
    return {name: column[order] for name, column in table.items()}


def same_counts(one, other, rtol=1e-12):
    """Two logs have the same cells, labels and first states."""
    assert one.labels == other.labels
    assert len(one) == len(other)
    np.testing.assert_array_equal(one.initial_counts, other.initial_counts)
    left, right = one.counts(), other.counts()
    for name in ("s", "a", "s_next", "terminated", "count"):
        np.testing.assert_array_equal(left[name], right[name])
    np.testing.assert_allclose(left["r"], right["r"], rtol=rtol, atol=1e-12)
    np.testing.assert_allclose(left["r_std"], right["r_std"], rtol=1e-6, atol=1e-9)
    for name in left["costs"]:
        np.testing.assert_allclose(left["costs"][name], right["costs"][name], rtol=rtol, atol=1e-12)
        np.testing.assert_allclose(left["cost_stds"][name], right["cost_stds"][name], rtol=1e-6, atol=1e-9)


def test_counts_give_the_same_model_and_the_same_log_statistics(log, counted):
    assert len(counted) == len(log)
    assert len(counted.records) < 200
    assert counted.n_ended == log.n_ended
    np.testing.assert_array_equal(counted.pair_counts, log.pair_counts)
    np.testing.assert_array_equal(counted.initial(), log.initial())
    one, other = exact.plug_in(counted, GAMMA), exact.plug_in(log, GAMMA)
    np.testing.assert_allclose(one.P.toarray(), other.P.toarray(), rtol=1e-12)
    for name in ("r", "u", "ends", "rho0"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12, atol=1e-15)
    assert repr(coverage(counted)).splitlines()[1:] == repr(coverage(log)).splitlines()[1:]


@pytest.mark.parametrize("chunk", [7, 1000])
def test_counting_counts_and_counting_in_chunks_change_nothing(log, counted, chunk, monkeypatch):
    whole = log.counts()
    monkeypatch.setattr("dpdl.data.packing.CHUNK", chunk)
    for each in (log, counted):
        for name, column in each.counts().items():
            np.testing.assert_allclose(column, whole[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "values", [2e6 + np.array([1.0, -1, 1, -1]), np.array([1e-162, 0, 1e-162, 0]), np.array([1e155, 0, 1e155, 0])]
)
def test_standard_deviations_of_any_size_are_kept(values):
    spread = (values.max() - values.min()) / 2
    log = Dataset([0] * 4, [0] * 4, [0] * 4, values, costs={"c": values}, n_states=1, n_actions=1)
    found = log.counts()
    np.testing.assert_allclose([found["r_std"][0], found["cost_stds"]["c"][0]], spread, rtol=1e-12)
    again = Dataset.from_counts(**found, n_states=1, n_actions=1).counts()
    np.testing.assert_allclose(again["r_std"], spread, rtol=1e-12)


def test_sums_that_overflow_are_refused():
    log = Dataset([0, 0], [0, 0], [0, 0], [1.7e308, -1.7e308], n_states=1, n_actions=1)
    with pytest.raises(ValueError, match="numbers whose sums overflow"):
        log.counts()


def test_folders_and_pickles_carry_counts(counted, tmp_path):
    import pickle

    counted.save(tmp_path / "log")
    for one in (Dataset.open(tmp_path / "log"), pickle.loads(pickle.dumps(counted))):
        assert one.fingerprint == counted.fingerprint
        assert len(one) == len(counted)
        np.testing.assert_array_equal(one.repeats, counted.repeats)
        np.testing.assert_array_equal(one.spreads, counted.spreads)
        np.testing.assert_array_equal(one.initial_counts, counted.initial_counts)


def test_learning_from_counts_is_learning_from_the_log(counted, log, tmp_path):
    settings = {"gamma": GAMMA, "psi": 4, "slater": 0.2, "T": 20_000, "kappa": 0.0, "eta": 0.02, "rng": 0}
    one = learn(counted, **settings)
    np.testing.assert_allclose(one.reference.mu_hat, learn(log, **settings).reference.mu_hat)
    for order in ("replacement", "shuffle"):
        path, run = tmp_path / order, settings | {"order": order}
        learn(counted, **run, step_limit=7001, checkpoint=path)
        np.testing.assert_array_equal(resume(path, counted).x_mean, learn(counted, **run).x_mean)
    seen, wanted = verify(one, counted, eps=0.5), verify(one, log, eps=0.5)
    assert seen.reward == pytest.approx(wanted.reward, rel=1e-12)
    np.testing.assert_allclose(seen.flow_residual, wanted.flow_residual, atol=1e-12)
    with pytest.raises(ValueError, match="order 'trajectory' needs the rows in order"):
        learn(counted, **(settings | {"order": "trajectory"}))


def test_counts_have_no_parts(counted):
    with pytest.raises(ValueError, match="a log of counts has no order, so that it has no parts"):
        counted[:10]


# ---- Counting on an engine ----


@pytest.mark.parametrize("few", [False, True])
def test_engines_count_what_the_rows_say(tmp_path, few):
    """Polars, DuckDB, a Parquet folder and a CSV give the cells of the rows; with few values the rows themselves."""
    table = clinic(6000, few=few)
    rows = read_log(table, **ROLES)
    frame = pl.DataFrame(table)
    (tmp_path / "parts").mkdir()
    frame[:1000].write_parquet(tmp_path / "parts" / "part-2.parquet")
    frame[1000:].write_parquet(tmp_path / "parts" / "part-10.parquet")
    con = duckdb.connect()
    con.register("clinic", frame)
    for source in (frame.lazy(), con.sql("SELECT * FROM clinic"), tmp_path / "parts", frame, frame.to_pandas()):
        counts = read_log(source, **ROLES, counts=True)
        same_counts(counts, rows)
        assert counts.notes[0].startswith(f"{len(table['gain']) - len(rows):,} rows were left out: the record of an")
        assert (counts.spreads is None) == few
    frame.write_csv(tmp_path / "log.csv")
    same_counts(read_log(tmp_path / "log.csv", **ROLES, counts=True), rows)
    if few:
        question = {"gamma": 0.9, "limits": {"icu": 3.0}, "limit_on": "total"}
        one, other = (exact.plug_in(each, 0.9, limits={"icu": 3.0}, limit_on="total") for each in (rows, counts))
        assert one.solve().reward == pytest.approx(other.solve().reward, rel=1e-12)
        assert question["gamma"] == one.gamma


def test_next_states_in_the_table_need_no_order():
    table = clinic(few=True)
    by_day = np.argsort(table["day"])
    ward = table["ward"][by_day]
    table = {name: column[by_day] for name, column in table.items()} | {"then": np.append(ward[1:], ward[0])}
    roles = {name: value for name, value in ROLES.items() if name not in ("episode", "time")} | {"next_state": "then"}
    rows, counts = read_log(table, **roles), read_log(pl.DataFrame(table).lazy(), **roles)
    assert counts.initial_counts is None
    for name in ("s", "a", "s_next", "count"):
        np.testing.assert_array_equal(rows.counts()[name], counts.counts()[name])
    table |= {"floor": table["icu"], "next floor": table["icu"]}
    tuples = roles | {"state": ["ward", "floor"], "next_state": ["then", "next floor"]}
    assert read_log(pl.DataFrame(table).lazy(), **tuples).labels == read_log(table, **tuples).labels


def test_what_an_engine_cannot_count_is_named():
    frame = pl.DataFrame(clinic())
    for change, message in (
        ({"time": None}, "rows of an engine have no order"),
        ({"reward": "profit"}, "the table has no column 'profit'"),
        ({"discretizer": {"bins": 2}}, "a lazy frame cannot be discretised"),
        ({"reward": "ward"}, r"column 'ward' \(reward\): it is text, which an engine would not read as a number"),
    ):
        with pytest.raises(ValueError, match=message):
            read_log(frame.lazy(), **(ROLES | change))
    holes = frame.with_columns(pl.when(pl.col("day") > 5).then(pl.col("ward")), pl.col("gain").log())
    with pytest.raises(
        ValueError, match=r"(?s)column 'gain' \(reward\): 681 missing.*column 'ward' \(state\): 6 missing"
    ):
        read_log(holes.lazy(), **ROLES)
    with pytest.raises(ValueError, match=r"a time must not occur twice in an episode; such rows: 2$"):
        read_log(pl.concat([frame, frame[:2]]).lazy(), **ROLES)
    with pytest.raises(ValueError, match="only the last row of an episode can be terminated"):
        read_log(frame.with_columns(pl.lit(True).alias("left")).lazy(), **ROLES)
    ward = pl.col("ward").shift(-1).over("patient", order_by="day")
    chain = frame.with_columns(pl.when(ward.is_null()).then(pl.lit("home")).otherwise(ward).alias("then"))
    roles = ROLES | {"next_state": "then"}
    same_counts(read_log(chain.lazy(), **roles), read_log(chain, **roles))
    for then, message in (("nowhere", "episodes do not chain"), (None, r"column 'then' \(next_state\): .* missing")):
        with pytest.raises(ValueError, match=message):
            read_log(chain.with_columns(pl.lit(then, pl.String).alias("then")).lazy(), **roles)
    with pytest.raises(ValueError, match=r"rows whose episode is not known cannot be dropped: .*\n  column 'patient'"):
        read_log(frame.with_columns(pl.when(pl.col("day") > 5).then(pl.col("patient"))).lazy(), **ROLES, missing="drop")


@pytest.mark.parametrize("few", [False, True])
def test_engines_leave_out_the_rows_that_the_reader_leaves_out(few):
    frame = pl.DataFrame(clinic(few=few))
    day = pl.col("day")
    holes = frame.with_columns(
        pl.when(day % 50 != 7).then(pl.col("ward")),
        pl.when(day % 70 != 9).then(pl.col("icu")),
        pl.when(day % 90 == 11).then(np.inf).otherwise(pl.col("gain")).alias("gain"),
        pl.when(day % 110 != 13).then(pl.col("drug")),
        pl.when(day % 500 != 17).then(day).alias("day"),
    )
    rows, counts = (read_log(each, **ROLES, missing="drop") for each in (holes, holes.lazy()))
    assert len(rows) < len(read_log(frame, **ROLES))
    same_counts(counts, rows)
    assert "column 'icu' (costs): 43 missing" in counts.notes[0]


@pytest.mark.parametrize("scale", [1e-162, 1e155])
def test_engines_keep_standard_deviations_of_any_size(scale):
    table = clinic()
    table["wear"] = table["wear"] * scale
    found = read_log(pl.DataFrame(table), **ROLES, counts=True).counts()["cost_stds"]["wear"]
    wanted = read_log(clinic(), **ROLES).counts()["cost_stds"]["wear"]
    np.testing.assert_allclose(found / scale, wanted, rtol=1e-9)


def test_values_are_part_of_the_cells_only_if_that_makes_few_cells(monkeypatch):
    table = clinic(few=True)
    rows, frame = read_log(table, **ROLES), pl.DataFrame(table).lazy()
    for most, few in ((3000, True), (72 * 18, True), (72 * 18 - 1, False)):  # 72 cells, 12 of rows left out
        monkeypatch.setattr("dpdl.data.engine.MOST_CELLS", most)
        counts = read_log(frame, **ROLES)
        same_counts(counts, rows)
        assert (counts.spreads is None) == few
        assert (len(counts.records) > 60) == few


QUESTION = {"gamma": 0.9, "limits": {"icu": 0.25, "wear": 1.2}, "limit_on": "average"}


def figures(log):
    """What certificates of a given policy and of the best one print, and their bounds."""
    answer = safe_policy(log, **QUESTION)
    certificates = [certify(np.full((4, 3), 1 / 3), log, **QUESTION), answer.certificate]
    bounds = [one.bound for each in certificates for one in (each.reward, *each.constraints)]
    return [answer.message, *(each.rows for each in certificates)], bounds


def same_answer(log, wanted, few):
    """To the last printed digit if rewards and costs take few values, bounds within 1% otherwise."""
    printed, bounds = figures(log)
    if few:
        assert printed == wanted[0]
    np.testing.assert_allclose(bounds, wanted[1], rtol=0.01)


@pytest.mark.parametrize("few", [False, True])
def test_rows_counts_and_engines_give_the_same_answer(few):
    table = clinic(6000, few=few)
    rows, frame = read_log(table, **ROLES), pl.DataFrame(table)
    wanted = figures(rows)
    for source in (frame.lazy(), frame):
        same_answer(read_log(source, **ROLES, counts=True), wanted, few)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # ibis calls what DuckDB deprecates
def test_ibis_counts_what_the_rows_say():
    ibis = pytest.importorskip("ibis")
    table = clinic(few=True)
    con = ibis.duckdb.connect()
    con.con.register("given", pl.DataFrame(table).to_arrow())
    con.con.execute("CREATE TABLE clinic AS SELECT * FROM given")
    same_counts(read_log(con.table("clinic"), **ROLES), read_log(table, **ROLES))


@pytest.mark.spark
def test_spark_counts_what_the_rows_say():
    pyspark = pytest.importorskip("pyspark.sql")
    session = pyspark.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        for few in (False, True):
            table = clinic(6000, few=few)
            rows = list(zip(*(column.tolist() for column in table.values()), strict=True))
            counts, rows = read_log(session.createDataFrame(rows, list(table)), **ROLES), read_log(table, **ROLES)
            same_counts(counts, rows)
            same_answer(counts, figures(rows), few)
    finally:
        session.stop()


def test_a_group_by_of_dask_is_the_same_log(log, tmp_path):
    """What docs/formats.md shows: next states in the table, one group-by, and its few rows are enough."""
    import dask
    import dask.dataframe as dd

    columns = {"s": log.s, "a": log.a, "s_next": log.s_next, "end": log.terminated, "r": log.r, "u": log.u[:, 0]}
    for k in range(3):
        pl.DataFrame({name: column[k::3] for name, column in columns.items()}).write_parquet(tmp_path / f"{k}.parquet")
    with dask.config.set(scheduler="synchronous"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Dask calls in pandas may be deprecated there
        groups = dd.read_parquet(str(tmp_path / "*.parquet")).groupby(["s", "a", "s_next", "end"])
        cells = groups[["r", "u"]].mean().compute()
        cells["count"] = groups["r"].count().compute()
    cells = cells.reset_index()
    counts = Dataset.from_counts(
        *(cells[name].to_numpy() for name in ("s", "a", "s_next", "count", "r")),
        cells["u"].to_numpy(),
        terminated=cells["end"].to_numpy(),
        initial=log.initial_counts,
        **SIZES,
    )
    found, wanted = counts.counts(), log.counts()
    for name in ("s", "a", "s_next", "count"):
        np.testing.assert_array_equal(found[name], wanted[name])
    np.testing.assert_allclose(found["r"], wanted["r"], rtol=1e-12, atol=1e-15)


GOOD = {"s": [0, 1], "a": [0, 0], "s_next": [1, 0], "count": [3, 2], "r": [1.0, 1.0], "u": [[1.0], [0.0]],
        "n_states": 2, "n_actions": 1}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"count": [3, 0]}, ValueError, "count[1] = 0 must be at least 1"),
        ({"count": [3, -1]}, ValueError, "count[1] = -1 must be between 0"),
        ({"count": [3, 1.5]}, ValueError, "count[1] = 1.5 must be a whole number"),
        ({"count": [2**52, 2**53]}, ValueError, "count sums to 1.35108e+16, more than 2^53, and could be rounded"),
        ({"count": [3]}, ValueError, "count must have shape (2,), got (1,)"),
        ({"s": [], "a": [], "s_next": [], "count": []}, ValueError, "the data set is empty"),
        ({"r": [np.inf, 1.0]}, ValueError, "r[0] = inf must be finite"),
        ({"costs": {"c": [1.0, 0.0]}}, TypeError, "give either utilities u or costs"),
        ({"r_std": [1.0, 1.0]}, TypeError, "give both r_std and u_std, or neither"),
        ({"r_std": [-1.0, 1.0], "u_std": [[0], [0]]}, ValueError, "r_std[0] = -1.0 must be >= 0"),
        ({"initial": [0, 0]}, ValueError, "initial must count at least one episode"),
        ({"initial": [1]}, ValueError, "initial must have shape (2,), got (1,)"),
    ],
)
def test_bad_counts_are_named(change, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        Dataset.from_counts(**(GOOD | change))
