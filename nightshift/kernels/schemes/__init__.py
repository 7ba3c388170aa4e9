"""Algorithm discovery: bilinear schemes for small products, found by walks and by learning, checked, compiled."""
