"""Written forms of a delivery spec: one table of names (`fields.py`), and three thin views of it.

- `knative.py`: YAML, JSON or a mapping; what Knative has no word for goes under `redelivery:`
- `connect.py`: `errors.*` properties; what Connect has no word for goes under `redelivery.*`
- `options.py`: one flat mapping that takes all of both, in any case, as Spark gives it

Each reads what it writes, for every spec. Tolerance that is not given is written explicitly, with the meaning that it
has, where the form's own default differs.
"""
