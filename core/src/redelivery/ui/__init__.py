"""The operator's page: dead letters of all places, on this machine, for one person (`redelivery ui`).

It shows and serves what `redelivery.deadletters` and `redelivery.provisioning` find and do; it knows no broker.
"""
