"""Offsets that users pass to commit."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from trikafka import ConfigurationError, OffsetAndMetadata, TopicPartition
from trikafka._state.arguments import offset_and_metadata

PLACE = TopicPartition("t", 0)


@pytest.mark.parametrize("given", [5, OffsetAndMetadata(5), OffsetAndMetadata(numpy.int64(5))])
def test_integers_of_any_kind_are_accepted(given: Any) -> None:
    found = offset_and_metadata(PLACE, given)
    assert found == OffsetAndMetadata(5)
    assert type(found.offset) is int


@pytest.mark.parametrize(
    "given", [True, -1, 5.0, "5", None, *map(OffsetAndMetadata, (True, -1, 5.0, "5", 2**63))]
)  # type: ignore[arg-type]
def test_everything_else_is_refused(given: Any) -> None:
    with pytest.raises(
        ConfigurationError, match="the offset to commit for t-0 must be a whole number"
    ):
        offset_and_metadata(PLACE, given)
