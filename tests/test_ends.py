"""Ends of episodes: rows after which nothing follows, in every part of the library."""

import numpy as np
import pytest
import scipy.sparse as sp

import logs
from dpdl import CMDP, Dataset, Settings, exact, learn, mixing, resume, verify
from logs import assert_same
from problems import Run

GAMMA = 0.9


def ending_model(seed=0, S=6, A=3, I=2, gamma=GAMMA, share=0.3):
    """A random model whose episodes end with probabilities of their own; one pair always ends, many never do."""
    rng = np.random.default_rng(seed)
    ends = np.where(rng.random((S, A)) < 0.5, share * rng.random((S, A)), 0.0)
    ends[0, 0] = 1.0
    P = rng.dirichlet(np.full(S, 0.5), (S, A)) * (1 - ends)[..., None]
    u = rng.uniform(-0.6, 1, (I, S, A))
    return CMDP(P, rng.uniform(-1, 1, (S, A)), u, gamma, rng.dirichlet(np.ones(S)), ends)


def with_sink(model):
    """The same problem with a state of its own for the end, as a user had to write it."""
    S, A = model.r.shape
    P = np.zeros((S + 1, A, S + 1))
    P[:S, :, :S] = model.P.toarray().reshape(S, A, S)
    P[:S, :, S] = model.ends
    P[S, :, S] = 1
    r = np.append(model.r, np.zeros((1, A)), axis=0)
    u = np.append(model.u, np.zeros((len(model.u), 1, A)), axis=1)
    return CMDP(P, r, u, model.gamma, np.append(model.rho0, 0.0))


@pytest.fixture(scope="module")
def log():
    return ending_model().rollout(4000, np.full((6, 3), 1 / 3), rng=1)


# ---- Logs ----


def test_the_next_state_of_a_terminated_row_is_not_read():
    columns = {"s": [0, 1], "a": [0, 0], "r": [0, 0], "u": [0, 0], "n_states": 2, "n_actions": 1}
    for nowhere in (0, -1, 7, np.nan):
        log = Dataset(**columns, s_next=[1, nowhere], terminated=[False, True])
        assert log.s_next.tolist() == [1, -1]
        assert log.terminated.tolist() == [False, True]
        assert log.n_ended == 1
    with pytest.raises(ValueError, match=r"^s_next\[0\] = -1 must be between 0 and 1$"):
        Dataset(**columns, s_next=[-1, -1], terminated=[False, True])
    with pytest.raises(ValueError, match=r"^terminated\[1\] = 3 must be True or False$"):
        Dataset(**columns, s_next=[1, 0], terminated=[0, 3])
    with pytest.raises(ValueError, match=r"^terminated must have shape \(2,\), got \(3,\)$"):
        Dataset(**columns, s_next=[1, 0], terminated=[0, 1, 0])


def test_episodes_begin_after_rows_that_are_terminated_or_truncated():
    columns = {"s": [0, 1, 1, 0], "a": [0] * 4, "s_next": [1, 0, 0, 1], "r": [0] * 4, "u": [0] * 4}
    sizes = {"n_states": 2, "n_actions": 1}
    log = Dataset(**columns, **sizes, terminated=[0, 1, 0, 0], truncated=[0, 0, 1, 1])
    assert log.starts.tolist() == [0, 2, 3]
    assert log.kind == "trajectories"
    assert log.initial_counts.tolist() == [2, 1]
    np.testing.assert_array_equal(log.initial(), [2 / 3, 1 / 3])
    with pytest.raises(TypeError, match=r"^give either truncated or starts$"):
        Dataset(**columns, **sizes, starts=[0], truncated=[0] * 4)
    with pytest.raises(ValueError, match=r"^s_next\[1\] = 0 but s\[2\] = 1: a trajectory ends there"):
        Dataset(**columns, **sizes, truncated=[0] * 4)
    with pytest.raises(ValueError, match=r"^record 1 ended its episode \(terminated\), so starts must list 2"):
        Dataset(**columns, **sizes, terminated=[0, 1, 0, 0], starts=[0])


def test_the_first_states_of_episodes_are_the_default_initial_distribution(log):
    first = np.bincount(log.s[log.starts], minlength=6)
    np.testing.assert_array_equal(log.initial_counts, first)
    settings = {"gamma": GAMMA, "psi": 30, "slater": 0.2, "T": 2000, "rng": 0}
    one, other = learn(log, **settings), learn(log, **settings, rho0=first / first.sum())
    np.testing.assert_array_equal(one.x_mean, other.x_mean)
    np.testing.assert_array_equal(exact.plug_in(log, GAMMA).rho0, exact.plug_in(log, GAMMA, first / first.sum()).rho0)
    cut = log[log.starts[3] + 1 : log.starts[9]]  # begins in the middle of an episode, which is no beginning
    np.testing.assert_array_equal(cut.initial_counts, np.bincount(log.s[log.starts[4:9]], minlength=6))
    with pytest.raises(TypeError, match="the log has no episodes whose first states"):
        learn(ending_model().sample(100, np.full((6, 3), 1 / 18), rng=0), **settings)
    forever = Dataset([0, 1], [0, 0], [1, 0], [0, 0], [0, 0], n_states=2, n_actions=1, starts=[0])
    assert forever.initial_counts is None


def test_a_limit_on_a_total_holds_over_episodes_that_end():
    """The discounted cost of an episode is what it is: nothing is added after its end, and the limit stays."""
    c, gamma, limit = np.array([2.0, 5.0, 1.0]), 0.5, 3.0
    columns = ([0, 1, 0], [0, 0, 0], [1, 0, 1], [0, 0, 0], c)
    sizes = {"n_states": 2, "n_actions": 1, "terminated": [0, 1, 0], "truncated": [0, 0, 1]}
    for normalised, scale in ((False, 1), (True, 1 - gamma)):
        log = logs.from_costs(*columns, scale * limit, gamma=gamma, normalised=normalised, **sizes)
        episode = log.u[0, 0] + gamma * log.u[1, 0]
        cost = log.question.costs([episode]).item()
        assert cost == pytest.approx(scale * (c[0] + gamma * c[1]), rel=1e-14)
        assert (episode >= 0) == (c[0] + gamma * c[1] <= limit)


def test_folders_carry_ends(log, tmp_path):
    log.save(tmp_path / "log")
    again = Dataset.open(tmp_path / "log")
    assert_same(again, log)
    np.testing.assert_array_equal(again.terminated, log.terminated)
    assert log.n_ended > 300


# ---- Core, twin and eager step ----


@pytest.mark.parametrize("psi", [1.5, 40])
@pytest.mark.parametrize("kappa", [0.0, 0.3])
def test_core_twin_and_eager_step_agree(log, psi, kappa):
    from twin import Twin

    settings = Settings(gamma=GAMMA, psi=psi, slater=0.3, T=3000, kappa=kappa, eta=0.05, floor=1e-3)
    runs = {kind: Run(kind, log, settings, seed=3) for kind in ("lazy", "eager")}
    for run in runs.values():
        run.core.run(3000)
    layout = runs["eager"].layout
    records, initial = Run("eager", log, settings, seed=3).sampler.draw(3000)
    twin = Twin(log, layout.reference.mu_hat, layout.settings, *runs["eager"].start)
    for record, first in zip(records, initial, strict=True):
        twin.step(record, first)
    x, V, lam = twin.point
    for run in runs.values():
        found = run.point
        np.testing.assert_allclose(found[0], x, rtol=1e-12, atol=1e-300)
        np.testing.assert_allclose(found[1], V, rtol=0, atol=1e-12 * abs(V).max())
        np.testing.assert_allclose(found[2], lam, rtol=1e-12)


def test_checkpoints_carry_ends(log, tmp_path):
    settings = {"gamma": GAMMA, "psi": 5, "slater": 0.3, "T": 20_000, "order": "shuffle"}
    whole = learn(log, **settings, rng=0)
    learn(log, **settings, rng=0, step_limit=7001, checkpoint=tmp_path / "run")
    again = resume(tmp_path / "run", log)
    np.testing.assert_array_equal(again.x_mean, whole.x_mean)
    np.testing.assert_array_equal(again.V_mean, whole.V_mean)


def test_the_stochastic_gradients_are_those_of_the_model_with_ends(log):
    """Means over the log of what a step uses are the gradients of the plug-in model's Lagrangian."""
    model, kappa = exact.plug_in(log, GAMMA), 0.25
    rng = np.random.default_rng(5)
    V, lam, x = rng.normal(size=6), rng.random(2), rng.random((6, 3))
    mu = log.frequencies
    mu_hat = np.maximum(mu, 1e-3)
    w = x[log.s, log.a] / mu_hat[log.s, log.a]
    g_V = model.rho0.copy()
    going = ~log.terminated
    np.add.at(g_V, log.s, -w / len(log))
    np.add.at(g_V, log.s_next[going], GAMMA * w[going] / len(log))
    u = log.u - np.where(log.terminated, kappa, (1 - GAMMA) * kappa)[:, None]
    expected = exact.lagrangian_gradient(model, V, lam, x, mu, mu_hat, kappa)
    np.testing.assert_allclose(g_V, expected[0], atol=1e-12)
    np.testing.assert_allclose(w @ u / len(log), expected[1], atol=1e-12)


# ---- Models ----


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("gamma", [0.5, 0.99])
def test_exact_answers_are_those_with_a_sink(seed, gamma):
    model = ending_model(seed, gamma=gamma)
    sink, S = with_sink(model), 6
    rng = np.random.default_rng(seed)
    policy = rng.dirichlet(np.ones(3), S)
    mine, theirs = model.evaluate(policy), sink.evaluate(np.append(policy, policy[:1], axis=0))
    assert mine.reward == pytest.approx(theirs.reward, abs=1e-9)
    np.testing.assert_allclose(mine.utilities, theirs.utilities, atol=1e-9)
    np.testing.assert_allclose(mine.occupancy, theirs.occupancy[:S], atol=1e-9)
    scale = 1 - gamma
    for kappa in (0.0, 0.3 * max(model.slater(), 0.0) / scale):
        mine, theirs = model.solve(kappa), sink.solve(kappa)
        assert mine.status == theirs.status
        if mine.status == "optimal":
            assert scale * mine.reward == pytest.approx(scale * theirs.reward, abs=1e-9)
            assert min(mine.utilities) >= kappa - 1e-8 / scale
    assert model.slater() == pytest.approx(sink.slater(), abs=1e-9)


def test_deviation_is_measured_without_the_sink():
    """Caps hold for the pairs of the problem alone; a correctly weighted sink is one whose caps never bind."""
    model = ending_model(3)
    mu = np.full((6, 3), 1 / 18)
    best = model.solve().reward
    needed = model.concentrability(mu)
    assert 1 < needed < 18
    assert model.solve(psi=1.0001 * needed, mu=mu).reward == pytest.approx(best, rel=1e-6)
    tight = model.solve(psi=0.8 * needed, mu=mu)
    assert tight.status == "infeasible" or tight.reward < best - 1e-4
    if tight.status == "optimal":
        assert ((1 - GAMMA) * tight.occupancy <= 0.8 * needed * mu + 1e-9).all()


def test_many_states():
    rng = np.random.default_rng(2)
    S, A = 1500, 2
    rows = np.repeat(np.arange(S * A), 3)
    P = sp.csr_array((rng.random(3 * S * A), (rows, rng.integers(0, S, 3 * S * A))), shape=(S * A, S))
    ends = 0.2 * rng.random((S, A))
    P = sp.csr_array(sp.diags_array((1 - ends.ravel()) / P.sum(axis=1)) @ P)
    model = CMDP(P, rng.uniform(-1, 1, (S, A)), rng.uniform(-1, 1, (1, S, A)), 0.97, np.full(S, 1 / S), ends)
    policy = rng.dirichlet(np.ones(A), S)
    value = model.evaluate(policy)
    P_pi = sp.csr_array(sp.coo_array((policy.ravel(), (np.arange(S * A) // A, np.arange(S * A))))) @ P
    V = sp.linalg.spsolve(sp.csc_array(sp.eye_array(S) - 0.97 * P_pi), (policy * model.r).sum(axis=1))
    assert value.reward == pytest.approx(model.rho0 @ V, rel=1e-10)
    assert value.occupancy.sum() < 0.5 / 0.03


def test_undeclared_ends_are_refused():
    P = np.full((2, 1, 2), 0.25)
    rest = {"r": np.zeros((2, 1)), "u": np.zeros((1, 2, 1)), "gamma": 0.5, "rho0": [1, 0]}
    with pytest.raises(ValueError, match=r"^P\[0, 0\] must sum to 1, got 0.5; declare ends of episodes by ends=$"):
        CMDP(P, **rest)
    with pytest.raises(ValueError, match=r"^P\[1, 0\] must sum to 1 with ends\[1, 0\] = 0.4, got 0.9$"):
        CMDP(P, **rest, ends=[[0.5], [0.4]])
    with pytest.raises(ValueError, match=r"^ends\[0, 0\] = -0.1 must be >= 0$"):
        CMDP(P, **rest, ends=[[-0.1], [0.5]])
    assert CMDP(P, **rest, ends=[[0.5], [0.5]]).ends.tolist() == [[0.5], [0.5]]


def test_the_plug_in_model_of_a_log_comes_to_the_model_it_was_drawn_from():
    model = ending_model(4)
    found = exact.plug_in(model.sample(400_000, np.full((6, 3), 1 / 18), rng=0), GAMMA, model.rho0)
    np.testing.assert_allclose(found.ends, model.ends, atol=0.015)
    np.testing.assert_allclose(found.P.toarray(), model.P.toarray(), atol=0.02)
    assert found.solve().reward == pytest.approx(model.solve().reward, rel=0.02)


def test_a_rollout_restarts_from_the_initial_distribution():
    model = ending_model(5)
    log = model.rollout(200_000, np.full((6, 3), 1 / 3), rng=0)
    np.testing.assert_allclose(log.initial(), model.rho0, atol=0.01)
    kernel = mixing.behaviour_kernel(model, np.full((6, 3), 1 / 3))
    np.testing.assert_allclose(kernel.sum(axis=1), 1, rtol=1e-12)
    visited = np.bincount(log.s, minlength=6) / len(log)
    np.testing.assert_allclose(visited, mixing.stationary(kernel), atol=0.01)
    found = mixing.estimate_mixing_time(log)
    assert found.estimate == mixing.mixing_time(kernel)


@pytest.mark.parametrize("chunk", [1, 2, 1000])
def test_an_ended_episode_restarts_in_the_state_of_the_next_record(chunk, monkeypatch):
    monkeypatch.setattr("dpdl.data.packing.CHUNK", chunk)
    log = Dataset([0, 1, 2, 2], [0] * 4, [1, 0, 1, 0], [0] * 4, [0] * 4, n_states=3, n_actions=1,
                  terminated=[0, 1, 0, 1], truncated=[0, 0, 1, 0])  # fmt: skip
    np.testing.assert_array_equal(np.argwhere(mixing._transition_counts(log)), [(0, 1), (1, 2), (2, 1)])


# ---- Checks ----


def test_verify_sees_no_flow_residual_and_the_right_utilities_at_an_exact_occupancy(log):
    model = exact.plug_in(log, GAMMA)
    settings = {"gamma": GAMMA, "psi": 30, "slater": 0.2, "T": 10, "kappa": 0.2, "eps": 0.5}
    result = learn(log, **settings, rng=0)
    best = model.solve()
    x = best.occupancy / log.frequencies * result.reference.mu_hat
    from dataclasses import replace

    from dpdl.result import SparseTable

    there = replace(result, x_table=SparseTable(np.arange(18), x.ravel(), 0.0))
    seen = verify(there, log)
    assert seen.flow_norm < 1e-10
    assert seen.reward == pytest.approx(best.reward, abs=1e-10)
    np.testing.assert_allclose(seen.utilities, best.utilities - 0.2, atol=1e-10)


def test_slater_of_the_plug_in_model_is_that_of_the_model():
    model = ending_model(1, share=0.8)
    log = model.sample(60_000, np.full((6, 3), 1 / 18), rng=0)
    assert exact.plug_in(log, GAMMA, model.rho0).slater() == pytest.approx(model.slater(), abs=0.02)


def test_states_that_are_entered_and_never_left_get_a_note(tmp_path):
    columns = {"s": [0, 0, 1], "a": [0, 0, 0], "r": [0] * 3, "u": [0] * 3, "n_states": 5, "n_actions": 1}
    log = Dataset(**columns, s_next=[1, 4, 3])
    (note,) = log.notes
    assert note.startswith("2 states are entered but never left (3, 4): nothing is known about what follows, so the")
    log.save(tmp_path / "log")
    assert Dataset.open(tmp_path / "log").notes == log.notes
    assert note in learn(log, gamma=0.5, psi=2, slater=1, T=10, rho0=[1, 0, 0, 0, 0]).notes
    assert log[:2].notes == ()  # part of a log may stop anywhere
    declared = Dataset(**columns, s_next=[1, 4, 3], terminated=[0, 1, 1])
    assert declared.notes == ()
    table = {"s": ["a", "a"], "a": [0, 0], "n": ["a", "b"], "r": [0, 1]}
    (note,) = logs.from_table(table, state="s", action="a", reward="r", next_state="n").notes
    assert note.startswith("1 state is entered but never left ('b')")


def test_a_part_from_the_middle_of_an_episode_does_not_know_where_episodes_begin():
    log = Dataset([0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0], [1.0] * 4, [[0.5]] * 4, n_states=2, n_actions=2,
                  terminated=[0, 0, 1, 0], truncated=[0, 0, 0, 1])  # fmt: skip
    assert log[1:3].initial_counts is None
    with pytest.raises(TypeError, match="rho0"):
        log[1:3].initial()
    assert log[:3].initial().tolist() == [1, 0]
