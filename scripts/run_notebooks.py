"""Run the notebooks of examples/notebooks, and store what they show in them.

python scripts/run_notebooks.py                 # all of them
python scripts/run_notebooks.py sizing          # some
python scripts/run_notebooks.py --html FOLDER   # and write pages to look at
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path

import nbclient
import nbconvert
import nbformat

NOTEBOOKS = Path(__file__).resolve().parent.parent / "examples" / "notebooks"


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Leave out what differs from run to run and tells nothing: times, bars, colours, addresses of objects."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            data = output.get("data", {})
            data.pop("application/vnd.jupyter.widget-view+json", None)
            if "text" in output:
                text = re.sub(r"\x1b\[[0-9;]*m", "", output.text)
                output.text = re.sub(r"\S*/ipykernel_\d+/\d+\.py:", f"cell {cell.execution_count}, line ", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--html", type=Path)
    chosen = parser.parse_args()
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if chosen.names and path.stem not in chosen.names:
            continue
        notebook = nbformat.read(path, nbformat.NO_CONVERT)
        with tempfile.TemporaryDirectory() as folder:
            nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
        tidy(notebook)
        nbformat.write(notebook, path)
        if chosen.html is not None:
            page, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
            chosen.html.mkdir(parents=True, exist_ok=True)
            (chosen.html / f"{path.stem}.html").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
