"""What can be done to a network: function-preserving and lossy transforms, and surgery."""
