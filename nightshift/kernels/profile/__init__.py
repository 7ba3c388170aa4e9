"""Where a live job's GPU time goes, what it could be at the roofline, and whether a search is worth its GPU.

Nothing here needs torch but the probe of a GPU's peaks, so the daemon can decide on a machine without one.
"""
