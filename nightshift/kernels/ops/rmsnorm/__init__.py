"""Root-mean-square normalisation, alone and after a residual addition, and its gradients."""
