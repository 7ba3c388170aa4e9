"""Operations of inference: norms, attention over paged and ragged caches, recurrent states; one kernel a kind."""
