"""Windows: specs, keys and their entries, slide and order policies, questions and answers."""
