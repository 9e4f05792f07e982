"""Moving values between hosts: one interface, one file for each engine."""
