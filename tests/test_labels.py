"""Labels of states and actions."""

import datetime
import enum
import json
import pickle

import numpy as np
import pytest

from dpdl.data.labels import Labels, ordered

KINDS = {
    "text": ["Zürich", "a", "\ud800", ""],
    "whole": [-3, 0, 2**70],
    "real": [0.1, 2, 1e300],
    "bool": [False, True],
    "date": [datetime.date(2024, 2, 29), datetime.date(2024, 3, 1)],
    "datetime": [
        datetime.datetime(2024, 2, 29, 1, 2, 3, 456789),
        datetime.datetime(2024, 3, 1, tzinfo=datetime.UTC).replace(tzinfo=None),
    ],
    "tuple": [("a", 1, 0.5), ("a", 2, 0.5), ("b", 1, 0.25)],
    "nested": [(("a", 1), True), (("b", 1), False)],
    "one-tuple": [("a",), ("b",)],
}


@pytest.mark.parametrize("name", KINDS)
def test_stored_and_read_back_with_their_kinds(name):
    labels = Labels(KINDS[name], ["go"])
    again = Labels.from_json(json.loads(json.dumps(labels.to_json())))
    assert again == labels
    assert [type(label) for label in again.states] == [type(label) for label in labels.states]
    for k, label in enumerate(KINDS[name]):
        assert again.state(label) == k


def test_aware_times_keep_their_offset():
    zone = datetime.timezone(datetime.timedelta(hours=2))
    labels = Labels([datetime.datetime(2024, 3, 1, 12, tzinfo=zone)], ["go"])
    again = Labels.from_json(json.loads(json.dumps(labels.to_json())))
    assert again.states[0].utcoffset() == zone.utcoffset(None)


def test_numpy_scalars_become_python_values():
    labels = Labels(np.array([3, 1]), np.array(["x", "y"]))
    assert [type(one) for one in (*labels.states, *labels.actions)] == [int, int, str, str]
    assert labels.state(np.int64(1)) == 1
    assert labels.action(np.str_("y")) == 1


def test_a_kind_that_cannot_be_stored_is_named_when_it_is_saved():
    color = enum.Enum("Color", "RED BLUE")
    labels = Labels(list(color), ["go"])  # in memory any hashable value will do
    assert labels.state(color.BLUE) == 1
    with pytest.raises(ValueError, match=r"^states: <Color\.RED: 1> cannot be stored: it is a Color$"):
        labels.to_json()
    with pytest.raises(ValueError, match=r"^actions: None cannot be stored: it is a NoneType$"):
        Labels(["a"], [("go", None)]).to_json()


@pytest.mark.parametrize(
    ("labels", "wanted", "message"),
    [
        (["home", "ward", "icu"], "wart", "there is no state 'wart'; the closest is 'ward'"),
        (["home", "ward", "icu"], "zzz", "there is no state 'zzz'; none is close to it"),
        ([1, 5, 9, 20], 6, "there is no state 6; the closest are 5, 9, 1"),
        ([("a", 1), ("b", 2)], ("a", 3), "there is no state ('a', 3); the closest are ('a', 1)"),
        (["1", "2"], 1, "there is no state 1; the closest is '1'"),
        (["a"], ["a"], "['a'] cannot be a state: it is not hashable"),
    ],
)
def test_an_unknown_label_is_a_value_error_with_the_closest(labels, wanted, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        Labels(labels, ["go"]).state(wanted)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, "1"], r"^states: labels of one column must be of one kind, got 1 \(number\) and '1' \(text\)$"),
        ([("a", 1), (1, "a")], r"got \('a', 1\) \(\(text, number\)\) and \(1, 'a'\)"),
        ([False, 2], r"got False \(bool\) and 2 \(number\)"),
        (["a", "b", "a"], r"^states\[2\] = 'a' equals states\[0\] = 'a'$"),
        ([1, 1.0], r"^states\[1\] = 1.0 equals states\[0\] = 1$"),
        ([0.5, float("nan")], r"^states\[1\] = nan cannot be a label: it is not finite$"),
        ([], r"^states must have at least one label$"),
    ],
)
def test_invalid_labels(labels, message):
    with pytest.raises(ValueError, match=message):
        Labels(labels, ["go"])


def test_an_unhashable_label():
    with pytest.raises(TypeError, match=r"^actions\[1\] = \[1\] cannot be a label: it is not hashable$"):
        Labels(["a"], [(1,), [1]])


@pytest.mark.parametrize(
    "content",
    [
        {"states": ["a"]},
        {"states": "a", "actions": ["go"]},
        {"states": [None], "actions": ["go"]},
        {"states": [{"date": 3}], "actions": ["go"]},
        {"states": [{"date": "yesterday"}], "actions": ["go"]},
        {"states": [{"time": "12:00"}], "actions": ["go"]},
        {"states": ["a", 1], "actions": ["go"]},
        [],
    ],
)
def test_invalid_json(content):
    with pytest.raises(ValueError, match=r"labels|isoformat|states"):
        Labels.from_json(content)


def test_order_does_not_depend_on_where_labels_come_from():
    assert ordered(["b", "B", "a"]) == ["B", "a", "b"]
    assert ordered([10, 9, 2.5]) == [2.5, 9, 10]
    assert ordered([("b", 1), ("a", 10), ("a", 9)]) == [("a", 9), ("a", 10), ("b", 1)]


def test_frozen_and_pickled():
    labels = Labels(["a"], ["go"])
    with pytest.raises(AttributeError):
        labels.states = ("b",)
    assert pickle.loads(pickle.dumps(labels)) == labels
    assert hash(labels) == hash(Labels(["a"], ["go"]))
