"""Running an executable on virtual IPUs: devices, schedules, streams and weights."""
