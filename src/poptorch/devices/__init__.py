"""Virtual IPUs: the systems that exist, and who is attached to which IPUs."""
