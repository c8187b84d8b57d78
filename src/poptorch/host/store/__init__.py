"""Native code that outlives its process: what it looks like as data, and where it is kept."""
