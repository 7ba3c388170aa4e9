"""Cross-entropy of logits with class indices, and its gradient."""
