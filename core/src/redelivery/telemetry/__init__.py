"""Spans, metrics and trace context by OpenTelemetry's conventions; without an SDK they cost nothing."""
