"""Faults on real brokers: plans, histories, and a checker that holds every row, letter and report to its promise."""
