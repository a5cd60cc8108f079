"""Turns of the emulator's threads."""

from functools import partial

import pytest
from tools.cuda_threads import Meeting, Own, Turns


def run(tasks) -> list:
    """What tasks note; each is called with the turns and the notes."""
    notes: list = []
    turns = Turns(partial(lambda task: task(turns, notes), task) for task in tasks)
    turns.run()
    return notes


def test_who_waits_lets_others_go_first():
    meeting = Meeting(3)

    def task(number, turns, notes):
        notes.append(("before", number))
        meeting.wait(turns)
        notes.append(("after", number))

    notes = run([partial(task, n) for n in range(3)])
    assert notes == [("before", 0), ("before", 1), ("before", 2), ("after", 2), ("after", 0), ("after", 1)]


def test_a_barrier_that_not_all_reach_is_known_at_once():
    meeting = Meeting(3)
    with pytest.raises(AssertionError, match="threads wait for each other"):
        run([lambda turns, notes: meeting.wait(turns)] * 2)


def test_the_first_to_fail_ends_the_others():
    meeting, after = Meeting(3), []

    def fail(turns, notes):
        raise ValueError("wrong")

    def wait(turns, notes):
        meeting.wait(turns)
        after.append(1)

    with pytest.raises(ValueError, match="wrong"):
        run([wait, wait, fail])
    assert not after


def test_each_has_attributes_of_its_own():
    own, meeting = Own(), Meeting(2)

    def task(number, turns, notes):
        own.number = number
        meeting.wait(turns)
        notes.append(own.number)

    assert run([partial(task, 1), partial(task, 2)]) == [2, 1]
    assert not hasattr(own, "number")
