"""Windows as tables and streams of Spark."""
