"""The data source in a real Spark against real servers (make spark)."""
