"""Notes that say what to do after an error."""

from __future__ import annotations

from .classes import DeserializationError


def note_how_to_skip(error: DeserializationError) -> None:
    """Add a note to the error of a record at which the consumer's position stays.

    The advice is a note, because the text of the error may go into the header of a dead letter.
    """
    error.add_note(
        f"the consumer stays at the record; to skip it: consumer.seek(TopicPartition("
        f"{error.topic!r}, {error.partition}), {error.offset + 1})"
    )
