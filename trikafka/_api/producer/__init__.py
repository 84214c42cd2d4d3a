"""The public producer, its acks and tables, and its transaction."""
