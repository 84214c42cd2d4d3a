"""The public admin client."""
