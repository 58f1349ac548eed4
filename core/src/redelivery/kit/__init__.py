"""What plugins share: optional parts, each of which a plugin may use without the others.

A plugin imports `redelivery.contract`, `redelivery.errors` and this package, and nothing else of core.
"""
