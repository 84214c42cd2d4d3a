"""Fixtures of the tests of the wire format."""

import shutil
from collections.abc import Iterator
from types import ModuleType

import pytest

from trikafka._wire import _implementation


@pytest.fixture(params=["native", "pure"])
def implementation(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Run the test once with the compiled record path and once with the one in Python."""
    if request.param not in _implementation.available():
        if shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"):
            pytest.fail(f"there is a C compiler, but the {request.param} record path is not built")
        pytest.skip("no C compiler here, so nothing compiled to test")
    before = _implementation.use(request.param)
    yield _implementation.current
    _implementation.use(before)
