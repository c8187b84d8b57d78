"""Reports of compiled models: figures of the IPU Model and measured times, in files, as objects and as text."""
