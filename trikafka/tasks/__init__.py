"""``run_tasks``, ``process`` and ``ensure_topics``: programs over the clients."""
