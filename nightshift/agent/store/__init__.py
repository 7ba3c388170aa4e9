"""One database: its tables, and the records that are kept in them."""
