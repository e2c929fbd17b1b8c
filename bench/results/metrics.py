"""The accuracies that a table may be about."""

METRICS = {
    "accuracy": "the shared model",
    "global_accuracy": "each client's own model on the whole split, mean over clients",
    "local_accuracy": "each client's own model, classes weighted by the client's training label shares, mean "
    "over clients",
}
"""Accuracy -> whose it is."""
