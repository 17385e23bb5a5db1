"""Shell scripts and container command lines: the words that a program is started with."""
