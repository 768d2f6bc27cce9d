"""Of the data source for Spark: what decides, without a JVM and without a server."""
