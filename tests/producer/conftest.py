"""Fixtures of the producer's tests."""

import shutil
from collections.abc import Iterator

import pytest

from trikafka._wire import _implementation


@pytest.fixture(params=["native", "pure"])
def record_path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once with the compiled record path and once with the one in Python."""
    if request.param not in _implementation.available():
        if shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"):
            pytest.fail(f"there is a C compiler, but the {request.param} record path is not built")
        pytest.skip("no C compiler here, so nothing compiled to test")
    before = _implementation.use(request.param)
    yield request.param
    _implementation.use(before)
