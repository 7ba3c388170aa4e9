"""Dropout with a residual addition. The family `flat` beside AdamW writes its kernels."""
