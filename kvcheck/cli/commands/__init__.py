"""The commands: a module of the same name for each, with a `command` in it. A new module is a new command."""
