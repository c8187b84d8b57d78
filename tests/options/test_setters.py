"""The module of the setters must follow the option table."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "generate_option_setters.py"


def test_the_module_is_up_to_date():
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
