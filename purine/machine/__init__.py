"""This machine: its cores and memory, and everything that changes the whole process (`effects`)."""
