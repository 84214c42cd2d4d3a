"""Fixtures of the producer's tests."""

from collections.abc import Iterator

import pytest

from trikafka._wire import _implementation


@pytest.fixture(params=["native", "pure"])
def record_path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once with the compiled record path and once with the one in Python."""
    if request.param not in _implementation.available():
        pytest.fail(
            f"the {request.param} record path is not built: install a C compiler (the package gcc), "
            "and build again"
        )
    before = _implementation.use(request.param)
    yield request.param
    _implementation.use(before)
