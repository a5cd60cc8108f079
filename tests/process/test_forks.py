"""Work in forks: the alternative that is chosen goes on, whichever process found it."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from tools.answering import Answering

from tilec.process import compile_server, forks

pytestmark = pytest.mark.skipif(not compile_server._POSSIBLE, reason="processes of their own are for Linux")


def least(message):
    return message.index(min(message))


def weighed(tree):
    """The least number of a tree of lists, found by `forks.choose` at each level. None fails."""
    if not isinstance(tree, list):
        if tree is None:
            raise ValueError("none")
        return tree
    number, found, message = forks.choose([lambda each=each: weighed(each) for each in tree], lambda n: n, least)
    assert found == min(message) == message[number]
    return found


def flat(tree):
    return [n for each in tree for n in flat(each)] if isinstance(tree, list) else [tree]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 8))])
def test_the_chosen_alternative_answers_whoever_found_it(seed):
    draw = random.Random(seed)

    def tree(depth):
        return draw.random() if depth == 0 or draw.random() < 0.3 else [tree(depth - 1) for _ in range(draw.randint(1, 3))]

    def answer(request, report):
        for each in request["before"]:
            weighed(each)
        return {"least": weighed(request["tree"]), "process": os.getpid()}

    with Answering(answer) as process:
        for _ in range(5):
            request = {"tree": [tree(2), tree(2)], "before": [tree(1) for _ in range(draw.randint(0, 2))]}
            _, reply = process.ask(request)
            assert reply["least"] == min(flat(request["tree"]))


def test_all_alternatives_are_found_at_a_time():
    def answer(request, report):
        number, _, message = forks.choose([lambda: sleep_until(request["together"])] * 3, lambda pid: pid, lambda message: 2)
        return {"number": number, "said": message, "process": os.getpid()}

    with Answering(answer) as process:
        _, reply = process.ask({"together": time.time() + 0.3})
    assert reply["number"] == 2 and reply["said"][2] == reply["process"] != process.process
    assert len(set(reply["said"])) == 3


def sleep_until(end):
    assert time.time() < end
    time.sleep(max(0.0, end - time.time()))
    return os.getpid()


def test_a_fork_that_fails_fails_in_its_process():
    def answer(request, report):
        try:
            return {"found": weighed(request["tree"])}
        except ValueError as error:
            return {"error": str(error), "process": os.getpid()}

    with Answering(answer) as process:
        assert process.ask({"tree": [3, 1, None]})[1] == {"error": "none", "process": process.process}
        assert process.ask({"tree": [None, 1]})[1] == {"error": "none", "process": process.process}
        assert process.ask({"tree": [3, [2, 1]]})[1] == {"found": 1}


@pytest.mark.parametrize("chosen", [False, True])
def test_a_fork_that_is_killed_is_made_up_for(chosen):
    """Before it is chosen its process does its work, and after that the whole request."""

    def answer(request, report):
        own = os.getpid()

        def second():
            if os.getpid() != own and not chosen:
                os.kill(os.getpid(), signal.SIGKILL)
            return 1

        _, found, _ = forks.choose([lambda: 2, second], lambda n: n, least)
        if os.getpid() != own:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"found": found, "process": own}

    with Answering(answer) as process:
        for _ in range(2):
            assert process.ask({})[1] == {"found": 1, "process": process.process}


def test_items_come_in_order_as_soon_as_they_are_there():
    def answer(request, report):
        for found in forks.each(lambda n: (n, os.getpid()), request["count"]):
            report(found)
        return {"process": os.getpid()}

    with Answering(answer) as process:
        for count in (0, 1, 2, 3, 9):
            parts, reply = process.ask({"count": count})
            assert [n for n, _ in parts] == list(range(count))
            assert count < 2 or reply["process"] not in {pid for _, pid in parts}
            assert len({pid for _, pid in parts}) == min(count, forks.AT_ONCE)


def test_an_item_that_fails_fails_in_its_process():
    def answer(request, report):
        try:
            return {"found": list(forks.each(lambda n: 1 // (2 - n), 4))}
        except ZeroDivisionError:
            return {"error": os.getpid()}

    with Answering(answer) as process:
        assert process.ask({})[1] == {"error": process.process}


def test_items_of_one_that_went_on():
    def answer(request, report):
        weighed([2, [3, 1]])
        found = list(forks.each(lambda n: n * n, 6))
        weighed([2, 3])
        return {"found": found, "least": weighed([5, 4])}

    with Answering(answer) as process:
        for _ in range(3):
            assert process.ask({})[1] == {"found": [0, 1, 4, 9, 16, 25], "least": 4}


def test_without_leave_all_is_done_here():
    forks.allow(False)
    assert weighed([3, [2, 1], 4]) == 1
    assert list(forks.each(lambda n: os.getpid(), 3)) == [os.getpid()] * 3


def test_no_process_is_left():
    def answer(request, report):
        return {"least": weighed(request["tree"])}

    with Answering(answer) as process:
        process.ask({"tree": [[3, 1], [2, [0, 5]]]})
        children = Path(f"/proc/{process.process}/task/{process.process}/children")
        end = time.monotonic() + 10
        while children.read_text() and time.monotonic() < end:
            time.sleep(0.05)
        assert not children.read_text()
