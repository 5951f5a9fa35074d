"""A small web shop of our own: SQLite behind it, plain pages before it, tasks graded on the database."""
