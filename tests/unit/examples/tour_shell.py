"""Runs the code cells of a notebook in an IPython of its own; prints what each of them shows, as JSON.

python tests/unit/examples/tour_shell.py NOTEBOOK [CODE ...]: further cells after those of the notebook.
"""

import json
import sys
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output


def main(notebook: str, *further: str) -> None:
    """Run the cells until one fails."""
    cells = json.loads(Path(notebook).read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    shell = InteractiveShell.instance()
    shell.kernel = object()  # As in a notebook server's kernel; its front end is what is captured here.
    shown = []
    for source in [*sources, *further]:
        with capture_output() as captured:
            result = shell.run_cell(source)
        result.raise_error()
        displays = [output.data for output in captured.outputs]
        if result.result is not None:  # A kernel's hook sends what the formatter returns.
            displays.append(shell.display_formatter.format(result.result)[0])
        shown.append({"stdout": captured.stdout, "displays": displays})
    json.dump(shown, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
