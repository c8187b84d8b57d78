"""Programs that the tests here start are no tests, and import what only a launcher provides."""

collect_ignore = ["job_program.py", "killed.py", "launched.py", "sample.py", "training.py"]
