"""The `chaski` command. Each subcommand has its own module, which is imported when it is called or listed."""
