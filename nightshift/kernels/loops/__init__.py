"""Loop schedules: a nest in C, actions on its loops, legality by dependences, and a race on this machine's CPU."""
