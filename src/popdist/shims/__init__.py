"""Stand-ins for packages that programs for PopRun import. PopRun puts this folder at the end of ``PYTHONPATH``.

It does so only where the real package is not installed, and a stand-in steps back if it finds the real one after all.
"""
