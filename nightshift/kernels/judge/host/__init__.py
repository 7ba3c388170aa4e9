"""A candidate's process: started, confined, watched, and what runs inside it."""
