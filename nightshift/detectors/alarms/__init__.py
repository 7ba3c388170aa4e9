"""The weekly budget of false pages: what an alarm costs, and what each detector promises."""
