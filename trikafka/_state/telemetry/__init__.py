"""The metrics of a client, and the broker's subscription to them (KIP-714)."""
