"""What tests read of a network: features, tensors, hidden states; and the signature of all."""
