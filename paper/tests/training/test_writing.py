"""Writing: in order, and no error gets lost."""

import threading

import pytest

from nonloc_paper.training.checkpoint import WAITING, Writing


@pytest.mark.parametrize("in_background", [False, True])
def test_pieces_are_done_in_order(in_background):
    writing, done = Writing(in_background=in_background), []
    for number in range(20):
        writing.do(lambda number=number: done.append(number))
    writing.finish()
    assert done == list(range(20))
    writing.close()


def test_in_the_background_the_caller_goes_on():
    writing, may_go_on, waited = Writing(in_background=True), threading.Event(), []
    writing.do(lambda: waited.append(may_go_on.wait(10)))
    may_go_on.set()
    writing.close()
    assert waited == [True], "the piece saw what its caller did afterwards"


def test_without_a_background_it_is_this_thread():
    names = []
    Writing(in_background=False).do(lambda: names.append(threading.current_thread().name))
    assert names == [threading.current_thread().name]


@pytest.mark.parametrize("method", ["finish", "close"])
def test_an_error_comes_out_of_the_next_call(method):
    writing = Writing(in_background=True)

    def fail():
        raise OSError("no space left")

    writing.do(fail)
    with pytest.raises(OSError, match="no space left"):
        getattr(writing, method)()
    writing.close()


def test_after_an_error_nothing_more_is_written():
    """A checkpoint without the metrics before it would be resumed without them."""
    writing, done, may_fail = Writing(in_background=True), [], threading.Event()

    def fail():
        may_fail.wait(60)
        raise OSError("no space left")

    writing.do(fail)
    writing.do(lambda: done.append("checkpoint"))
    may_fail.set()
    with pytest.raises(OSError, match="no space left"):
        writing.close()
    assert done == []


def test_a_slow_disk_holds_the_caller_up():
    writing, may_go_on, done = Writing(in_background=True), threading.Event(), []
    writing.do(lambda: may_go_on.wait(60))
    for _ in range(WAITING - 1):
        writing.do(lambda: None)
    caller = threading.Thread(target=lambda: (writing.do(lambda: None), done.append(True)))
    caller.start()
    caller.join(0.1)
    assert done == []
    may_go_on.set()
    caller.join(60)
    assert done == [True]
    writing.close()
