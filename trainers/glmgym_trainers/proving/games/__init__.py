"""The games: tasks as plain state machines over words, each with a demonstrator that can be told how often to err."""
