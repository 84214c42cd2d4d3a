"""The writing of flights to a topic, with a log of their offsets."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

import trikafka
from trikafka import RecordMetadata, TopicPartition

from .source import Flights

_STEP = 5_000


@dataclass
class Log:
    """The records of the topic, as acknowledged to the producer.

    ``numbers`` has the flight's number for each offset, by partition.
    """

    topic: str
    partitions: int
    numbers: dict[int, array[int]] = field(init=False)
    places: list[tuple[int, int]] = field(default_factory=list)
    refused: int = 0

    def __post_init__(self) -> None:
        self.numbers = {partition: array("l") for partition in range(self.partitions)}

    def add(self, metadata: RecordMetadata) -> None:
        """Add the place of the next flight.

        The offsets of a partition must follow each other without gaps. Any other place is refused.
        """
        place = self.numbers[metadata.partition]
        if metadata.offset != len(place):
            self.refused += 1
            return
        place.append(len(self.places))
        self.places.append((metadata.partition, metadata.offset))

    def ends(self) -> dict[TopicPartition, int]:
        """Return the offset after the last one of each partition."""
        return {
            TopicPartition(self.topic, partition): len(place)
            for partition, place in self.numbers.items()
        }


async def write(servers: str, flights: Flights, log: Log, progress: Callable[[int], None]) -> None:
    """Write the flights in order, and record in ``log`` the place of each.

    ``progress`` is called with the number of delivered flights.
    """
    async with trikafka.open_producer(
        bootstrap_servers=servers, compression_type="lz4", linger_ms=5
    ) as producer:
        await producer.partitions_for(log.topic)  # from here on only a full buffer makes it wait
        acks = []
        for key, value, timestamp in zip(
            flights.keys, flights.values, flights.timestamps, strict=True
        ):
            try:
                ack = producer.send_nowait(log.topic, value, key=key, timestamp=timestamp)
            except trio.WouldBlock:
                ack = await producer.enqueue(log.topic, value, key=key, timestamp=timestamp)
            acks.append(ack)
            if len(acks) % _STEP == 0:
                await trio.lowlevel.checkpoint()
                progress(producer.statistics().records_delivered)
        for number, ack in enumerate(acks):
            log.add(await ack.wait())
            if number % _STEP == 0:
                progress(max(number, producer.statistics().records_delivered))
    progress(len(flights))
