"""The conformance suite that every redelivery plugin passes, ours and a stranger's alike."""
