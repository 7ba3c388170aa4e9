"""Training: kernel policies by GRPO, a language model's reward and lessons. No daemon path imports it."""
