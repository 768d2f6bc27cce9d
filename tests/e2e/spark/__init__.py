"""Spark on the cluster: what its image has over the product's own, and the application that runs in it."""
