"""The plugin contract: all that the author of a plugin reads. `broker.py` is the place to begin."""
