"""`dpdl.plan`: the optimum of the plug-in model, in the caller's labels and units, on rows and on counts."""

import numpy as np
import pytest

import dpdl
from dpdl.demo import COLUMNS, QUESTION, record
from dpdl.models.estimate import plug_in


@pytest.fixture(scope="module")
def log():
    return dpdl.read_log(record(200, np.random.default_rng(0)), **COLUMNS)


def test_the_plan_is_the_optimum_of_the_plug_in_model_with_labels(log):
    found = dpdl.plan(log, **QUESTION)
    model = plug_in(log, **QUESTION)
    assert found.success
    assert (found.policy == model.solve().policy).all()
    assert found.policy.act("rehabilitation", rng=0) in log.labels.actions
    # Estimates are in the units of the table: the limit that binds is met exactly.
    assert [figure.limit for figure in found.evaluation.constraints] == list(QUESTION["limits"].values())
    assert max(f.value / f.limit for f in found.evaluation.constraints) == pytest.approx(1, abs=1e-6)
    assert "side effects" in repr(found)


def test_limits_that_no_policy_keeps_give_no_policy(log):
    found = dpdl.plan(log, gamma=0.95, limits={"side effects": 0.0, "icu days": 0.0}, limit_on="total")
    assert (found.status, found.success, found.policy, found.evaluation) == ("infeasible", False, None, None)
    assert repr(found) == "infeasible"


def test_counts_plan_as_rows_do():
    table = record(200, np.random.default_rng(0))
    rows, counts = (dpdl.plan(dpdl.read_log(table, **COLUMNS, counts=flag), **QUESTION) for flag in (False, True))
    assert rows.evaluation.reward.value == pytest.approx(counts.evaluation.reward.value, rel=1e-9)
    np.testing.assert_allclose(rows.policy, counts.policy, atol=1e-7)
