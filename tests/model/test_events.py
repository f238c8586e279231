"""Histories as native code reads them: as Python does, which gets those that are unusual."""

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace import _native
from grace.errors import RequestError
from grace.model.fields import MISSING, UNKNOWN, SequenceField

FIELD = SequenceField.from_dict({"name": "clicks", "actions": ["view", "buy", "é"]})
zones = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(
    min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29), timezones=st.just(UTC) | zones
)
spelled = st.one_of(
    moments.map(datetime.isoformat),
    moments.map(lambda moment: moment.isoformat(timespec="seconds").replace("+00:00", "Z")),
    moments.map(lambda moment: moment.isoformat(" ", timespec="milliseconds")),
    moments.map(lambda moment: moment.replace(tzinfo=None).isoformat()),
    st.sampled_from((
        "", "2026-02-29T00:00:00Z", "2024-02-29T23:59:59Z", "2026-01-01T24:00:00Z",
        "2026-01-01T00:00:60Z", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00+24:00",
        "2026-01-01T00:00:00.5Z", "2026-01-01", "20260101T000000Z", "2026-01-01T00:00:00ZZ",
        "2026-01-01T00:00:00+01:00:30", "0000-01-01T00:00:00Z", "\uff12026-01-01T00:00:00Z",
        "\ud800",
        "1900-02-29T00:00:00Z", "2000-02-29T12:00:00-23:59", "2255-06-05T23:47:34.740993Z",
    )),
)  # fmt: skip
times = st.one_of(
    st.none(), spelled, st.integers(-(10**12), 10**12), st.floats(), st.booleans(),
    st.sampled_from((1e11, -1e11, 10**11, 10**11 + 1, 2**63, 10**400)),
)  # fmt: skip
events = st.one_of(
    st.fixed_dictionaries(
        {"ad_id": st.one_of(st.integers(), st.text(max_size=3), st.booleans(), st.none())},
        optional={
            "action": st.sampled_from(("view", "buy", "é", "?", "\ud800", None, 5, True, [])),
            "at": times, "more": st.none(),
        },
    ),
    st.sampled_from((None, [], {}, "text", {"at": 5})),
)  # fmt: skip
usual = st.fixed_dictionaries(
    {"ad_id": st.integers() | st.text(max_size=3)},
    optional={"action": st.sampled_from(("view", "é", "?", None)), "at": spelled | st.none()},
)


def parsed(value):
    """What FIELD makes of a history, or its error, as one can compare."""
    try:
        ad_ids, actions, times_s = FIELD.parse(value)
    except RequestError as error:
        return error.field, error.message
    assert (actions.dtype, times_s.dtype) == (np.int64, np.float64)
    return ad_ids, list(map(type, ad_ids)), actions.tolist(), times_s.view(np.int64).tolist()


@given(st.lists(events, max_size=4) | st.lists(usual, max_size=4))
def test_native_code_reads_what_python_reads(history):
    found = parsed(history)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "read_events", lambda *args: None)
        assert parsed(history) == found


@given(moments)
def test_an_instant_has_the_same_bits(moment):
    """Wherever a float holds its microseconds; native code leaves the others."""
    history = [{"ad_id": 1, "at": moment.isoformat()}]
    read = _native.read_events(history, FIELD.actions.rows, MISSING, UNKNOWN)
    if read is not None:
        assert read[2].tolist() == [moment.timestamp()]
    elif moment.utcoffset().seconds % 60 == 0:
        assert abs(moment.timestamp()) * 1e6 > 2**53 - 10**6


def test_usual_histories_are_not_left_to_python():
    history = [
        {"ad_id": 1, "action": "view", "at": "1997-09-22T21:57:58+00:00"},
        {"ad_id": "x", "action": None, "at": 1e9},
        {"ad_id": 2**70, "at": "2026-03-01T12:00:00.250000Z"},
        {"ad_id": 3, "action": "never seen", "at": None},
    ]
    ad_ids, actions, times_s = _native.read_events(history, FIELD.actions.rows, MISSING, UNKNOWN)
    assert ad_ids == [1, "x", 2**70, 3]
    assert actions.tolist() == [3, MISSING, UNKNOWN - 1, UNKNOWN]
    assert times_s[:3].tolist() == [874965478.0, 1e9, 1772366400.25]
    assert np.isnan(times_s[3])
