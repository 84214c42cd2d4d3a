"""The request managers: each file owns its state and one kind of conversation with the brokers.

Java's consumer has an application thread and a network thread. Its rules for timeouts, order,
states and responsibilities hold here, with one thread and a tree of tasks. The counterparts of its
classes:

* Application thread, network thread: the user's tasks, and the client's tasks under one hosting
  task.
* ``ApplicationEventQueue``, ``BackgroundEventQueue``, ``CompletableFuture``, ``wakeup()``: a call,
  ``await``, a cancel scope.
* ``CompletableEventReaper``, ``Timer``: a cancel scope for each step, and one ``Call`` with one
  deadline.
* ``RequestManager.poll(now)``, ``NetworkClientDelegate``: a manager awaits ``Brokers.request``;
  equal requests become one (``_net/singleflight.py``).
* ``FetchSender``, ``FetchBuffer``, ``FetchHandler``: ``Fetcher``, ``FetchBuffer``, and a
  ``Receiver`` with a ``PartitionReader`` for each partition.
* The heartbeat thread: a task beside the generation; none for a consumer that only assigns.
* The events COMMIT, SUBSCRIBE, ASSIGN, LEAVE_GROUP: work of the caller's task.
* The events REVOKE_PARTITIONS, ASSIGN_PARTITIONS: posted to the ``RebalanceListenerInvoker``; the
  next receive runs the listeners.
* The event ERROR: raised by the receive whose turn it is (a partition's), by each receive (the
  group's), or by the client's block (a task's).
"""

from .._kafka_python import allow_schemas

allow_schemas()
