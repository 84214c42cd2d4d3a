import trio, logging
from test_sink_batches import *
async def test_zz(autojump_clock, caplog):
    lake = Lake()
    orig = lake.write
    async def w(batch):
        print("WRITE", trio.current_time(), batch)
        await orig(batch)
    lake.write = w
    class H(logging.Handler):
        def emit(self, r):
            try: print("LOG", round(trio.current_time(),3), r.name, r.getMessage()[:150])
            except RuntimeError: pass
    logging.getLogger("trikafka").addHandler(H()); logging.getLogger("trikafka").setLevel(10)
    async with cluster_of(1, records=3) as cluster, reader(cluster, lake) as consumer, sinking(consumer, flush_ms=30_000):
        await trio.sleep(5)
        cluster.fail("Heartbeat", ErrorCode.UNKNOWN_MEMBER_ID, times=1)
        await until(lambda: committed(cluster) == 3)
        print("END", trio.current_time())
    print(lake.parts)
    for s in cluster.log[-40:]: print(s.api_name, getattr(s,'time',None))
    assert lake.parts == [(0, 0, 3)]
