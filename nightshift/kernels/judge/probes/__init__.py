"""What a candidate is asked, and whether its answers are right."""
