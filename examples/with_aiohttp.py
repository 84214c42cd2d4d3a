"""A web server by aiohttp that writes to Kafka; see docs/asyncio.md."""

from collections.abc import AsyncIterator

from aiohttp import web

import trikafka.aio

PRODUCER = web.AppKey("producer", trikafka.aio.Producer)


async def kafka(app: web.Application) -> AsyncIterator[None]:
    async with trikafka.aio.open_producer(bootstrap_servers="localhost:9092") as producer:
        app[PRODUCER] = producer
        yield


async def greet(request: web.Request) -> web.Response:
    place = await request.app[PRODUCER].send("greetings", await request.read())
    return web.json_response({"partition": place.partition, "offset": place.offset})


app = web.Application()
app.cleanup_ctx.append(kafka)
app.router.add_post("/greetings", greet)

if __name__ == "__main__":
    web.run_app(app, port=8000)
