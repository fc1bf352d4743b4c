"""Pictures: each can be drawn, for easy and for awkward logs, and shows what it says."""

import io
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import dpdl
import logs
from dpdl import plots
from dpdl.recording import Recorder
from test_table import clinic

NAMES = {"state": "ward", "action": "drug", "reward": "gain", "episode": "patient", "time": "day", "terminated": "left"}
COSTS = {"icu days": 1.0, "side effects": 4.0}


@pytest.fixture(scope="module")
def log():
    return logs.from_table(clinic(5_000), **NAMES, costs=COSTS, limits="total", gamma=0.9, missing="drop")


@pytest.fixture(scope="module")
def recorder(log):
    recorder = Recorder()
    dpdl.learn(log, gamma=0.9, rng=0, callback=recorder, callback_every=10_000)
    return recorder


@pytest.fixture(scope="module")
def answer(log):
    return dpdl.safe_policy(log, gamma=0.9)


def svg(draw, *arguments, **keywords):
    """The picture as SVG, checked to be well-formed and to have something in it."""
    file = io.BytesIO()
    draw(*arguments, file, **keywords)
    tree = ElementTree.fromstring(file.getvalue())
    assert tree.tag.endswith("svg")
    assert len(list(tree.iter())) > 50
    return file.getvalue()


def test_a_recorder_keeps_what_the_run_came_to(log, recorder):
    result = dpdl.learn(log, gamma=0.9, rng=0)
    table = recorder.to_table()
    assert table["steps"][-1] == result.n_steps
    assert (np.diff(table["steps"]) > 0).all()
    assert (np.diff(table["seconds"]) >= 0).all()
    assert table["multiplier of side effects"][-1] == result.lam_mean[1]
    assert np.isnan(table["gap"]).all()


def test_a_recorder_that_knows_the_model_keeps_the_gap(tmp_path):
    model = dpdl.instances.garnet(4, 2, 1, branching=2, gamma=0.5, slater=0.3, rng=0)
    mu = np.full((4, 2), 1 / 8)
    recorder = Recorder(model, mu)
    common = {"gamma": 0.5, "psi": 3, "slater": 0.3, "rho0": model.rho0, "rng": 0}
    result = dpdl.learn(model.sample(5000, mu, rng=1), T=20_000, **common, callback=recorder, callback_every=5000)
    assert recorder.gaps[-1] == result.gap(model, mu)
    assert recorder.gaps[0] > recorder.gaps[-1] > 0
    plots.draw_convergence(recorder, tmp_path / "gap.png")
    assert (tmp_path / "gap.png").stat().st_size > 1000


def test_levels_of_the_adaptive_method_follow_one_another(log):
    recorder = Recorder()
    options = {"eps": 0.5, "slater": 0.1, "T": 20_000, "reuse": True, "max_levels": 2}
    dpdl.learn_adaptive(log, gamma=0.9, **options, rng=0, callback=recorder, callback_every=5000)
    assert len(recorder.steps) > 2
    assert (np.diff(recorder.steps) >= 0).all()


def test_convergence(recorder, tmp_path):
    for name in ("a.png", "a.pdf"):
        plots.draw_convergence(recorder, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    with pytest.raises(ValueError, match="fewer than two"):
        plots.draw_convergence(Recorder(), tmp_path / "b.png")


def test_the_same_picture_has_the_same_bytes(recorder):
    assert svg(plots.draw_convergence, recorder) == svg(plots.draw_convergence, recorder)


def test_coverage(log, answer):
    svg(plots.draw_coverage, log)
    svg(plots.draw_coverage, log, policy=np.full((5, 3), 1 / 3), gamma=0.9)
    with pytest.raises(TypeError, match="gamma"):
        plots.draw_coverage(log, io.BytesIO(), np.full((5, 3), 1 / 3))


def test_coverage_of_a_log_that_shows_little():
    few = dpdl.Dataset([0], [0], [1], [0.0], [[1.0]], n_states=2, n_actions=2)
    file = io.BytesIO()
    plots.draw_coverage(few, file)
    uneven = dpdl.Dataset.from_counts(
        [0, 1], [0, 1], [1, 0], [1, 10**6], [0, 0], [[1], [1]], n_states=2, n_actions=2, initial=[1, 0]
    )
    plots.draw_coverage(uneven, file, np.full((2, 2), 0.5), gamma=0.9)
    assert file.tell() > 0


def test_answers(answer):
    svg(plots.draw_certificate, answer.certificate)
    if answer.candidates:
        svg(plots.draw_candidates, answer)


def test_frontier(log):
    svg(plots.draw_frontier, dpdl.frontier(log, gamma=0.9, constraint="side effects", values=[3.0, 4.0, 5.0]))


def test_grids(tmp_path):
    policy = np.eye(4)[np.arange(12) % 4]
    plots.draw_grid(
        tmp_path / "grid.png", policy, (3, 4), occupancy=np.arange(12), marks={0: "S", 11: "G"},
        shaded={"hole": [5, 6]}, title="a lake",
    )  # fmt: skip
    assert (tmp_path / "grid.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="policy"):
        plots.draw_grid(tmp_path / "no.png", policy, (4, 4))
