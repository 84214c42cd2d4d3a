"""trikafka for asyncio: the same clients, in any program that runs on asyncio or uvloop.

::

    import trikafka.aio

    async with trikafka.aio.open_producer(bootstrap_servers="localhost:9092") as producer:
        await producer.send("greetings", b"hello")

The clients are Trio's own. They run in Trio's *guest mode*: Trio's loop runs in turns inside of
asyncio's, in the same thread. This package is the border between the two.

**The owners of the guest.** Each thread has at most one guest (:mod:`.guest`). The first client of
an event loop starts the guest, and each client holds a reference until its own Trio task has ended.
The client with the last reference ends the guest, and its ``async with`` returns only after that.
So nothing of Trio is left: no task, no socket, no thread.

**The driver of the guest.** In guest mode Trio asks its host to call one function, the *tick*,
which runs the tasks that are ready. Where the host's loop can watch file descriptors and Trio waits
by epoll, asyncio watches Trio's epoll descriptor itself. A tick then follows a call, a readable
socket or a deadline of Trio, and no thread is involved. Elsewhere Trio waits in a thread of its
own, as its guest mode does by default. That is slower: a call costs some 0.3 ms more.

**How a call crosses.**

* A method that cannot wait is called directly, in the same thread and on the same objects. After
  the call the guest gets a tick. ``send`` is such a call with a future of asyncio: the record is
  appended at once, and its ack resolves the future. A thousand tasks that send in one turn of
  asyncio's loop cause one tick, and one response resolves all futures of a batch.
* The task that wants a record also takes it from the buffer directly. Only the *wait* for records
  crosses, and the wait takes nothing. So no record is ever between the two loops, and none can be
  lost there.
* Everything else is a Trio task in the guest, with a copy of the caller's context, and a future
  (:mod:`.crossing`).
* What the user passes in (handlers, rebalance listeners) runs in a task of asyncio, in the context
  of the caller. The Trio task that needs the result waits for it. A call that the listener makes
  counts as made by the waiting task (:func:`trikafka.toolkit.calling_for`).

**What a cancellation does.**

1. Before a call begins: nothing has happened.
2. While a call is on Trio's side: its cancel scope is cancelled, and the asyncio task waits until
   the Trio task has ended. Only then ``CancelledError`` is raised. So each promise of the Trio
   call about cancellation holds. A second cancellation waits, too.
3. While ``send`` waits for the broker: ``CancelledError`` is raised at once, and the delivery goes
   on.
4. In the body of ``async with``: the client closes as a cancelled Trio client does, within a
   second.
5. From Trio's side, a handler's task is cancelled, and Trio waits for its end.

``trio.Cancelled`` never reaches asyncio, and ``asyncio.CancelledError`` never reaches Trio.

**How it ends.** A background failure of a client cancels the task that opened it, and ``async
with`` raises ``ClientFailedError`` (as :class:`asyncio.TaskGroup` does). Ctrl-C belongs to asyncio:
if Trio's handler catches one, it is raised in asyncio's loop. If a loop is closed while clients are
open, no loop is left that could run them. The next client that opens in this thread closes them
first, within seconds.
"""

from .admin import Admin
from .consumer import Consumer
from .opening import open_admin, open_consumer, open_producer, open_share_consumer
from .producer import Ack, Producer, Transaction
from .sharing import Delivery, ShareBatch, ShareConsumer
from .streams import PartitionStream
from .tasks import ensure_topics, process, run_queue, run_tasks

__all__ = [
    "Ack",
    "Admin",
    "Consumer",
    "Delivery",
    "PartitionStream",
    "Producer",
    "ShareBatch",
    "ShareConsumer",
    "Transaction",
    "ensure_topics",
    "open_admin",
    "open_consumer",
    "open_producer",
    "open_share_consumer",
    "process",
    "run_queue",
    "run_tasks",
]
