"""All errors that the service raises."""

from sash_engine import errors

ERRORS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.SashError)]
"""`SashError` is the first."""
