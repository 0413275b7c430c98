"""Tables and streams of Spark into windows, exactly once."""
