"""A small record of episodes, and files of it in every format."""

import warnings

import h5py
import numpy as np

GAMMA = 0.9

#: Fields of D4RL and DSRL, and of OmniSafe, in the order of `episodes`.
D4RL = ("observations", "actions", "rewards", "costs", "next_observations", "terminals", "timeouts")
OMNISAFE = ("obs", "action", "reward", "cost", "next_obs")


def episodes(n=40, seed=3, n_states=5):
    """Columns s, a, r, c, s_next, terminated, truncated of n steps: episodes of about five steps that end or stop."""
    rng = np.random.default_rng(seed)
    ends = rng.random(n) < 0.2
    ends[-1] = True
    terminated = ends & (rng.random(n) < 0.5)
    states = rng.integers(0, n_states, n)
    s_next = np.append(states[1:], 0)
    s_next[ends] = rng.integers(0, n_states, ends.sum())
    costs = rng.integers(0, 3, n).astype(float)
    return states, rng.integers(0, 3, n), rng.normal(size=n), costs, s_next, terminated, ends & ~terminated


def fields(names=D4RL, **options):
    """The record under the names of a format."""
    found = dict(zip(names, episodes(**options), strict=False))
    if names is OMNISAFE:
        *_, terminated, truncated = episodes(**options)
        found = {name: one.astype(np.float32)[:, None] for name, one in found.items()}
        found["done"] = (terminated | truncated).astype(np.float32)[:, None]
    return found


def write_hdf5(path, arrays, **options):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **options)
    return path


def write_npz(path, arrays, compressed=False):
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


def write_minari(name, observations, record, reset=True, spaces=None, infos=None):
    """A Minari data set of the record in the folder that MINARI_DATASETS_PATH names, by its own functions.

    Observations of step k and after the last step of an episode are ``observations(state)``.
    """
    import gymnasium
    import minari
    from minari.data_collector import EpisodeBuffer

    s, a, r, c, s_next, terminated, truncated = record
    last = np.flatnonzero(terminated | truncated)
    buffers = []
    for number, (first, end) in enumerate(zip([0, *(last[:-1] + 1)], last + 1, strict=True)):
        cost = np.append(99.0, c[first:end]) if reset else c[first:end]
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations=observations(np.append(s[first:end], s_next[end - 1])),
                actions=a[first:end],
                rewards=r[first:end],
                terminations=terminated[first:end],
                truncations=truncated[first:end],
                infos={"cost": cost} if infos is None else infos(number, cost),
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about fields that describe the data set, and the environment
        minari.create_dataset_from_buffers(
            name,
            buffers,
            observation_space=spaces or gymnasium.spaces.Discrete(int(max(s.max(), s_next.max())) + 1),
            action_space=gymnasium.spaces.Discrete(int(a.max()) + 1),
            data_format="hdf5",
        )
