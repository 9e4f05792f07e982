"""What ran where and when: events of a run, their file, and reports about them."""
