"""Floor 2, beside controllers: profile, problem, generate, judge, certify, apply."""
