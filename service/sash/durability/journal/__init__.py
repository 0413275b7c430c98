"""The journal of a store: groups of records, committed together, and its roots."""
