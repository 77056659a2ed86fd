"""evaluating: whatever happens meanwhile, a model is afterwards in the modes that it had."""

import threading

from torch import nn

from nonloc._evaluation import evaluating


def test_a_second_thread_waits_for_the_mode_that_the_model_has():
    model, inside = nn.Sequential(nn.Dropout()).train(), threading.Event()

    def look():
        with evaluating(model):
            inside.set()

    with evaluating(model):
        other = threading.Thread(target=look)
        other.start()
        assert not inside.wait(0.2)
    other.join()
    assert inside.is_set()
    assert model.training
