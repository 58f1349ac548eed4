"""How messages, events, error contexts and delivery specs are written down and read back."""
