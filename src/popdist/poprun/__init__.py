"""``poprun``: starts a program as several instances, each with its share of the replicas."""
