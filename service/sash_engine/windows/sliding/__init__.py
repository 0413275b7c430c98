"""How a window slides: by count, age, period, sessions, or by itself; and what a view shows by its slide."""
