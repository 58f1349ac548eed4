"""The receiving engine: messages under lease (`leases`), handlers side by side (`workers`), one run (`running`).

`subscription` puts them together. `redelivery.policy` decides what follows from an error.
"""
