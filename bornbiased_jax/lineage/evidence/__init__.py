"""What tests read of a model: features, tensors, hidden states; and the signature of all."""
