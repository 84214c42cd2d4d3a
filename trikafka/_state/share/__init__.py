"""The state of a share group's member: sessions, acquired records, acknowledgements. No I/O."""
