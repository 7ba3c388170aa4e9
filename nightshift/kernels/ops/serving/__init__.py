"""Operations of inference: rows, attention over caches, recurrent states, experts, choices; one kernel a kind."""
