"""What every test shares: one thread, so that timings and sums do not depend on the machine's cores; GPU kernels in
Triton's interpreter where there is no GPU; and how many examples a property is held to."""

import os
import signal

import pytest
import torch
from hypothesis import settings

# A shell that starts the tests in its background has them ignore the signal that several of them are about.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Triton reads this when it is imported, which several parts of torch do without being asked.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _one_way_to_compute():
    """On a CPU without bfloat16 the first product in it turns oneDNN off, and all later sums are others."""
    yield
    if torch.backends.mkldnn.is_available():
        torch.backends.mkldnn.enabled = True


# The same examples on every machine by default; HYPOTHESIS_PROFILE=long looks for new ones, and for more of them.
settings.register_profile("default", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=1000, deadline=None, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
