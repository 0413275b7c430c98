"""How a window slides: by count, age, period, sessions, or by itself."""
