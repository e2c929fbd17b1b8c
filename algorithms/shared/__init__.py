"""What methods share: the interface, wrappers, local training, trees of tensors, states of clients, aggregation, clustering."""
