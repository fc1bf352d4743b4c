"""Pictures: each can be drawn, for easy and for awkward logs, and shows what it says."""

import io
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

import dpdl
from dpdl import plots
from dpdl.demo import COLUMNS, QUESTION, record
from dpdl.recording import Recorder


@pytest.fixture(scope="module")
def log():
    return dpdl.read_log(record(400, np.random.default_rng(0)), **COLUMNS)


@pytest.fixture(scope="module")
def recorder(log):
    recorder = Recorder()
    run = {"psi": 4, "slater": 0.1, "T": 50_000, "rng": 0}
    dpdl.learn(log, **QUESTION, **run, callback=recorder, callback_every=5_000)
    return recorder


@pytest.fixture(scope="module")
def answer(log):
    return dpdl.safe_policy(log, **QUESTION)


def svg(figure):
    """The figure as SVG, checked to be well-formed and to have something in it."""
    file = io.BytesIO()
    plots.save(figure, file)
    tree = ElementTree.fromstring(file.getvalue())
    assert tree.tag.endswith("svg")
    assert len(list(tree.iter())) > 50
    return file.getvalue()


def axes():
    return Figure().subplots()


def test_convergence(recorder, tmp_path):
    for name in ("a.png", "a.pdf"):
        plots.draw_convergence(recorder, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    with pytest.raises(ValueError, match="fewer than two"):
        plots.draw_convergence(Recorder(), tmp_path / "b.png")


def test_certificates_come_as_axes_that_one_can_go_on_with(answer):
    given = axes()
    ax = answer.plot(given)
    assert ax is given
    assert [label.get_text() for label in ax.get_yticklabels()] == ["side effects", "icu days"]
    estimate = answer.certificate.constraints[0].estimate
    dots = [line.get_xdata()[0] for line in ax.lines if line.get_marker() == "o"]
    assert dots[0] == pytest.approx(estimate / 1.5 - 1)
    ax.set_title("ours")
    again = axes()
    answer.certificate.plot(again).set_title("ours")
    assert svg(ax.figure) == svg(again.figure)  # the same picture has the same bytes
    free = dpdl.Dataset([0] * 40, [0] * 40, [0] * 40, [1.0] * 40, n_states=1, n_actions=1)
    with pytest.raises(ValueError, match="without constraints"):
        dpdl.certify([[1.0]], free, gamma=0.5, rho0=[1.0]).plot(axes())


def test_without_axes_there_are_new_ones(answer):
    import matplotlib.pyplot as plt

    ax = answer.plot()
    svg(ax.figure)
    plt.close(ax.figure)


def test_frontier(log):
    found = dpdl.frontier(log, **QUESTION, constraint="side effects", values=[1.0, 2.0, 3.0])
    ax = found.plot(axes())
    svg(ax.figure)
    assert ax.get_xlabel() == "limit of side effects"
    assert ax.lines[0].get_xdata().tolist() == [point.limit for point in found.points]


def test_coverage(log):
    svg(plots.plot_coverage(log, axes()).figure)
    few = dpdl.Dataset([0], [0], [1], [0.0], [[1.0]], n_states=2, n_actions=2)
    assert plots.plot_coverage(few, axes()).get_title() == "3 of 4 pairs were never logged"
    uneven = dpdl.Dataset.from_counts(
        [0, 1], [0, 1], [1, 0], [1, 10**6], [0, 0], [[1], [1]], n_states=2, n_actions=2, initial=[1, 0]
    )
    assert plots.plot_coverage(uneven, axes()).get_xscale() == "log"
