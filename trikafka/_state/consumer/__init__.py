"""The state of a consumer: subscription, assignment, fetches. No I/O."""
