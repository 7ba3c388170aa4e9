"""AdamW steps: on one tensor, with a 16-bit copy, and over all tensors of a model in one launch."""
