"""Partitions of the virtual IPUs of this host, and the commands ``vipu``, ``vipu-cli`` and ``vipu-admin`` for them."""
