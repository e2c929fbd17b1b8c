"""What `--value` and `--figure` may name."""

VALUES = ("last", "best", "last10")
CURVES = ("rounds", "communication", "time", "examples")
