"""The parts of the receiving engine: leases under lease (`hands`) and handlers side by side (`workers`).

`redelivery.subscription` puts them together; what follows from an error is decided in `redelivery.policy`.
"""
