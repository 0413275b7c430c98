"""Runs the cells of a notebook as Jupyter does, without Jupyter.

python -m tests.support.notebooks docs/howto/notebook.ipynb     asks the service at 127.0.0.1:7070, and keeps what
                                                                its cells show
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path


def run(notebook, named=lambda code: code):
    """Run the cells in order; return what each shows: lines that it prints, and its last expression.

    Args:
        named: puts other addresses into a cell's code.
    """
    session, shown = {}, []
    for number, cell in enumerate(_codes(notebook)):
        body = ast.parse(named("".join(cell["source"])), f"cell {number}").body
        last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None
        outputs = []
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(ast.Module(body, []), f"cell {number}", "exec"), session)
            value = None if last is None else eval(compile(last, f"cell {number}", "eval"), session)
        if printed.getvalue():
            outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
        if value is not None:
            data = {"text/plain": _lines(repr(value))}
            if hasattr(value, "_repr_html_"):
                data["text/html"] = _lines(value._repr_html_())
            outputs.append({"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": None})
        shown.append(outputs)
    return shown


def outputs_of(notebook):
    """What the cells of a notebook show in it."""
    return [cell["outputs"] for cell in _codes(notebook)]


def _codes(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _lines(text):
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    document = json.loads(path.read_text())
    for cell, outputs in zip(_codes(document), run(document), strict=True):
        cell["outputs"] = outputs
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
