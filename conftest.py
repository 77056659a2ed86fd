"""What every test shares: one thread, so that timings and sums do not depend on the machine's cores; GPU kernels in
Triton's interpreter where there is no GPU; and how many examples a property is held to."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

import nonloc
from nonloc._torch_compat import has_triton

# A shell that starts the tests in its background has them ignore the signal that several of them are about.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Triton reads this when it is imported, which several parts of torch do without being asked.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _one_product():
    """Interpreted kernels take the same bits from q·k and k·q, as tensor cores do. In float32 numpy's product does so
    on some processors alone, and of logits of 10⁶ the last bits decide."""
    if os.environ.get("TRITON_INTERPRET") != "1" or not has_triton():
        return
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_dot(self, a, b, d, *options):
        product = np.matmul(a.data, b.data, dtype=np.float64) + d.data
        return TensorHandle(product.astype(d.data.dtype), d.dtype.scalar)

    InterpreterBuilder.create_dot = create_dot


@pytest.fixture(autouse=True)
def _one_way_to_compute():
    """On a CPU without bfloat16 the first product in it turns oneDNN off, and all later sums are others."""
    yield
    if torch.backends.mkldnn.is_available():
        torch.backends.mkldnn.enabled = True


def pytest_addoption(parser):
    text = (
        "skip a test that needs a package which is not installed, if the test imports it or nonloc names it"
    )
    parser.addoption("--minimal", action="store_true", help=text)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return _skipped_if_named(report, getattr(report, "call", None), collector)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return _skipped_if_named((yield), call, item)


def _skipped_if_named(report, call, node):
    if node.config.getoption("--minimal") and report.failed and call is not None:
        error = call.excinfo.value.__cause__ or call.excinfo.value
        if _names_what_is_missing(error):
            report.outcome, report.longrepr = "skipped", (str(node.path), 0, f"Skipped: {error}")
    return report


def _names_what_is_missing(error):
    if "pip install 'nonloc[" in str(error):
        return True
    frame = error.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    library = Path(nonloc.__file__).parent
    return (
        isinstance(error, ModuleNotFoundError)
        and library not in Path(frame.tb_frame.f_code.co_filename).parents
    )


# The same examples on every machine by default; HYPOTHESIS_PROFILE=long looks for new ones, and for more of them.
settings.register_profile("default", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=1000, deadline=None, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
