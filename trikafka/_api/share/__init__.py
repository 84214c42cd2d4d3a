"""The share consumer, and the function that opens one."""
