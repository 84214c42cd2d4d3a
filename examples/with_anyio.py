"""trikafka on the Trio backend of AnyIO, which needs no trikafka.aio; see docs/asyncio.md."""

import anyio

import trikafka


async def main() -> None:
    async with trikafka.open_producer(bootstrap_servers="localhost:9092") as producer:
        print(f"offset {(await producer.send('greetings', b'hello')).offset}")


anyio.run(main, backend="trio")
