"""The stub file for type checkers must follow the option table."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

from poptorch.options import setters

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "src" / "poptorch" / "options" / "setters.pyi"
SCRIPT = ROOT / "scripts" / "generate_option_stubs.py"


def test_the_stub_file_is_up_to_date():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_the_stub_file_describes_each_setter_with_its_parameters():
    classes = {node.name: node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ClassDef)}
    for name, node in classes.items():
        described = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
        for method, made in vars(getattr(setters, name)).items():
            if inspect.isfunction(made):
                arguments = described[method].args
                names = [argument.arg for argument in arguments.args]
                if arguments.vararg:
                    names.append(arguments.vararg.arg)
                assert names == list(inspect.signature(made).parameters)
