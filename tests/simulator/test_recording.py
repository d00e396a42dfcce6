"""Calls are remembered only while asked for, nested as they were made, and change no result."""

import pytest

from simulator.recording import recorded, recording


@recorded
def half(value: float, *, times: int = 1) -> float:
    return value / 2 if times == 1 else half(value / 2, times=times - 1)


@recorded
def fails() -> None:
    raise ValueError("no")


def test_nothing_is_kept_unless_asked():
    half(8)
    with recording() as calls:
        pass
    half(8)
    assert calls == []


def test_calls_lie_inside_the_calls_that_made_them():
    with recording() as calls:
        assert half(8, times=2) == 2
        assert half(6) == 3
    assert [(call.name, call.result) for call in calls] == [("half", 2), ("half", 3)]
    assert calls[0].arguments == {"value": 8, "times": 2}
    assert [call.result for call in calls[0].calls] == [2]
    assert calls[0].last("half").result == 2
    assert list(calls[1].all("half")) == []
    with pytest.raises(LookupError, match="no call of third"):
        calls[0].last("third")


def test_a_recording_inside_a_recording_has_its_own_calls():
    with recording() as outer:
        half(2)
        with recording() as inner:
            half(4)
        half(6)
    assert [call.result for call in inner] == [2]
    assert [call.result for call in outer] == [1, 3]


def test_recording_goes_on_after_an_error():
    with recording() as calls:
        with pytest.raises(ValueError, match="no"):
            fails()
        half(4)
    assert [call.name for call in calls] == ["half"]
