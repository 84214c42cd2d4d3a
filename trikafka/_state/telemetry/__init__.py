"""What a client knows of its metrics, and of the broker's subscription to them (KIP-714)."""
