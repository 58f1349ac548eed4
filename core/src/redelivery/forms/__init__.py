"""Written forms of a delivery spec: Knative's, Connect's and Spark options."""
