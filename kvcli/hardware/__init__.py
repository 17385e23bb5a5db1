"""What a device is: the table of parts and the part in this machine."""
