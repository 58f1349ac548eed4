"""Spans, metrics and trace context by OpenTelemetry's conventions; without an SDK they cost nothing.

Core only needs OpenTelemetry's API, and imports even that only where a program has set up an SDK. `conventions` has the
names, `context` reads the trace context of messages, `current` finds the program's SDK, `guard` keeps its
errors away, `sends`, `handling`, `redrives`
and `counters` make spans and metrics of what happens. Nothing here changes a message.
"""
