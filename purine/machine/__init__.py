"""This machine: its cores and memory, and settings that hold for the whole process."""
