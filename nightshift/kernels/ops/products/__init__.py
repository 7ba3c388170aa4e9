"""Matrix products, and linear layers with a bias and a pointwise function behind it."""
