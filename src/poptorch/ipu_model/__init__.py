"""The IPU Model: what a program would cost in cycles and memory on real IPUs."""
