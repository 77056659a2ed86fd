import pytest
from tiny_archive import Tiny, make_tiny


@pytest.fixture
def tiny() -> Tiny:
    return make_tiny(0)
