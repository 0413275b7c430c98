"""The lists of the documentation, made from the code each time the site is built.

    reference/settings.md    text, and a line {{ settings }}    hook.py ──▶ lists.py ──▶ a Markdown table

`lists.py` has one function for each name between braces. What a running service says of itself (its OpenAPI document,
its metrics) is asked of one that is started for the build.
"""
