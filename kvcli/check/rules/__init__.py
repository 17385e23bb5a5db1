"""What is held against each case: one function a rule, from a case to what it says."""
