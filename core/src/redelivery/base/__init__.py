"""The bottom layer, beside `redelivery.errors`: clock, durations, JSON, URLs, secrets, foreign texts and files."""
