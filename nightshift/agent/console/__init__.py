"""The web console: server-rendered pages on incidents, fleet and sources, and the buttons of the gate."""
