"""The state of a producer: accumulator, batches, sequences, transaction. No I/O."""
