"""What each peer does in a case, one module a peer. Each is imported in its own process alone, which pays for its imports."""
