"""A share group while its members and brokers are killed, frozen, and lose their leaders."""
