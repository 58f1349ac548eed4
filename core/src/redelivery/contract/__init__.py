"""The plugin contract: all that the author of a plugin reads, with `docs/plugin_contract.md`."""
