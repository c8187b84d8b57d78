"""What runs host programs: straight-line Python for short ones, a driver for long ones."""
