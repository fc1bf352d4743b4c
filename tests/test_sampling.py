"""The draws: exactly uniform, equal to a pure-Python reading of the same bit stream, in the order promised."""

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chi2

from dpdl import _core, _kernels

ORDERS = ["replacement", "shuffle", "trajectory"]
BOUNDS = [1, 2, 3, 10, 1000, 2**32 - 1, 2**32 + 1, 3 * 2**62, 2**63, 2**63 + 1, 2**64 - 1]
# Seeds are fixed, so a test of fit fails for good or never: only a biased sampler is that far out.
UNLIKELY = 1e-4


class Stream:
    """The 64-bit words of a bit generator, used one at a time as the core uses them."""

    def __init__(self, seed):
        self.bits = np.random.PCG64(seed)

    def word(self):
        return int(self.bits.random_raw())

    def bounded(self, n):
        """Lemire's method in whole numbers: reject the incomplete last interval."""
        if n <= 1:
            return 0
        while True:
            product = self.word() * n
            if product % 2**64 >= 2**64 % n:
                return product // 2**64

    def double(self):
        return (self.word() >> 11) * 2.0**-53


def fits(counts, expected):
    statistic = ((np.asarray(counts) - expected) ** 2 / expected).sum()
    return chi2.sf(statistic, len(counts) - 1) > UNLIKELY


@pytest.mark.parametrize("bound", BOUNDS)
def test_bounded_integers_are_lemire_s_on_the_same_words(bound):
    bits, stream = np.random.PCG64(5), Stream(5)
    drawn = _kernels.bounded_integers(bits, bound, 2000)
    assert [int(k) for k in drawn] == [stream.bounded(bound) for _ in range(2000)]
    # As many words were used, rejections included: half of the draws at 2^63 + 1 need more than one.
    assert int(bits.random_raw()) == stream.word()


@pytest.mark.parametrize("bound", BOUNDS)
def test_bounded_integers_are_uniform_and_in_range(bound):
    n = 100_000
    drawn = _kernels.bounded_integers(np.random.PCG64(11), bound, n)
    assert drawn.dtype == np.uint64
    assert int(drawn.max()) < bound
    cells = min(bound, 16)
    if bound <= 1000:
        cells = bound
        counts = np.bincount(drawn.astype(np.int64), minlength=bound)
        expected = np.full(bound, n / bound)
    else:
        # Cell k holds the numbers with k <= 16 v / bound < k + 1; their share is 1/16 to within 16 / 2^32.
        edges = np.array([-(-k * bound // cells) for k in range(1, cells)], dtype=np.uint64)
        counts = np.bincount(np.searchsorted(edges, drawn, side="right"), minlength=cells)
        expected = np.full(cells, n / cells)
    if cells > 1:
        assert fits(counts, expected)


def test_the_test_of_fit_sees_a_modulo_bias():
    words = np.random.PCG64(11).random_raw(100_000)
    bound = np.uint64(3 * 2**62)
    counts = np.bincount(((words % bound) >> np.uint64(58)).astype(np.int64) * 16 // 48, minlength=16)
    assert not fits(counts, np.full(16, 100_000 / 16))


AWKWARD = {
    "one": [1.0],
    "two": [0.25, 0.75],
    "thirds": [1 / 3] * 3,
    "tenths": [0.1] * 10,
    "tiny": [1e-300, 1 - 1e-12, 1e-12],
    "subnormal": [5e-324, 1.0],
    "nearly even": [np.nextafter(0.5, 0), 0.5],
    "not quite one": [0.3, 0.3, 0.4 - 5e-10],
    "steep": (0.5 ** np.arange(1, 60)).tolist(),
    "many": np.random.default_rng(0).dirichlet(np.full(1000, 0.05)).clip(1e-300).tolist(),
    "large": np.random.default_rng(1).dirichlet(np.ones(100_000)).tolist(),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_the_alias_table_holds_the_probabilities(name):
    p = np.array(AWKWARD[name])
    keep, alias = _core.alias_table(p)
    assert ((keep >= 0) & (keep <= 1)).all()
    drawn = keep.copy()
    np.add.at(drawn, alias, 1 - keep)
    # Shares are of order one and divided by n at the end, so roundings stay below 1e-15 in all.
    np.testing.assert_allclose(drawn / len(p), p / p.sum(), rtol=0, atol=1e-15)


def sampler(order="replacement", n=7, seed=3, initial=(0, 1, 2), p=(0.2, 0.5, 0.3)):
    return _core.Sampler(np.random.PCG64(seed), n, order, np.array(initial, dtype=np.int32), np.array(p))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("initial", "p"), [((4,), (1.0,)), ((2, 5, 9), (0.2, 0.5, 0.3))])
def test_a_sampler_reads_the_stream_record_first_then_initial_state(order, initial, p):
    n, total = 7, 500
    stream, permutation = Stream(3), list(range(n))
    keep, alias = _core.alias_table(np.array(p))
    records, states = [], []
    for t in range(total):
        k = t % n
        if order == "replacement":
            records.append(stream.bounded(n))
        elif order == "trajectory":
            records.append(k)
        else:
            j = k + stream.bounded(n - k)
            permutation[k], permutation[j] = permutation[j], permutation[k]
            records.append(permutation[k])
        column = stream.bounded(len(p))
        if len(p) > 1 and stream.double() >= keep[column]:
            column = alias[column]
        states.append(initial[column])
    drawn = sampler(order, n, 3, initial, p).draw(total)
    assert drawn[0].tolist() == records
    assert drawn[1].tolist() == states


@pytest.mark.parametrize("order", ORDERS)
def test_drawing_in_parts_is_drawing_at_once(order):
    whole, parts = sampler(order), sampler(order)
    together = whole.draw(1000)
    pieces = [parts.draw(n) for n in (500, 0, 1, 3, 496)]
    for k in (0, 1):
        np.testing.assert_array_equal(np.concatenate([piece[k] for piece in pieces]), together[k])


def test_initial_states_follow_their_distribution():
    n = 200_000
    _, initial = sampler(initial=(3, 8, 20), p=(0.2, 0.5, 0.3)).draw(n)
    counts = Counter(initial.tolist())
    assert set(counts) == {3, 8, 20}
    assert fits([counts[3], counts[8], counts[20]], n * np.array([0.2, 0.5, 0.3]))


def test_shuffled_epochs_are_permutations_and_differ():
    n = 50
    epochs = sampler("shuffle", n).draw(40 * n)[0].reshape(40, n)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.broadcast_to(np.arange(n), epochs.shape))
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == len(epochs)


def test_shuffled_epochs_are_uniform_over_all_permutations():
    n, epochs = 4, 48_000
    drawn = sampler("shuffle", n, initial=(0,), p=(1.0,)).draw(epochs * n)[0].reshape(epochs, n)
    counts = Counter(map(tuple, drawn.tolist()))
    orders = list(itertools.permutations(range(n)))
    assert set(counts) == set(orders)
    assert fits([counts[order] for order in orders], np.full(24, epochs / 24))
    assert fits(np.bincount(drawn[:, 0], minlength=n), np.full(n, epochs / n))
    # An epoch says nothing about the next: the first record of one against the last of the one before.
    table = np.bincount(drawn[:-1, -1] * n + drawn[1:, 0], minlength=n * n)
    assert fits(table, np.full(n * n, (epochs - 1) / n**2))


def test_a_trajectory_is_read_in_its_own_order_over_and_over():
    records, _ = sampler("trajectory", 7).draw(23)
    np.testing.assert_array_equal(records, np.arange(23) % 7)


@pytest.mark.parametrize("order", ORDERS)
def test_a_log_of_one_record(order):
    records, initial = sampler(order, 1, initial=(6,), p=(1.0,)).draw(10)
    assert records.tolist() == [0] * 10
    assert initial.tolist() == [6] * 10


def test_any_bit_generator_will_do():
    for kind in (np.random.MT19937, np.random.Philox, np.random.SFC64, np.random.PCG64DXSM):
        drawn = _kernels.bounded_integers(kind(2), 3, 30_000)
        assert fits(np.bincount(drawn.astype(np.int64), minlength=3), np.full(3, 10_000))
