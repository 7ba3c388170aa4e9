"""Where each part of the daemon is put together from settings and the other parts; `agent.app` joins them."""
