"""Fixtures of the tests of the wire format."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from trikafka._wire import _implementation


@pytest.fixture(params=["native", "pure"])
def implementation(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Run the test once with the compiled record path and once with the one in Python."""
    if request.param not in _implementation.available():
        pytest.fail(
            f"the {request.param} record path is not built: install a C compiler (the package gcc), "
            "and build again"
        )
    before = _implementation.use(request.param)
    yield _implementation.current
    _implementation.use(before)
