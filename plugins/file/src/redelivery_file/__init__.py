"""redelivery's dead letter sink of plain files: one JSON line a letter."""
