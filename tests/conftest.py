"""What every test shares: one thread, so that timings and sums do not depend on the machine's cores."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)
