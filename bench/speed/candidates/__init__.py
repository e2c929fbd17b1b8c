"""What may make a GPU faster, written to be measured by `bench.gpu_check`; no run uses it before a card has decided."""
