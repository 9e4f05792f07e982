"""Where ops run: devices, copies between them, and placement by name."""
