"""Reads of topics: what Spark asks, what is planned on the driver, and what tasks read."""
